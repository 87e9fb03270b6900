"""A clear never reaches back over a commit."""

from __future__ import annotations

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Label
from stage_kit.pending import Pending, Waiting


def _waiting(position: int, generation: int, payload: stage_pb2.Payload) -> Waiting:
    append = stage_pb2.Append(
        edge="client", position=position, lane=stage_pb2.LANE_INPUT, input_generation=generation, payload=payload
    )  # fmt: skip
    return Waiting(append, Label(), 10, 0.0)


def _audio() -> stage_pb2.Payload:
    return stage_pb2.Payload(audio=stage_pb2.Audio(samples=1, data=b"\0\0"))


@pytest.mark.behaviour("M5")
def test_what_a_queued_commit_wants_outlives_a_clear() -> None:
    pending = Pending()
    commit = stage_pb2.Payload(control=stage_pb2.Control(kind=stage_pb2.Control.KIND_COMMIT))
    for position, payload in enumerate((_audio(), commit, _audio()), start=1):
        pending.push(_waiting(position, 0, payload))
    pending.drop_stale(epoch=0, input_generation=1)
    pending.push(_waiting(4, 1, _audio()))
    kept = [item.append.position for item in iter(pending.pop, None)]
    assert kept == [1, 2, 4]
    assert pending.bytes == 0
