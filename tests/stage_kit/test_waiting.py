"""Sound that comes while a step waits for its device is received within the step; nothing else is."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Label, Slot
from stage_kit.engine import EngineLost
from stage_kit.intake import WITHIN_STEP_MS, Intake
from stage_kit.pending import Waiting as Item
from tests.stage_kit.sounding import RATE, device, sound
from tests.stage_kit.support import PCM_24K, WAIT_S, Conversation, Probe, StageClient, serving, until_set

pytestmark = pytest.mark.usefixtures("carried")


class Waiting(Probe):
    """Looks at what came in the middle of its steps, `most` pieces of sound or all that wait; "boom" raises behind that."""

    def __init__(self, most: int = sys.maxsize) -> None:
        super().__init__(slots=5, input_rate=16_000)
        self.within: list[dict[str, list[str]]] = []
        self.refuses_sound = ""
        self.stepped: list[list[str]] = []
        self.told_failed: list[str] = []
        self.holds = False
        self.most = most
        self._came: list[str] = []

    def receive(self, slot: Slot, append: Append) -> None:
        self._came.append(slot.session_id)
        if append.samples is not None and slot.session_id == self.refuses_sound:
            raise RuntimeError("this sound went wrong")
        super().receive(slot, append)

    def ready(self, slot: Slot) -> float | None:
        return None if self.holds else super().ready(slot)

    def failed(self, slot: Slot, label: Label) -> None:
        self.told_failed.append(slot.session_id)

    def step(self, slots: list[Slot]) -> None:
        self.stepped.append([slot.session_id for slot in slots])
        self.busy.set()
        self.gate.wait(WAIT_S)
        self.busy.clear()
        before = {name: len(appends) for name, appends in self.heard.items()}
        self.wait(device(self._came, self.most))
        self.within.append({name: [_kind(each) for each in appends[before.get(name, 0) :]] for name, appends in self.heard.items()})
        super().step(slots)


def _kind(append: Append) -> str:
    assert append.payload is not None
    return str(append.payload.WhichOneof("value"))


async def test_sound_is_received_within_a_step_and_what_stands_behind_anything_else_is_not() -> None:
    engine = Waiting()
    async with serving(engine) as (client, _):
        names = ("steps", "sounds", "behind", "cleared", "updated")
        talks = {name: client.converse(name) for name in names}
        for talk in talks.values():
            await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await talks["steps"].text("work")
        await until_set(engine.busy)
        await sound(talks["steps"], 2)
        await sound(talks["sounds"], 3)
        await sound(talks["behind"])
        await talks["behind"].text("more work")
        await sound(talks["behind"])
        await sound(talks["cleared"])
        await sound(talks["cleared"], generation=1)
        await talks["updated"].send(update=stage_pb2.Update(config_generation=2, config_json='{"new": 1}'))
        await talks["updated"].read("updated")
        await sound(talks["updated"], configuration=2)
        await client.until_waiting([2, 3, 3, 1, 1])
        engine.gate.set()
        await talks["steps"].texts(1)
        await talks["behind"].texts(1)
    first = {name: kinds for name, kinds in engine.within[0].items() if kinds}
    assert first == {"steps": ["audio"] * 2, "sounds": ["audio"] * 3, "behind": ["audio"]}
    assert [_kind(each) for each in engine.heard["behind"]] == ["audio", "text", "audio"]
    assert len(engine.heard["cleared"]) == 1 and ("cleared", "cleared") in engine.log
    assert len(engine.heard["updated"]) == 1 and ("configured", "updated") in engine.log
    assert [each.position for each in engine.heard["sounds"]] == [1, 2, 3]


async def test_sound_that_goes_wrong_within_a_step_harms_its_own_session_alone() -> None:
    engine = Waiting()
    engine.refuses_sound = "bad"
    async with serving(engine, step_failures_count=1) as (client, _):
        good, bad = client.converse("good"), client.converse("bad")
        for talk in (good, bad):
            await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await good.text("work")
        await until_set(engine.busy)
        await sound(bad)
        await sound(good)
        await client.until_waiting([1, 1])
        engine.gate.set()
        assert await good.texts(1) == ["work"]
        error = (await bad.read("error")).error
        assert error.session_ended
        await good.text("again")
        assert await good.texts(1) == ["again"]
    assert engine.within[0]["good"] == ["audio"]


async def _together(engine: Waiting, client: StageClient, bad: Conversation, *others: Conversation) -> None:
    """They are in a step, which waits and then goes wrong for the first of them."""
    engine.gate.clear()
    engine.holds = bool(others)
    await bad.text("boom")
    for talk in others[:-1]:
        await talk.text("work")
    if others:
        await client.until_waiting([0] * len(await client.held()))
        engine.holds = False
        await others[-1].text("work")
    await until_set(engine.busy)


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("crowd", [True, False])
async def test_a_session_that_ends_within_its_own_step_is_neither_stepped_nor_failed_again(crowd: bool) -> None:
    """Its sound goes wrong while the step works for it, and then the step does: alone, or with others, who are stepped one by one."""
    engine = Waiting()
    engine.refuses_sound = "bad"
    async with serving(engine, step_failures_count=1) as (client, _):
        bad, good, other = (client.converse(name) for name in ("bad", "good", "other"))
        for talk in (bad, good, other):
            await talk.open(input_format=PCM_24K)
        await _together(engine, client, bad, good, other) if crowd else await _together(engine, client, bad)
        await sound(bad)
        await client.until_waiting([1, 0, 0])
        engine.gate.set()
        assert (await bad.read("error")).error.session_ended
        await bad.read("closed")
        for talk in (good, other):
            if not crowd:
                await talk.text("work")
            assert await talk.texts(1) == ["work"]
        assert not await bad.ended()
    assert engine.stepped.count(["bad"]) == (not crowd) and engine.told_failed == ["bad"]
    assert engine.log.count(("close", "bad")) == 1


async def test_a_step_that_fails_is_charged_to_what_it_worked_on() -> None:
    """Sound that was received within it belongs to no response."""
    engine = Waiting()
    async with serving(engine) as (client, _):
        talk = client.converse("one")
        await talk.open(input_format=PCM_24K)
        await _together(engine, client, talk)
        await sound(talk)
        await client.until_waiting([1])
        engine.gate.set()
        chunk = (await talk.read("chunk")).chunk
        assert chunk.last and chunk.finish.reason == stage_pb2.Finish.REASON_FAILED and chunk.label.response_id == "r"
    assert engine.within[0] == {"one": ["audio"]}


class Doomed(Waiting):
    """Sound that goes wrong takes its device away."""

    def fatal(self, error: Exception) -> bool:
        return "sound went wrong" in str(error)


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("crowd", [True, False])
async def test_a_device_that_is_lost_within_a_step_ends_the_process(crowd: bool) -> None:
    """The step itself would go wrong behind it in a way that passes."""
    engine = Doomed()
    engine.refuses_sound = "s0"
    async with serving(engine) as (client, service):
        talks = [client.converse(f"s{n}") for n in range(2)]
        for talk in talks:
            await talk.open(input_format=PCM_24K)
        await _together(engine, client, *talks[: 1 + crowd])
        await sound(talks[0])
        await client.until_waiting([1, 0])
        engine.gate.set()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(EngineLost):
                await service.failed()
        assert len(await client.held()) == 2, "it told nobody that a session ended"
    assert not engine.told_failed and len(engine.stepped) == 1


async def test_an_update_that_comes_as_sound_is_taken_is_not_made_known_within_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sound is of the update already, which comes behind it, between the look at the sound and its receipt."""
    engine, looked, updated = Waiting(), threading.Event(), threading.Event()
    whole = Intake.is_plain

    def is_plain(self: Intake, item: Item) -> bool:
        found = whole(self, item)
        looked.set()
        assert updated.wait(WAIT_S)
        return found

    async with serving(engine) as (client, _):
        talk = client.converse("one")
        await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await talk.text("work")
        await until_set(engine.busy)
        await sound(talk, configuration=2)
        await client.until_waiting([1])
        monkeypatch.setattr(Intake, "is_plain", is_plain)
        engine.gate.set()
        await until_set(looked)
        await talk.send(update=stage_pb2.Update(config_generation=2, config_json='{"new": 1}'))
        await talk.read("updated")
        updated.set()
        assert await talk.texts(1) == ["work"]
        assert engine.within == [{"one": ["audio"]}] and ("configured", "one") not in engine.log
        await sound(talk, configuration=2)
        await talk.text("work", config_generation=2)
        assert await talk.texts(1) == ["work"]
        assert engine.log.count(("configured", "one")) == 1 and engine.configs[-1][1] == {"new": 1}


