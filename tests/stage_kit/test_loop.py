"""The engine's thread: batches, urgency with fairness, timers."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Card, Engine, Slot
from stage_kit.engine import EngineLost
from stage_kit.loop import EngineLoop
from tests.stage_kit.support import WAIT_S, Probe, serving, until_set


class Urgent(Probe):
    """Sessions named "vip" are always more urgent, and always have work."""

    def __init__(self) -> None:
        super().__init__(slots=4, batch=1)
        self.enough = threading.Event()

    def ready(self, slot: Slot) -> float | None:
        if len(self.heard) < 3 or len(self.batches) >= 60:
            return None
        return 0.0 if slot.session_id == "vip" else 1.0

    def step(self, slots: list[Slot]) -> None:
        self.batches.append([slot.session_id for slot in slots])
        if len(self.batches) == 60:
            self.enough.set()


class Alarm(Engine):
    """Answers each text after 50 ms."""

    def __init__(self) -> None:
        self.card = Card("probe", "alarm", "none", ("text",), ("text",))
        self.turns = 0

    def validate(self, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def open(self, slot: Slot) -> None:
        slot.state = None

    def receive(self, slot: Slot, append: Append) -> None:
        slot.state = (time.monotonic() + 0.05, append.label)

    def ready(self, slot: Slot) -> float | None:
        self.turns += 1
        return 0.0 if slot.state is not None and slot.state[0] <= time.monotonic() else None

    def due(self, slot: Slot) -> float | None:
        return slot.state[0] if slot.state is not None else None

    def step(self, slots: list[Slot]) -> None:
        for slot in slots:
            slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text="ring")), slot.state[1])
            slot.state = None


async def test_the_most_urgent_goes_first_and_nobody_starves() -> None:
    engine = Urgent()
    async with serving(engine, fair_turns_count=5) as (client, _):
        for name in ("vip", "a", "b"):
            talk = client.converse(name)
            await talk.open()
            await talk.text("work")
        await until_set(engine.enough)
    order = [batch[0] for batch in engine.batches][-40:]
    assert order.count("vip") > 20
    for name in ("a", "b"):
        served = [index for index, each in enumerate(order) if each == name]
        assert served and max(b - a for a, b in itertools.pairwise(served)) <= 8


async def test_ready_sessions_share_a_step_up_to_the_batch() -> None:
    engine = Probe(slots=5, batch=3)
    async with serving(engine) as (client, _):
        talks = [client.converse(f"s{index}") for index in range(5)]
        for talk in talks:
            await talk.open()
        engine.gate.clear()
        await talks[0].text("first")
        await until_set(engine.busy)
        for talk in talks:
            await talk.text("word")
        await client.until_waiting([1] * 5)
        pulse = client.stub.Pulse(stage_pb2.PulseRequest(period_ms=50))
        async with asyncio.timeout(WAIT_S):
            while (beat := await pulse.read()).stages[0].engine_age_ms < 100:
                pass
        assert beat.stages[0].free_slots == 0
        engine.gate.set()
        for talk in talks[1:]:
            assert await talk.texts(1) == ["word"]
        async with asyncio.timeout(WAIT_S):
            while (await pulse.read()).stages[0].engine_age_ms:
                pass
        pulse.cancel()
    assert [len(batch) for batch in engine.batches] == [1, 3, 2]


async def test_a_timer_wakes_the_loop_and_it_sleeps_until_then() -> None:
    engine = Alarm()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        started = time.monotonic()
        await talk.text("set")
        assert await talk.texts(1) == ["ring"]
        assert time.monotonic() - started >= 0.05
    assert engine.turns < 20


@pytest.mark.behaviour("L10")
async def test_a_long_step_of_one_stage_delays_no_other() -> None:
    slow, quick = Probe("slow"), Probe("quick")
    async with serving(slow, quick) as (client, _):
        one, two = client.converse(stage="slow"), client.converse(stage="quick")
        await one.open()
        await two.open()
        slow.gate.clear()
        await one.text("long")
        await until_set(slow.busy)
        await two.text("now")
        assert await two.texts(1) == ["now"]
        slow.gate.set()
        assert await one.texts(1) == ["long"]


class Doomed(Probe):
    """The word "boom" takes its device away."""

    def fatal(self, error: Exception) -> bool:
        return "went wrong" in str(error)


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("where", ["step", "open"])
async def test_an_engine_without_its_device_ends_the_process_and_nobody_is_told_that_a_session_failed(where: str) -> None:
    """The supervisor starts another; the gateway finds a replica that died, and places its sessions anew."""
    engine = Doomed()
    async with serving(engine) as (client, service):
        talks = [client.converse(f"s{n}") for n in range(2)]
        for talk in talks:
            await talk.open()
        if where == "step":
            await talks[0].text("boom")
        else:
            engine.refuse_open = RuntimeError("the device went wrong")
            await client.converse("late").begin()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(EngineLost):
                await service.failed()
        assert len(await client.held()) >= len(talks), "it told nobody that a session ended"


async def test_how_long_it_had_nothing_to_do_is_not_its_age() -> None:
    """A pulse that comes between the waking of an idle engine and its turn."""
    engine, ages = Probe(), list[int]()
    async with serving(engine) as (client, service):
        talk = client.converse()
        await talk.open()
        runner = service.hosts["probe"].runner
        assert isinstance(runner, EngineLoop)
        async with asyncio.timeout(WAIT_S):
            while not runner._idle:
                await client.held()
        runner._turned -= 100.0
        rouse = runner._wake.set

        def told() -> None:
            rouse()
            ages.append(runner.age_ms())

        runner._wake.set = told  # type: ignore[method-assign]
        await talk.text("work")
        assert await talk.texts(1) == ["work"]
    assert ages and max(ages) < 50_000
