"""HiFT by parts and by convolutions, each beside its floor and torch, and what each precision loses.

`python -m benchmarks.native.hift_kernels` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal. Results
are written part by part.

What one session of the first generation computes and moves at least, 58 frames (fp32 operands; 16 bits move two thirds):

| part | GFLOP | MB |
|---|---|---|
| pitch (fp64) | 0.38 | 26 |
| stage 0, 256 channels x 464 | 10.2 | 34 |
| stage 1, 128 x 2320 | 12.8 | 86 |
| stage 2, 64 x 6961 | 10.9 | 128 |
| the rest | 1.7 | 20 |
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native import hift_windows
from benchmarks.native.card import Card
from benchmarks.native.floors import Floor
from benchmarks.native.timing import graphed, kernels
from minicpmo45.config import HiftConfig, tiny
from tests.vocoder_svc.minicpmo45.weights import hift_weights
from vocoder_svc.minicpmo45.continuation import OVERLAP_FRAMES
from vocoder_svc.minicpmo45.fused_hift import FusedHift, Stage
from vocoder_svc.minicpmo45.hift import Hift
from vocoder_svc.minicpmo45.kernels.conv import After, Counts, convolve
from vocoder_svc.minicpmo45.kernels.conv_mean import mean
from vocoder_svc.minicpmo45.kernels.conv_tiles import ConvTile, group_of
from vocoder_svc.minicpmo45.kernels.conv_weights import grouped
from vocoder_svc.minicpmo45.kernels.spectrum import sounded, spectrum
from vocoder_svc.minicpmo45.layers import Weights
from vocoder_svc.minicpmo45.retention import CHUNK_FRAMES
from vocoder_svc.minicpmo45.source import noise_table

PARTS = ("lost", "parts", "conv")
DTYPES = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WAYS = (
    (64, 64, 128, 4, 4),
    (64, 128, 128, 4, 3),
    (64, 128, 128, 4, 4),
    (128, 64, 128, 4, 4),
    (128, 128, 128, 4, 3),
    (128, 128, 128, 8, 3),
    (128, 128, 128, 8, 4),
    (128, 256, 128, 8, 3),
    (256, 64, 128, 8, 3),
    (256, 128, 128, 8, 3),
    (32, 32, 128, 4, 5),
    (32, 64, 128, 4, 5),
    (32, 128, 128, 4, 4),
)
"""Rows, columns, bytes of depth, warps, stages."""
GROUPS = (1, 2, 4)
REPEATS = 8
Row = dict[str, Any]


class Window(msgspec.Struct, frozen=True):
    """What HiFT is given of a later chunk."""

    mel: Tensor
    frames: Tensor
    phase: Tensor
    noise: Tensor
    begin: Tensor


def window(config: HiftConfig, sessions: int, device: torch.device) -> Window:
    draw = torch.Generator().manual_seed(2)
    size = OVERLAP_FRAMES + CHUNK_FRAMES
    return Window(
        torch.randn(sessions, config.mels, size, generator=draw).to(device),
        torch.full((sessions,), size, device=device),
        torch.zeros(sessions, config.harmonics + 1, device=device, dtype=torch.float64),
        noise_table(config, 0).to(device),
        torch.arange(sessions, device=device) * 480,
    )


def parts(config: HiftConfig, sessions: int, device: torch.device) -> Iterator[Row]:
    """Each part alone in a graph, plain (with TF32 convolutions) and fused by the operands' dtype."""
    weights = {name: tensor.to(device) for name, tensor in hift_weights(config).items()}
    given = window(config, sessions, device)
    made: dict[str, Hift] = {"plain": Hift(weights, config)}
    for kind, dtype in DTYPES.items():
        if device.type == "cuda" or kind != "bf16":
            made[kind] = FusedHift(weights, config, dtype)
    for kind, hift in made.items():
        f0 = hift.pitch(given.mel, given.frames)
        source, _ = hift.source(f0, given.frames, given.frames * 0, given.phase, given.noise, given.begin)
        calls: dict[str, Callable[[], object]] = {
            "pitch": partial(hift.pitch, given.mel, given.frames),
            "source": partial(hift.source, f0, given.frames, given.frames * 0, given.phase, given.noise, given.begin),
            "decode": partial(hift.decode, given.mel, source, given.frames, given.frames),
        }
        inner = _fused(hift, given, source) if isinstance(hift, FusedHift) else _plain(hift, given, source)
        for part, call in (calls | inner).items():
            count, own = kernels(device, call)
            yield {"sessions": sessions, "kind": kind, "part": part, "kernels": count, "own_ms": own, "ms": graphed(device, call)}
            if device.type == "cpu":
                call()


