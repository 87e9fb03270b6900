"""An engine that looks ahead hears of a failure in a step of others: who failed is told, and nobody else."""

from __future__ import annotations

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Label, Slot, StepFailed
from tests.stage_kit.support import Probe, serving, until_set

FAILED = stage_pb2.Finish.REASON_FAILED


class Late(Probe):
    """Finds out that a session's word "bad" went wrong when it steps another one, or when nobody is left who said it."""

    def __init__(self) -> None:
        super().__init__()
        self._bad: Slot | None = None

    def step(self, slots: list[Slot]) -> None:
        bad = next((slot for slot in slots if slot.state[0][1] == "bad"), None)
        if bad is None:
            super().step(slots)
            if self._bad is not None:
                slot, self._bad = self._bad, None
                raise StepFailed(slot, "it went wrong a step ago")
            return
        bad.working, self._bad = bad.state[0][0], bad
        bad.state.clear()


@pytest.mark.behaviour("S2")
async def test_who_failed_a_step_ago_is_told_and_nobody_else() -> None:
    engine = Late()
    async with serving(engine) as (client, _):
        bad, good, other = client.converse("bad"), client.converse("good"), client.converse("other")
        for talk in (bad, good, other):
            await talk.open()
        await bad.text("bad", response="lost")
        await client.until_waiting([0, 0, 0])
        await good.text("one")
        chunk = (await bad.read("chunk")).chunk
        assert chunk.last and chunk.finish.reason == FAILED and Label.of(chunk.label).response_id == "lost"
        assert await good.texts(1) == ["one"]
        for talk, word in ((good, "two"), (other, "three")):
            await talk.text(word)
            assert await talk.texts(1) == [word]
        assert engine.batches.count(["good"]) == 2, "nobody was stepped again"


async def test_a_failure_of_one_that_has_left_is_nobodys() -> None:
    engine = Late()
    async with serving(engine) as (client, _):
        bad, good = client.converse("bad"), client.converse("good")
        for talk in (bad, good):
            await talk.open()
        engine.gate.clear()
        await bad.text("bad", response="lost")
        await client.until_waiting([0, 0])
        await good.text("one")
        await until_set(engine.busy)
        await bad.close()
        engine.gate.set()
        await bad.read("closed")
        assert await good.texts(1) == ["one"]
        await good.text("two")
        assert await good.texts(1) == ["two"]