async def test_what_found_no_room_is_asked_for_behind_the_step() -> None:
    engine = Waiting(most=2)
    async with serving(engine, pending_append_bytes=5000) as (client, _):
        talk = client.converse("one")
        await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await talk.text("work")
        await until_set(engine.busy)
        await sound(talk, 6)
        assert (await talk.read("error")).error.param == "pending_append_bytes"
        waiting = (await client.held())[0].waiting_appends
        engine.gate.set()
        gap = (await talk.read("gap")).gap
        assert (gap.edge, gap.watermark) == ("client", waiting) and 3 < waiting < 6
        assert await talk.texts(1) == ["work"]
        talk.positions["client"] = waiting
        await sound(talk, 6 - waiting)
        await talk.text("work")
        assert await talk.texts(1) == ["work"]
    assert engine.within[0] == {"one": ["audio"] * 2}
    assert [each.position for each in engine.heard["one"] if each.samples is not None] == [1, 2, 3, 4, 5, 6]


async def test_long_sound_and_what_stands_behind_it_wait_for_the_steps_end() -> None:
    engine, longest = Waiting(), RATE * WITHIN_STEP_MS // 1000
    async with serving(engine) as (client, _):
        steps, long, longer = (client.converse(name) for name in ("steps", "long", "longer"))
        for talk in (steps, long, longer):
            await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await steps.text("work")
        await until_set(engine.busy)
        for talk, count in ((long, longest), (longer, longest + 1)):
            await sound(talk)
            await sound(talk, count=count)
            await sound(talk)
        await client.until_waiting([0, 3, 3])
        engine.gate.set()
        assert await steps.texts(1) == ["work"]
        await client.until_waiting([0, 0, 0])
    assert engine.within == [{"steps": [], "long": ["audio"] * 3, "longer": ["audio"]}]
    assert [each.position for each in engine.heard["longer"]] == [1, 2, 3]