def _fused(hift: FusedHift, given: Window, source: Tensor) -> dict[str, Callable[[], object]]:
    config, frames, size = hift.config, given.frames, given.mel.shape[2]
    sessions, device, dtype = len(frames), frames.device, hift._dtype
    hop, columns = config.istft_hop, Counts(frames, hift.rate, 1)

    def transform() -> Tensor:
        return spectrum(source, hift._analysis, hop, Counts(frames, hift.hop), columns, dtype)

    def joined(stage: Stage, total: Tensor, operands: Tensor, here: Counts) -> Tensor:
        return mean(hift._blocks_of(stage.residual, total, operands, here)[0], here, config.leaky_slope, dtype)

    calls: dict[str, Callable[[], object]] = {"spectrum": transform}
    scale, lines, before = 1, transform()[None], Counts(frames)
    for index, (stage, rate) in enumerate(zip(hift._stages, config.upsample_rates, strict=True)):
        scale *= rate
        last = int(scale == hift.rate)
        length, here = size * scale + last, Counts(frames, scale, last)
        channels = stage.rise.outputs
        x = torch.randn(1, sessions, size * before.scale + before.more, stage.rise.inputs, device=device).to(dtype)
        total = torch.randn(1, sessions, length, channels, device=device)
        operands = torch.randn(3, sessions, length, channels, device=device).to(dtype)
        calls |= {
            f"rise {index}": partial(hift._run, x, stage.rise, before, here, length, After(), shift=last),
            f"lower {index}": partial(hift._run, lines, stage.lower, columns, here, length, After(alpha=stage.source.before[0])),
            f"source block {index}": partial(hift._blocks_of, stage.source, total, operands[:1], here),
            f"blocks {index}": partial(joined, stage, total, operands, here),
        }
        before = here
    spoken = torch.randn(sessions, size * hift.rate + 1, config.n_fft + 2, device=device)
    return calls | {"samples": lambda: sounded(spoken, hift._synthesis, hift._window, hop, columns, 100.0, config.audio_limit)}


