"""Sound for an engine, and a device that is done after so much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit import Label
from tests.stage_kit.support import INPUT, PCM_24K, Conversation

RATE = 24_000
PIECE = RATE * 20 // 1000
"""Samples of one, as a rule."""


def device(came: Sequence[str], most: int) -> Callable[[], bool]:
    """Is done when so many more came, or none since it was asked before."""
    before, known = len(came), -1

    def done() -> bool:
        nonlocal known
        quiet, known = len(came) == known, len(came)
        return quiet or known - before >= most

    return done


async def sound(talk: Conversation, pieces: int = 1, generation: int = 0, configuration: int = 0, count: int = PIECE) -> None:
    """The next pieces of the session's sound, `count` samples each."""
    for _ in range(pieces):
        start = talk.positions.get("client", 0) * PIECE
        samples = np.full(count, 1000, "<i2")
        audio = stage_pb2.Audio(format=PCM_24K, start_sample=start, samples=count, data=samples.tobytes())
        stamps = {"input_generation": generation, "config_generation": configuration}
        await talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT, **stamps)
