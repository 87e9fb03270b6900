"""Units that were begun and heard while the device worked for others: what comes between that and their own step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stage_kit import Label, SessionOver
from tests.thinker_svc.minicpmo45.clients import Client, run
from tests.thinker_svc.minicpmo45.thinking import told
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.session import Kind
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

UNITS = [["listen"], ["speak", 65, 66, "chunk_eos"], ["speak", 67, "turn_eos", "chunk_eos"], ["listen"], ["listen"]]
LISTENED = ["listen", "unit_done"]


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> MiniCpmThinkerEngine:
    torch.set_num_threads(1)
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps({"units": UNITS}))
    made = MiniCpmThinkerEngine(MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, slots=3, window_tokens=1024, script=script, input_s=4))
    made.load()
    return made


class Crowd:
    """Sessions at the engine. One of them, `busy`, is stepped alone while something happens to the others."""

    def __init__(self, engine: MiniCpmThinkerEngine) -> None:
        self.engine = engine
        self.clients: list[Client] = []
        self.heard: list[list[int]] = []
        """Rows of each call to the encoder."""
        self.busy = self.open("busy")

    def open(self, name: str = "one", **config: Any) -> Client:
        client = Client(self.engine, name, **config)
        self.clients.append(client)
        run(client)
        return client

    def meanwhile(self, happens: Callable[[], object]) -> None:
        """It happens while the device works for `busy`."""
        came: list[bool] = []

        def once(_: object) -> None:
            if not came:
                came.append(True)
                happens()

        self.engine.on_wait(once)
        self.busy.units(1)
        self.engine.step([self.busy.slot])
        assert came
        run(self.busy)

    def ahead(self, client: Client, ms: int) -> None:
        """Sound that completes a unit of a session, which is heard ahead of its step."""
        told, length = len(client.outputs), client.slot.state.table.length
        self.meanwhile(lambda: client.sound(ms))
        unit = client.slot.state.unit
        assert unit is not None and unit.audio is not None and not client.slot.state.gather.waiting
        assert len(client.outputs) == told and client.slot.state.table.length == length


@pytest.fixture
def crowd(engine: MiniCpmThinkerEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    made = Crowd(engine)
    whole = engine._perception.hear

    def hear(slots: Any, *rest: Any) -> Tensor:
        made.heard.append(list(slots))
        return whole(slots, *rest)

    monkeypatch.setattr(engine._perception, "hear", hear)
    yield made
    engine.on_wait(lambda _: None)
    for client in made.clients:
        engine.close(client.slot)
    assert engine._pool.held == 0 and engine._pool.free == engine._pool.pages - 1


def test_a_unit_is_heard_once_and_says_the_same(crowd: Crowd) -> None:
    ahead, plain = crowd.open("same!"), crowd.open("same?")
    for index in range(3):
        ms = 1000 + 30 * (not index)
        crowd.ahead(ahead, ms)
        run(ahead)
        plain.sound(ms)
        run(plain)
    row = ahead.slot.state.row
    assert sum(row in rows for rows in crowd.heard) == 3
    assert ahead.kinds() == plain.kinds() and "speak" in ahead.kinds() and told(ahead.outputs) == told(plain.outputs)


@pytest.mark.behaviour("N45")
def test_pictures_go_to_the_unit_of_their_time(crowd: Crowd) -> None:
    """Two were fed early, two wait: the unit is full. One that is late belongs to it, and four that come for the next have room there."""
    client = crowd.open()
    client.sound(900)
    for _ in range(2):
        client.frame(800)
    run(client)
    assert client.slot.state.unit.pictures == 2
    client.frame(850)
    for frame in client.slot.state.camera.frames:
        frame.decoded.exception()
    crowd.ahead(client, 130)
    client.frame(1_020)
    for _ in range(4):
        client.frame(1_100)
    assert not client.errors()
    client.frame(1_010)
    client.frame(1_200)
    assert [error.param for error in client.errors()] == ["camera[9].frames", "camera[10].frames"]
    run(client)
    client.sound(1_000)
    run(client)
    assert [span.length for span in client.slot.state.window.spans] == [4 * 66 + 1 + 10 + 2, 4 * 66 + 1 + 10 + 5]
    client.frame(1_100)
    assert client.errors()[-1].param == "camera[11].t_ms", "its unit is in the context"


def test_a_picture_that_cannot_be_read_keeps_no_unit(crowd: Crowd) -> None:
    """It came behind the sound: the unit that was heard waits until it is known to be none."""
    client = crowd.open()
    crowd.ahead(client, 1_030)
    client.frame(1_000, b"no picture")
    client.frame(1_010)
    run(client)
    assert [error.param for error in client.errors()] == ["camera[1].data"]
    assert client.receipts() == [1030] and client.slot.state.window.spans[0].length == 1 + 66 + 10 + 2


def test_what_follows_a_unit_is_not_closed_before_that_was_decided(crowd: Crowd) -> None:
    """It may open a turn, or end one; and more sound is on its way."""
    client = crowd.open()
    crowd.ahead(client, 1_100)
    client.close_unit(2_030)
    run(client)
    assert client.receipts() == [1030] and client.slot.state.gather.start_ms == 1_030
    client.sound(930)
    run(client)
    assert client.slot.state.turn_label is not None
    crowd.ahead(client, 1_300)
    client.go_on(4_030, Label(0, 1, "t1"))
    run(client)
    assert client.receipts() == [1030, 1000, 1000] and client.slot.state.turn_label is None
    client.close_unit(4_030)
    run(client)
    assert client.receipts() == [1030, 1000, 1000, 300] and not client.errors()


def test_a_cancel_makes_it_listen_in_the_new_epoch(crowd: Crowd) -> None:
    client = crowd.open()
    client.units(2)
    run(client)
    assert client.slot.state.turn_label is not None
    crowd.ahead(client, 1_000)
    client.cancel()
    run(client)
    assert client.kinds()[-2:] == LISTENED
    decision = client.outputs[-3].payload
    assert decision is not None and decision.decision.reason == "forced"
    assert [output.label.epoch for output in client.outputs[-3:]] == [1] * 3 and client.slot.state.turn_label is None


def test_a_clear_leaves_what_was_heard_and_nothing_else(crowd: Crowd) -> None:
    client = crowd.open()
    crowd.ahead(client, 2_000)
    client.engine.cleared(client.slot)
    assert client.slot.state.next() is Kind.UNIT
    run(client)
    client.sound(1_000)
    run(client)
    assert client.receipts() == [1030, 1000]
    notes = [output.payload.unit_note for output in client.outputs if output.payload is not None and output.kind == "unit_note"]
    assert [(note.start_ms, note.end_ms) for note in notes] == [(0, 1_030), (2_000, 3_000)]


def test_silence_behind_a_unit_that_was_closed_early_is_passed_over(crowd: Crowd) -> None:
    """It was closed while the device worked: `close` comes between steps, the unit is heard in the next one."""
    client = crowd.open()
    client.sound(600)
    client.close_unit(1_600)
    run(client)
    client.sound(300)
    client.skip_silence(600, 800)
    crowd.ahead(client, 900)
    run(client)
    assert client.receipts() == [600, 1000] and client.slot.state.gather.start_ms == 1_800


def test_one_that_cannot_be_heard_harms_nobody_else(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were to be heard with it are heard in their own steps."""
    bad, good = crowd.open("bad"), crowd.open("good!")
    row, whole = bad.slot.state.row, crowd.engine._perception.hear

    def hear(slots: Any, *rest: Any) -> Tensor:
        if row in slots:
            raise torch.OutOfMemoryError("no memory")
        return whole(slots, *rest)

    monkeypatch.setattr(crowd.engine._perception, "hear", hear)

    def sound() -> None:
        for client in (bad, good):
            client.sound(1_030)

    crowd.meanwhile(sound)
    assert crowd.busy.kinds() == LISTENED and bad.slot.state.unit.audio is None
    run(good)
    assert good.kinds() == LISTENED
    with pytest.raises(torch.OutOfMemoryError):
        crowd.engine.step([bad.slot])
    monkeypatch.undo()
    run(bad)
    assert bad.kinds() == LISTENED and bad.receipts() == [1030]