class Long(Probe):
    """Its device is done when so many pieces of sound were received."""

    def __init__(self, pieces: int) -> None:
        super().__init__(input_rate=16_000)
        self.pieces = pieces
        self.within: list[str] = []

    def step(self, slots: list[Slot]) -> None:
        if not self.within:
            self.busy.set()
            self.wait(lambda: sum(each.samples is not None for each in self.heard["one"]) == self.pieces)
            self.within = [_kind(each) for each in self.heard["one"]]
        super().step(slots)


async def test_sound_is_received_until_the_device_is_done_and_what_came_behind_it_at_once_after() -> None:
    engine = Long(3)
    async with serving(engine) as (client, _):
        one, other = client.converse("one"), client.converse("other")
        for talk in (one, other):
            await talk.open(input_format=PCM_24K)
        await one.text("work")
        await until_set(engine.busy)
        await other.text("behind")
        for _ in range(2):
            await sound(one)
            await client.until_waiting([0, 1])
        await sound(one)
        assert await one.texts(1) == ["work"]
        assert await other.texts(1) == ["behind"]
    assert engine.within == ["text", "audio", "audio", "audio"] and engine.batches == [["one"], ["other"]]


async def test_a_session_without_room_for_outputs_gets_no_sound_within_a_step() -> None:
    engine = Waiting()
    async with serving(engine, kept_output_bytes=3000) as (client, _):
        full, steps = client.converse("full"), client.converse("steps")
        for talk in (full, steps):
            await talk.open(input_format=PCM_24K)
        await full.text("fill 4")
        chunks = [(await full.read("chunk")).chunk for _ in range(4)]
        engine.gate.clear()
        await steps.text("work")
        await until_set(engine.busy)
        await sound(full)
        await client.until_waiting([1, 0])
        engine.gate.set()
        assert await steps.texts(1) == ["work"]
        assert (await client.held("full"))[0].waiting_appends == 1
        await full.send(ack=stage_pb2.Ack(position=chunks[-1].position))
        await client.until_waiting([0, 0])
        await steps.text("again")
        assert await steps.texts(1) == ["again"]
    assert engine.within[1].get("full") == [] and [_kind(each) for each in engine.heard["full"]] == ["text", "audio"]


async def test_a_session_that_is_closed_or_taken_over_within_a_step() -> None:
    """The closed one gets nothing more; the other's sound is received once, whoever sends it again."""
    engine = Waiting()
    async with serving(engine) as (client, _):
        closed, taken = client.converse("closed"), client.converse("taken")
        for talk in (closed, taken):
            await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        await closed.text("work")
        await until_set(engine.busy)
        for talk in (closed, taken):
            await sound(talk, 2)
        await client.until_waiting([2, 2])
        await closed.close()
        over = client.converse("taken", attachment=2, holder="g2")
        await over.attach()
        await sound(over, 3)
        await over.cancel(0, 1)
        await over.read("cancelled")
        await client.until_waiting([3, 0])
        engine.gate.set()
        await closed.read("closed")
        await over.text("work", epoch=1)
        assert await over.texts(1) == ["work"]
    assert engine.within[0] == {"closed": [], "taken": ["audio"] * 3}
    assert [each.position for each in engine.heard["taken"] if each.samples is not None] == [1, 2, 3]
    assert not any(message.WhichOneof("event") == "chunk" for message in closed.seen)
    assert engine.log.count(("close", "closed")) == 1 and engine.log.count(("cancelled", "taken")) == 1
