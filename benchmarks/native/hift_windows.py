"""HiFT on a later chunk of a turn, plain and fused: its time, and whether both say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.native.card import Card
from benchmarks.native.floors import Floors
from benchmarks.native.precision import exact
from benchmarks.native.timing import graphed, kernels
from minicpmo45.config import Config, HiftConfig
from tests.vocoder_svc.minicpmo45.weights import hift_weights
from vocoder_svc.minicpmo45.continuation import Continuation
from vocoder_svc.minicpmo45.fused_hift import FusedHift
from vocoder_svc.minicpmo45.hift import Hift
from vocoder_svc.minicpmo45.retention import CHUNK_FRAMES
from vocoder_svc.minicpmo45.source import noise_table

KINDS: dict[str, Callable[..., Hift]] = {
    "plain": Hift,
    **{str(dtype).removeprefix("torch."): partial(FusedHift, dtype=dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)},
}
"""The fused ones by their operands' dtype."""
LOST = {"plain": 1e-3, "float32": 1e-3, "float16": 1e-3, "bfloat16": 1e-2}
"""Errors of the waveform that hold."""


def timed(config: HiftConfig, sessions: int, card: Card, device: torch.device) -> Iterator[dict[str, Any]]:
    """One row a kind; errors in parts of the peak against the plain one in fp32. Plain convolutions are timed with TF32."""
    weights = {name: tensor.to(device) for name, tensor in hift_weights(config).items()}
    mel = torch.randn(sessions, CHUNK_FRAMES, config.mels, generator=torch.Generator().manual_seed(2)).to(device)
    slots, truth = list(range(sessions)), None
    for name, kind in KINDS.items():
        if device.type == "cpu" and name == "bfloat16":
            # Triton's interpreter multiplies none
            continue
        sound = Continuation(kind(weights, config), noise_table(config, 0).to(device), sessions)
        with exact():
            for _ in range(2):
                cuts = [sound.cut(slot, CHUNK_FRAMES, False) for slot in slots]
                samples, after = sound.run(slots, cuts, mel)
                sound.commit(slots, cuts, slots, after)
            truth = samples if truth is None else truth
            error = float((samples - truth).abs().max() / truth.abs().max())
        rows = torch.tensor(sound.rows(slots, [sound.cut(slot, CHUNK_FRAMES, False) for slot in slots])).to(device)

        def call(rows: torch.Tensor = rows, sound: Continuation = sound) -> object:
            return sound.forward(rows, mel)

        count, own = kernels(device, call)
        floor = Floors(Config(hift=config), sessions, 0).sounding(sound.kept + CHUNK_FRAMES, "tf32").ms(card)
        row = {"kind": name, "sessions": sessions, "kernels": count, "own_ms": own, "ms": graphed(device, call), "floor_ms": floor}
        yield {**row, "error": error, "holds": error < LOST[name]}
