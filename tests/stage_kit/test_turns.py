"""What an engine's thread does between two steps: how much it receives before the next, and what was put off until nobody is ready."""

from __future__ import annotations

import threading
import time

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Slot, StepFailed, loop
from stage_kit.loop import EngineLoop
from tests.stage_kit.support import WAIT_S, Probe, serving, until_set

pytestmark = pytest.mark.usefixtures("carried")
NAMES = ("one", "two", "three")


class Receiving(Probe):
    """Receives sound within its steps, if it `waits`."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__(slots=4)
        self.waits = waits

    def step(self, slots: list[Slot]) -> None:
        super().step(slots)
        if self.waits:
            done = iter([False, True])
            self.wait(lambda: next(done))


@pytest.mark.parametrize("waits", [True, False])
async def test_who_is_ready_does_not_wait_for_all_others_where_sound_is_received_within_steps(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(loop, "RECEIVE_S", 0.0)
    monkeypatch.setattr(loop, "RECEIVE_SHARE", 0.0)
    engine = Receiving(waits=waits)
    async with serving(engine) as (client, _):
        first, *others = [client.converse(name) for name in ("first", *NAMES)]
        for talk in (first, *others):
            await talk.open()
        engine.gate.clear()
        await first.text("work")
        await until_set(engine.busy)
        for talk in others:
            await talk.text("work")
        await first.text("more")
        await client.until_waiting([1] * 4)
        engine.gate.set()
        assert await first.texts(2) == ["work", "more"]
        for talk in others:
            assert await talk.texts(1) == ["work"]
    # nobody waits for ever: who was received last comes last
    assert engine.batches[1:] == ([[name] for name in (*NAMES, "first")] if waits else [[*NAMES, "first"]])


class Slow(Probe):
    """Its step goes on for a while once the service stops."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = threading.Event()

    def step(self, slots: list[Slot]) -> None:
        super().step(slots)
        self.busy.set()
        self.stopped.wait(WAIT_S)
        time.sleep(0.2)


async def test_a_stopped_service_leaves_no_thread_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on while the interpreter ends, which aborts the process."""
    engine, stop = Slow(), EngineLoop.stop

    def stopping(self: EngineLoop) -> None:
        stop(self)
        engine.stopped.set()

    monkeypatch.setattr(EngineLoop, "stop", stopping)
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.text("work")
        await until_set(engine.busy)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "engine-probe"]
        assert thread.is_alive()
    assert not thread.is_alive()


class PutOff(Probe):
    """Answers when it rests; "bad" goes wrong then."""

    def __init__(self) -> None:
        super().__init__(slots=4, batch=1)
        self.made: list[tuple[Slot, object, str]] = []
        self.rests = 0

    def _make(self, slot: Slot, label: object, text: str) -> None:
        self.made.append((slot, label, text))

    def rest(self) -> None:
        self.rests += bool(self.made)
        while self.made:
            slot, label, text = self.made.pop(0)
            if text == "bad":
                raise StepFailed(slot, "it went wrong")
            slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text=text)), label)  # type: ignore[arg-type]


async def test_what_a_step_put_off_is_done_once_nobody_is_ready_and_its_failure_is_one_sessions() -> None:
    engine = PutOff()
    async with serving(engine) as (client, _):
        talks = [client.converse(name) for name in NAMES]
        for talk in talks:
            await talk.open()
        engine.gate.clear()
        await talks[0].text("work")
        await until_set(engine.busy)
        await talks[1].text("bad")
        await talks[2].text("work")
        await client.until_waiting([0, 1, 1])
        engine.gate.set()
        assert await talks[0].texts(1) == await talks[2].texts(1) == ["work"]
        chunk = (await talks[1].read("chunk")).chunk
        assert chunk.last and chunk.finish.reason == stage_pb2.Finish.REASON_FAILED
    assert engine.batches == [["one"], ["two"], ["three"]] and engine.rests == 2, "the second for who was behind the failure"
