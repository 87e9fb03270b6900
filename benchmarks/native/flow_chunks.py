"""A whole chunk of the flow by every kind of kernels and precision: its time, and what its mels lose against fp32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.native.card import Card
from benchmarks.native.floors import Floors
from benchmarks.native.precision import exact
from benchmarks.native.timing import graphed, kernels
from minicpmo45.config import Config, FlowConfig
from tests.vocoder_svc.minicpmo45.support import CHUNK, NOISE, Fixture
from tests.vocoder_svc.minicpmo45.weights import flow_weights
from vocoder_svc.minicpmo45.arena import SCRATCH, Arena
from vocoder_svc.minicpmo45.caches import FlowCaches, Piece
from vocoder_svc.minicpmo45.flow import Flow, Kernels
from vocoder_svc.minicpmo45.retention import RING_FRAMES, Newest, Span

ALLOWED = 4.0
"""Times TF32's error that bf16 may have (shared decision 13)."""


class Kind(msgspec.Struct, frozen=True):
    """How a flow computes."""

    name: str
    kernels: Kernels
    dtype: torch.dtype
    cached: torch.dtype
    tf32: bool = False
    chained: bool = False

    @property
    def unit(self) -> str:
        return {B16: "bf16", F16: "fp16"}.get(self.dtype, "tf32" if self.tf32 else "fp32")


F32, B16, F16 = torch.float32, torch.bfloat16, torch.float16
TRUTH = Kind("plain, fp32, caches fp32", "plain", F32, F32)
KINDS = (
    Kind("plain, fp32", "plain", F32, B16),
    Kind("plain, bf16", "plain", B16, B16),
    Kind("fused, fp32", "fused", F32, B16),
    Kind("fused, TF32", "fused", F32, B16, tf32=True),
    Kind("fused, bf16", "fused", B16, B16),
    Kind("fused, fp16", "fused", F16, F16),
    Kind("fused, fp16, chained", "fused", F16, F16, chained=True),
)
STRICT = Kind("fused, TF32, caches fp32", "fused", F32, F32, tf32=True)


