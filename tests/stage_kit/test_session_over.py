"""An engine that cannot go on with one session says so by type; the others go on."""

from __future__ import annotations

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Append, SessionOver, Slot
from tests.stage_kit.support import Probe, serving

Code = stage_pb2.StageError


class Full(Probe):
    """ "full" ends the session: in `receive` or in a step."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def receive(self, slot: Slot, append: Append) -> None:
        super().receive(slot, append)
        if self.where == "receive" and any(text == "full" for _, text in slot.state):
            raise SessionOver(slot, "no room", code=Code.CODE_LIMIT_EXCEEDED, param="window")

    def step(self, slots: list[Slot]) -> None:
        full = [slot for slot in slots if any(text == "full" for _, text in slot.state)]
        super().step([slot for slot in slots if slot not in full])
        if full:
            raise SessionOver(full[0], "no room", code=Code.CODE_LIMIT_EXCEEDED, param="window")


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("where", ["receive", "step"])
async def test_a_session_that_is_over_ends_by_type_and_alone(where: str) -> None:
    engine = Full(where)
    async with serving(engine) as (client, _):
        bad, good = client.converse("bad"), client.converse("good")
        await bad.open()
        await good.open()
        engine.gate.clear()
        await good.text("first")
        await bad.text("full")
        engine.gate.set()
        error = (await bad.read("error")).error
        assert (error.code, error.param, error.session_ended) == (Code.CODE_LIMIT_EXCEEDED, "window", True)
        assert error.message == "no room; the session is over"
        await bad.read("closed")
        await good.text("second")
        assert await good.texts(2) == ["first", "second"]