def _plain(hift: Hift, given: Window, source: Tensor) -> dict[str, Callable[[], object]]:
    config, frames, size = hift.config, given.frames, given.mel.shape[2]

    def joined(blocks: Sequence[Weights], x: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([hift._block(block, x, lengths) for block in blocks]).mean(0)

    calls: dict[str, Callable[[], object]] = {"spectrum": lambda: hift._spectrum(source, frames * hift.hop)}
    scale, lines = 1, hift._spectrum(source, frames * hift.hop)
    count = len(config.resblock_kernels)
    for index, rate in enumerate(config.upsample_rates):
        below = torch.randn(len(frames), config.channels >> index, size * scale, device=frames.device)
        scale *= rate
        lengths = frames * scale
        x = torch.randn(len(frames), config.channels >> index + 1, size * scale, device=frames.device)
        blocks = hift._blocks[index * count : (index + 1) * count]
        calls |= {
            f"rise {index}": partial(hift._raise, index, below),
            f"lower {index}": partial(hift._lower, index, lines),
            f"source block {index}": partial(hift._block, hift._source_blocks[index], x, lengths),
            f"blocks {index}": partial(joined, blocks, x, lengths),
        }
    spoken = torch.randn(len(frames), config.n_fft + 2, size * hift.rate + 1, device=frames.device)
    return calls | {"samples": lambda: hift._samples(spoken, frames * hift.rate + 1)}


def convs(config: HiftConfig, sessions: int, device: torch.device, card: Card) -> Iterator[Row]:
    """The second convolutions of a stage's three blocks in one kernel (sum and snake in it), beside torch's three alone."""
    size = OVERLAP_FRAMES + CHUNK_FRAMES
    draw = torch.Generator(device).manual_seed(3)
    for index, rate in enumerate(config.upsample_rates):
        size = size * rate
        channels = config.channels >> index + 1
        for kind, dtype in DTYPES.items():
            if device.type == "cuda" or kind != "bf16":
                yield {
                    "sessions": sessions,
                    "channels": channels,
                    "kind": kind,
                    **_conv(config, sessions, channels, size, dtype, card, draw),
                }


def _conv(config: HiftConfig, sessions: int, channels: int, size: int, dtype: torch.dtype, card: Card, draw: torch.Generator) -> Row:
    device, taps = draw.device, config.resblock_kernels

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device)

    weights = [randn(channels, channels, each) / (channels * each) ** 0.5 for each in taps]
    bias, alpha = randn(len(taps), channels), randn(len(taps), 1, channels).abs() + 0.5
    x, residual = randn(len(taps), sessions, size, channels).to(dtype), randn(1, sessions, size, channels)
    into = torch.empty(len(taps), sessions, size, channels, device=device)
    counts = Counts(torch.full((sessions,), size, device=device))
    after = After(alpha=alpha, residual=residual, into=into)

    def fused(group: int) -> Callable[[ConvTile | None], Tensor]:
        conv = grouped(weights, list(bias), dtype, ahead=[each // 2 for each in taps], group=group)
        return lambda tile: convolve(x, conv, counts, counts, size, after, tile=tile)[1]

    lines = [each.transpose(1, 2).contiguous() for each in x]
    casts = [each.to(dtype) for each in weights]

    def torchs() -> list[Tensor]:
        return [functional.conv1d(line, weight, padding=weight.shape[2] // 2) for line, weight in zip(lines, casts, strict=True)]

    served = fused(group_of(channels))
    served(None)
    truth = [
        functional.conv1d(x[n, :1].double().transpose(1, 2), weights[n].double(), bias[n].double(), padding=taps[n] // 2).transpose(1, 2)
        + residual[0, :1].double()
        for n in range(len(taps))
    ]
    error = max(float((into[n, :1] - each).abs().max() / each.abs().max()) for n, each in enumerate(truth))
    count = len(taps) * sessions * size * channels
    floor = Floor(
        count * (4 + 2 * dtype.itemsize) + 4 * count // len(taps),
        2 * count // len(taps) * channels * sum(taps),
        "tf32" if dtype == torch.float32 else "bf16",
    )
    found: Row = {"error": error, "holds": error < (8e-3 if dtype == torch.bfloat16 else 1e-3), "us": _us(device, lambda: served(None))}
    found |= {"floor_us": floor.ms(card) * 1000, "torch_us": _us(device, torchs)}
    best, way = found["us"], "table"
    for group in GROUPS if device.type == "cuda" else ():
        call = fused(group)
        for rows, columns, depth, warps, stages in WAYS:
            tile = ConvTile(rows, columns, depth // dtype.itemsize, warps, stages)
            if columns > max(64, group * channels):
                continue
            try:
                us = _us(device, lambda call=call, tile=tile: call(tile))  # type: ignore[misc]
            except Exception as error_:
                # a tile may want more shared memory than there is
                print(f"{tile}: {type(error_).__name__}", flush=True)
                continue
            if us is not None and us < best:
                best, way = us, f"group {group}, {rows} x {columns}, {warps} warps, {stages} stages"
    return {**found, "best_us": best, "best": way}


def _us(device: torch.device, call: Callable[[], object]) -> float | None:
    def run() -> None:
        for _ in range(REPEATS):
            call()

    ms = graphed(device, run)
    return None if ms is None else ms * 1000 / REPEATS


def sections(raw: Row) -> list[tuple[str, str]]:
    card: Row = raw["card"]
    made = [("Card", f"{card['name']}, torch {card['torch']}, {card['date']}")]
    titles = {
        "parts": "Parts of HiFT, ms",
        "conv": "Residual convolutions, microseconds",
        "lost": "Whole chunks, ms",
    }
    for part, title in titles.items():
        rows = raw.get(part)
        if rows:
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[_cell(row.get(name, "")) for name in header] for row in rows])))
    return made


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> Row:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the tiny generator: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 128])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", default="hift_kernels", help="of the results")
    options = parser.parse_args(arguments)
    device, config = torch.device(options.device), tiny().hift if options.tiny else HiftConfig()
    if device.type == "cpu":
        # only a rehearsal needs it
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}}
    with torch.inference_mode():
        for part in options.parts:
            raw[part] = []
            for count in options.sessions:
                rows = {
                    "lost": partial(hift_windows.timed, config, count, card, device),
                    "parts": partial(parts, config, count, device),
                    "conv": partial(convs, config, count, device, card),
                }[part]()
                for row in rows:
                    raw[part].append(row)
                    print(row, flush=True)
                report.write(options.name, "HiFT", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