class Line:
    """Sessions in one voice of `prompt` frames, in steady state after `settle`."""

    def __init__(self, kind: Kind, config: FlowConfig, sessions: int, prompt: int, steps: int, device: torch.device) -> None:
        weights = {name: tensor.to(device, kind.dtype) for name, tensor in _weights(config).items()}
        noise = NOISE.repeat(1, -(-(prompt + RING_FRAMES) // NOISE.shape[1]))
        flow = Flow(weights, config, steps, prompt + RING_FRAMES, noise, kind.kernels, tf32=kind.tf32, chained=kind.chained)
        self.flow, self.arena = flow, Arena(config, steps, sessions * RING_FRAMES + prompt, kind.cached, device)
        self._retention = Newest(sessions, device)
        self.caches = FlowCaches(flow, self.arena, self._retention, sessions)
        self._slots, self._device = list(range(sessions)), device
        self.made = Fixture(prompt)
        parts = (torch.from_numpy(each) for each in (self.made.codes, self.made.mel, self.made.speaker))
        codes, mel, speaker = parts
        span = Span(SCRATCH + sessions * RING_FRAMES, prompt)
        voice = self.caches.set_up(span, codes, torch.full((3,), 4218), mel.to(device), speaker)
        for slot in self._slots:
            self.caches.begin(slot, voice)

    def say(self, pieces: list[Piece]) -> Tensor:
        mel, after = self.caches.run(self._slots, pieces, CHUNK)
        self.caches.commit(self._slots, pieces, self._slots, after)
        return mel

    def stages(self) -> dict[str, Callable[[], Any]]:
        """Calls that make a later chunk of all sessions and its parts, and change nothing that another run of them reads."""
        pieces = [self.made.pieces[2]] * len(self._slots)
        for _ in range(4):
            self.say(pieces)
        rows = torch.tensor(self.caches.rows(self._slots, pieces, CHUNK)).to(self._device)
        lengths = torch.tensor(self._retention.rows(self._slots, [CHUNK] * len(self._slots))).to(self._device)
        longest = int(lengths[:, 1].max())
        held = Newest.attention(lengths, longest, CHUNK)
        codes, fresh, final, context, flow = rows[:, 3:], rows[:, 1], rows[:, 2] > 0, self.caches._context, self.flow
        mu, _ = flow._conformer(codes, fresh, final, context.conformer, held.token, held.mel, self.arena)
        guide = flow._dit.guide(mu, self.caches._speakers, None)
        x = torch.randn(mu.shape, device=self._device)
        speed, _ = flow._dit(0, x, guide, 2 * fresh, context.dit[0], held.dit, self.arena)
        return {
            "chunk": lambda: self.caches.forward(rows, Newest.attention(lengths, longest, CHUNK))[0],
            "conformer": lambda: flow._conformer(codes, fresh, final, context.conformer, held.token, held.mel, self.arena)[0],
            "DiT step": lambda: flow._dit(0, x, guide, 2 * fresh, context.dit[0], held.dit, self.arena)[0],
            "Euler": lambda: flow._dit.advance(x, speed, 0.2),
        }


def timed(
    config: FlowConfig,
    sessions: int,
    prompt: int,
    steps: int,
    card: Card,
    device: torch.device,
    kinds: Sequence[str],
    *,
    plain: bool = False,
) -> Iterator[dict[str, Any]]:
    """Of each kind a row for the chunk, one for each of its parts, and one for what is in none of them. `plain`: torch's kinds, too."""
    floors = Floors(Config(flow=config), sessions, 0)
    for kind in KINDS:
        if kind.unit not in kinds or (kind.kernels == "plain" and not plain):
            continue
        unit = "bf16" if kind.dtype.itemsize == 2 else kind.unit
        floor = floors.flow(steps, prompt, element=kind.dtype.itemsize, cached=kind.cached.itemsize, kind=unit)
        found: dict[str, tuple[int, float | None, float | None]] = {}
        with torch.inference_mode():
            line = Line(kind, config, sessions, prompt, steps, device)
            with line.flow._launches():
                for name, call in line.stages().items():
                    call()
                    found[name] = (*kernels(device, call), graphed(device, call))
        of = {"chunk": 1, "conformer": -1, "DiT step": -steps, "Euler": -steps}
        found["rest"] = (
            sum(times * found[name][0] for name, times in of.items()),
            sum(times * (found[name][1] or 0.0) for name, times in of.items()),
            sum(times * (found[name][2] or 0.0) for name, times in of.items()),
        )
        for name, (count, own, ms) in found.items():
            row = {"kind": kind.name, "sessions": sessions, "prompt": prompt, "steps": steps, "part": name, "kernels": count, "own_ms": own}
            yield {**row, "ms": ms, "floor_ms": floor.ms(card) if name == "chunk" else ""}
        if device.type == "cuda":
            torch.cuda.empty_cache()


def lost(config: FlowConfig, prompt: int, steps: int, device: torch.device, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Errors of twelve chunks of the fixture's turn, in parts of the mels' spread, and whether a half precision may serve."""
    with exact():
        truth = _turn(TRUTH, config, prompt, steps, device)
    rows: list[dict[str, Any]] = []
    for kind in (*KINDS, STRICT):
        if kind.unit in kinds:
            rows.append({"kind": kind.name, **_error(_turn(kind, config, prompt, steps, device), truth)})
            print(rows[-1], flush=True)
    by = {row["kind"]: row["rms"] for row in rows}
    for against in ("fused, TF32", STRICT.name):
        for half in ("plain, bf16", "fused, bf16", "fused, fp16"):
            if half in by and against in by:
                times = by[half] / by[against]
                rows.append({"kind": f"{half} over {against}", "times": times, "allowed": ALLOWED, "holds": bool(times <= ALLOWED)})
    return rows


def _turn(kind: Kind, config: FlowConfig, prompt: int, steps: int, device: torch.device) -> NDArray[np.float32]:
    line = Line(kind, config, 1, prompt, steps, device)
    parts = [line.say([piece])[0, : 2 * piece.fresh].cpu().numpy() for piece in line.made.pieces]
    return np.concatenate(parts)


def _error(found: NDArray[np.float32], truth: NDArray[np.float32]) -> dict[str, float]:
    spread = float(truth.std())
    return {"rms": float(np.sqrt(np.mean((found - truth) ** 2))) / spread, "most": float(np.abs(found - truth).max()) / spread}


@functools.cache
def _weights(config: FlowConfig) -> dict[str, Tensor]:
    return flow_weights(config)
