"""Sound that comes while a step waits for its device is received within the step; nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Label, Slot
from tests.stage_kit.support import INPUT, PCM_24K, WAIT_S, Conversation, Probe, serving, until_set

pytestmark = pytest.mark.usefixtures("carried")
RATE = 24_000
PIECE_MS = 20


class Waiting(Probe):
    """Looks at what came in the middle of its steps."""

    def __init__(self) -> None:
        super().__init__(slots=5, input_rate=16_000)
        self.within: list[dict[str, list[str]]] = []
        self.refuses_sound = ""

    def receive(self, slot: Slot, append: Append) -> None:
        if append.samples is not None and slot.session_id == self.refuses_sound:
            raise RuntimeError("this sound went wrong")
        super().receive(slot, append)

    def step(self, slots: list[Slot]) -> None:
        self.busy.set()
        self.gate.wait(WAIT_S)
        self.busy.clear()
        before = {name: len(appends) for name, appends in self.heard.items()}
        self.waiting()
        self.within.append({name: [_kind(each) for each in appends[before.get(name, 0) :]] for name, appends in self.heard.items()})
        super().step(slots)


def _kind(append: Append) -> str:
    assert append.payload is not None
    return str(append.payload.WhichOneof("value"))


async def _sound(talk: Conversation, pieces: int = 1, generation: int = 0, configuration: int = 0) -> None:
    for _ in range(pieces):
        start = talk.positions.get("client", 0) * RATE * PIECE_MS // 1000
        samples = np.full(RATE * PIECE_MS // 1000, 1000, "<i2")
        audio = stage_pb2.Audio(format=PCM_24K, start_sample=start, samples=len(samples), data=samples.tobytes())
        stamps = {"input_generation": generation, "config_generation": configuration}
        await talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT, **stamps)


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
        await _sound(talks["steps"], 2)
        await _sound(talks["sounds"], 3)
        await _sound(talks["behind"])
        await talks["behind"].text("more work")
        await _sound(talks["behind"])
        await _sound(talks["cleared"])
        await _sound(talks["cleared"], generation=1)
        await talks["updated"].send(update=stage_pb2.Update(config_generation=2, config_json='{"new": 1}'))
        await talks["updated"].read("updated")
        await _sound(talks["updated"], configuration=2)
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
        await _sound(bad)
        await _sound(good)
        await client.until_waiting([1, 1])
        engine.gate.set()
        assert await good.texts(1) == ["work"]
        error = (await bad.read("error")).error
        assert error.session_ended
        await good.text("again")
        assert await good.texts(1) == ["again"]
    assert engine.within[0]["good"] == ["audio"]
