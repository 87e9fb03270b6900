"""Sound that is received within a step comes in small pieces, of one session after the other, and the device is asked before each."""

from __future__ import annotations

import pytest

from stage_kit import Append, Slot
from tests.stage_kit.sounding import device, sound
from tests.stage_kit.support import PCM_24K, WAIT_S, Probe, serving, until_set

pytestmark = pytest.mark.usefixtures("carried")


class Turns(Probe):
    """Its first step waits for devices, one after the other: each is done when so many pieces of sound came."""

    def __init__(self, *devices: int) -> None:
        super().__init__(input_rate=16_000)
        self.devices = devices
        self.order: list[str] = []
        """Whose sound was received."""
        self.within: list[list[str]] = []

    def receive(self, slot: Slot, append: Append) -> None:
        if append.samples is not None:
            self.order.append(slot.session_id)
        super().receive(slot, append)

    def step(self, slots: list[Slot]) -> None:
        self.busy.set()
        self.gate.wait(WAIT_S)
        for pieces in self.devices if not self.within else ():
            before = len(self.order)
            self.wait(device(self.order, pieces))
            self.within.append(self.order[before:])
        super().step(slots)


async def _flooded(engine: Turns, pieces: int) -> None:
    """Three sessions' sound waits when the step of another begins to wait."""
    async with serving(engine) as (client, _):
        steps, *talks = [client.converse(name) for name in ("steps", *"abc")]
        for talk in (steps, *talks):
            await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await steps.text("work")
        await until_set(engine.busy)
        for talk in talks:
            await sound(talk, pieces)
        await client.until_waiting([0, *[pieces] * 3])
        engine.gate.set()
        assert await steps.texts(1) == ["work"]
        await client.until_waiting([0] * 4)
    assert all(sum(each.samples is not None for each in engine.heard[name]) == pieces for name in "abc")


async def test_what_the_device_answered_waits_for_no_sound() -> None:
    """Whatever else waits is received behind the step; of a device that is done as the step begins to wait, all is."""
    engine = Turns(1, 0, 7)
    await _flooded(engine, 100)
    assert [len(each) for each in engine.within] == [1, 0, 7]


async def test_within_a_step_every_session_has_its_turn() -> None:
    """The next wait goes on with those whose turn did not come."""
    engine = Turns(5, 2, 4)
    await _flooded(engine, 10)
    assert ["".join(each) for each in engine.within] == ["abcab", "ca", "bcab"]
