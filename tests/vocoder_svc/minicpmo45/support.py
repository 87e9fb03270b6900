"""Sessions on the tiny flow: what a test needs to run pieces through it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from minicpmo45.config import FlowConfig
from tests.vocoder_svc.minicpmo45.weights import FLOW, drawn, flow_weights
from vocoder_svc.minicpmo45.arena import SCRATCH, Arena
from vocoder_svc.minicpmo45.caches import FlowCaches, Piece, Prompt
from vocoder_svc.minicpmo45.flow import Flow, Kernels
from vocoder_svc.minicpmo45.retention import Retention, Span

CHUNK = 25
NOISE = drawn("noise", (80, 1000))
SIZES = (28, 8, 28, 28, 16, 28, 28, 28, 28, 28, 28, 7)


class Fixture:
    """A voice and twelve chunks, as the fixtures were made of them."""

    def __init__(self, frames: int) -> None:
        rng = np.random.default_rng(frames)
        self.codes = rng.integers(0, 6561, frames // 2)
        self.mel = rng.standard_normal((frames, 80)).astype(np.float32)
        self.speaker = rng.standard_normal(192).astype(np.float32)
        chunks = [rng.integers(0, 6561, 28) for _ in SIZES]
        self.pieces = [piece(chunk[:size], final=size == SIZES[-1]) for chunk, size in zip(chunks, SIZES, strict=True)]


class Bench:
    """A flow whose unwritten memory is NaN, so that whatever is read without having been written shows."""

    def __init__(
        self,
        retention: Retention,
        slots: int,
        voices: Sequence[int],
        steps: int = 3,
        config: FlowConfig = FLOW,
        kernels: Kernels = "plain",
        device: str = "cpu",
    ) -> None:
        longest = max(voices)
        weights = {name: tensor.to(device) for name, tensor in flow_weights(config).items()}
        self.flow = Flow(weights, config, steps, longest + 150, NOISE, kernels)
        self.arena = Arena(config, steps, slots * retention.ring_frames + sum(voices), torch.float32, device)
        for tensor in (self.arena.dit, self.arena.mel, self.arena.token):
            tensor.fill_(torch.nan)
        self.caches = FlowCaches(self.flow, self.arena, retention, slots)
        self.prompts: list[Prompt] = []
        start = SCRATCH + slots * retention.ring_frames
        for frames in voices:
            self.prompts.append(self.voice(Fixture(frames), Span(start, frames), torch.full((3,), 4218)))
            start += frames

    def voice(self, made: Fixture, span: Span, ahead: torch.Tensor) -> Prompt:
        return self.caches.set_up(span, torch.from_numpy(made.codes), ahead, torch.from_numpy(made.mel), torch.from_numpy(made.speaker))

    def say(self, slots: Sequence[int], pieces: Sequence[Piece]) -> list[NDArray[np.float32]]:
        """Runs and commits; each slot's own frames."""
        mel, after = self.caches.run(slots, pieces, CHUNK)
        self.caches.commit(slots, pieces, range(len(slots)), after)
        return [mel[row, : 2 * each.fresh].cpu().numpy() for row, each in enumerate(pieces)]


def piece(codes: Sequence[int] | NDArray[np.int64], *, final: bool = False) -> Piece:
    return Piece(tuple(int(code) for code in codes), len(codes) - (0 if final else 3), final)
