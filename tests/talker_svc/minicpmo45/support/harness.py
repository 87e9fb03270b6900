"""The engine over the tiny talker, without a checkpoint, and a slot that records what it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from parley_stage.v1 import stage_pb2

from minicpmo45.config import tiny
from stage_kit import Append, Label, Slot
from stage_kit.outputs import Output
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings

LLM_DIM = tiny().talker.llm_dim


def engine(path: Path, **settings: Any) -> MiniCpmTalkerEngine:
    """Loaded; its free pages are NaN."""
    made = MiniCpmTalkerEngine(MiniCpmTalkerSettings(checkpoint=path, **settings))
    made.load()
    made._pool._poison = True
    made._pool.storage[:, 1:] = torch.nan
    return made


def payload(tokens: int, seed: int, *, turn_end: bool = False, dim: int = LLM_DIM) -> stage_pb2.Payload:
    """A thought of seeded words."""
    draw = np.random.default_rng(seed)
    hidden = draw.standard_normal((tokens, dim)).astype("<f4")
    tensor = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=hidden.shape, data=hidden.tobytes())
    ids = draw.integers(0, 151_643, tokens).tolist()
    return stage_pb2.Payload(thought=stage_pb2.Thought(token_ids=ids, hidden=tensor, turn_end=turn_end))


class Talk:
    """A session at the engine: a real slot whose outputs are kept."""

    def __init__(self, engine: MiniCpmTalkerEngine, name: str = "session", **config: Any) -> None:
        self.engine = engine
        self.outputs: list[Output] = []
        self.slot = Slot(name, engine.validate(config), self.outputs.append, lambda: None, 1 << 30, None)
        self._position = 0
        engine.open(self.slot)

    def say(self, label: Label, thought: stage_pb2.Payload | None, *, last: bool = False) -> None:
        self._position += 1
        self.engine.receive(self.slot, Append("thinker", self._position, label, last, thought))

    def cancel(self) -> None:
        self.slot.epoch += 1
        self.engine.cancelled(self.slot)

    def codes(self, label: Label) -> list[list[int]]:
        """Codes of each output."""
        return [list(each.payload.codes.codes) for each in self.outputs if each.label == label and each.payload is not None]

    def ends(self, label: Label) -> list[stage_pb2.Finish]:
        """What each `last` says."""
        return [each.finish for each in self.outputs if each.label == label and each.last and each.finish is not None]


def run(engine: MiniCpmTalkerEngine, *talks: Talk, steps: int = 100_000) -> int:
    """Steps all ready sessions together until none is; the number of steps."""
    for step in range(steps):
        ready = [talk.slot for talk in talks if engine.ready(talk.slot) is not None]
        if not ready:
            return step
        engine.step(ready)
    return steps