def test_a_session_that_ends_in_the_middle_of_its_own_step_harms_nobody(crowd: Crowd) -> None:
    """More sound came than may wait; the kit ends it behind the step."""
    ends, other = crowd.open("ends"), crowd.open("another")
    for client in (ends, other):
        client.units(1)
    over: list[SessionOver] = []

    def floods(_: object) -> None:
        if not over:
            with pytest.raises(SessionOver) as caught:
                ends.sound(5_000)
            over.append(caught.value)
            other.sound(1_000)

    crowd.engine.on_wait(floods)
    crowd.engine.step([ends.slot, other.slot])
    run(other)
    assert over[0].param == "input_s" and ends.kinds() == LISTENED and ends.slot.state.unit is None
    assert other.receipts() == [1030, 1000]


def test_a_session_left_out_of_a_step_is_heard_in_it(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pictures are too much beside those of another: its unit came before, and it is stepped next."""
    from thinker_svc.minicpmo45 import stepper

    first, second = crowd.open("first"), crowd.open("second!")
    monkeypatch.setattr(stepper, "MOST_TOKENS", 100)
    for client in (first, second):
        client.sound(900)
        client.frame(850)
        for frame in client.slot.state.camera.frames:
            frame.decoded.exception()
        client.sound(130)
    came: list[bool] = []

    def once(_: object) -> None:
        if not came:
            came.append(True)
            second.sound(1_000)

    crowd.engine.on_wait(once)
    crowd.engine.step([first.slot, second.slot])
    assert first.slot.state.number == 1 and second.slot.state.number == 0 and second.slot.state.unit.audio is not None
    run(first, second)
    assert second.receipts() == [1030, 1000] and sum(second.slot.state.row in rows for rows in crowd.heard) == 2
    assert second.slot.state.window.spans[0].length == first.slot.state.window.spans[0].length


def test_units_of_a_log_are_heard_ahead_and_fed_as_they_were(crowd: Crowd) -> None:
    whole = crowd.open("same")
    whole.units(3)
    run(whole)
    log = told(whole.outputs)
    again = crowd.open("same", unit_log=log)
    crowd.ahead(again, 1_030)
    again.close_unit(2_030)
    for _ in range(2):
        run(again)
        crowd.ahead(again, 1_000)
    assert again.slot.state.unit.noted is not None
    again.close_unit(4_030)
    run(again)
    assert not again.receipts() and again.slot.state.number == 3
    assert again.slot.state.table.length == whole.slot.state.table.length
    for client in (whole, again):
        crowd.ahead(client, 1_000)
        run(client)
    assert told(again.outputs) == told(whole.outputs)[3:]
