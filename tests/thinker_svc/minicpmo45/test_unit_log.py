"""A stage that is placed anew is fed what its units were: real sound, free decisions, against the session that was lost."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from stage_kit import SessionOver
from tests.thinker_svc.minicpmo45.clients import Client, run
from tests.thinker_svc.minicpmo45.language_support import CHUNK_EOS, LISTEN, TURN_EOS
from tests.thinker_svc.minicpmo45.thinking import states, told
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.note import MOST_BYTES, Note, packed
from thinker_svc.minicpmo45.sampler import HISTORY
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

FREE = [None] * 20
UNITS = [["listen"], FREE, [None, None, None, "turn_eos"], ["listen"], FREE, FREE, [None, None, "turn_eos"], *[FREE] * 3]
"""Random weights find no end: where a turn begins and ends is said, all else is free."""
SOUND = 0.1 * np.random.default_rng(11).standard_normal(12_030 * 16).astype(np.float32)
GREEDY = {"greedy": True}
Opened = Callable[..., Client]


def _engine(checkpoint: Path, folder: Path, **settings: Any) -> MiniCpmThinkerEngine:
    torch.set_num_threads(1)
    script = folder / "script.json"
    script.write_text(json.dumps({"units": UNITS, "repeat": False}))
    engine = MiniCpmThinkerEngine(MiniCpmThinkerSettings(checkpoint=checkpoint, script=script, input_s=4, **settings))
    engine.load()
    return engine


@pytest.fixture(scope="module")
def house(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[MiniCpmThinkerEngine, MiniCpmThinkerEngine]:
    """The stage that is lost, and the one that takes its place."""
    folder = tmp_path_factory.mktemp("script")
    return _engine(tiny_checkpoint, folder, slots=3, window_tokens=1024), _engine(tiny_checkpoint, folder, slots=3, window_tokens=1024)


@pytest.fixture(scope="module")
def first(house: tuple[MiniCpmThinkerEngine, MiniCpmThinkerEngine]) -> Iterator[Client]:
    """A session of seven units and two turns, that is lost."""
    client = Client(house[0], "same", **GREEDY)
    _until(client, 7_030)
    yield client
    house[0].close(client.slot)


@pytest.fixture(scope="module")
def log(first: Client) -> list[str]:
    """Its notes."""
    return told(first.outputs)


@pytest.fixture
def opened(house: tuple[MiniCpmThinkerEngine, MiniCpmThinkerEngine], first: Client) -> Iterator[Opened]:
    made: list[Client] = []

    def begin(place: int = 0, name: str = "same", **config: Any) -> Client:
        made.append(Client(house[place], name, **config))
        return made[-1]

    yield begin
    for client in made:
        client.engine.close(client.slot)
    assert [engine._pool.held for engine in house] == [first.slot.state.table.page_count, 0]


def _hear(client: Client, end_ms: int, sound: np.ndarray = SOUND) -> None:
    """The client's sound up to there."""
    client.sound(end_ms - client._ms, sound[client._ms * 16 : end_ms * 16])
    run(client)


def _until(client: Client, end_ms: int) -> None:
    while client._ms < end_ms:
        _hear(client, min(end_ms, 1030 if client._ms == 0 else client._ms + 1000))


def _context(client: Client) -> Tensor:
    """Keys and values of all that the session holds: [layers, 2, kv_heads, tokens, head_dim]."""
    table, storage = client.slot.state.table, client.slot.state.table.pool.storage
    parts = [storage[:, page, :, :, start:stop] for page, start, stop in zip(table.pages, table.starts, table.stops, strict=True)]
    return torch.cat(parts, 3)


def _history(client: Client) -> list[int]:
    sampler, row = client.engine._model.sampler, client.slot.state.row
    count = int(sampler._drawn[row])
    return sampler._history[row, : min(count, HISTORY)].tolist()


def _apart(ours: Client, theirs: Client) -> float:
    """The largest difference of their contexts."""
    mine, other = _context(ours), _context(theirs)
    assert mine.shape == other.shape and ours.slot.state.close == theirs.slot.state.close
    assert [span.length for span in ours.slot.state.window.spans] == [span.length for span in theirs.slot.state.window.spans]
    return float((mine - other).abs().max())


def _said(client: Client, since: int = 0) -> list[tuple[Any, ...]]:
    """What was emitted, without the turn's number and the hidden states."""
    found: list[tuple[Any, ...]] = []
    for output in client.outputs[since:]:
        payload = output.payload
        if output.unit is not None:
            found.append(("unit_done", output.unit.consumed_ms))
        elif output.kind == "thought" and payload is not None:
            found.append(("thought", list(payload.thought.token_ids), payload.thought.turn_end))
        elif payload is not None:
            found.append((output.kind, payload.SerializeToString()))
    return found


@pytest.mark.parametrize("manner", [GREEDY, {"temperature": 0.9, "top_k": 40}, {"greedy": True, "max_chars_per_unit": 9}])
def test_a_session_that_is_placed_anew_goes_on_as_if_nothing_had_been(opened: Opened, manner: dict[str, Any]) -> None:
    """Seven units, two turns; all sound is heard again, and three more units follow."""
    whole = opened(voice="HT_ref_audio", **manner)
    _until(whole, 7_030)
    log, before = told(whole.outputs), len(whole.outputs)
    assert len(log) == 7 and whole.kinds().count("turn_end") == 2
    anew = opened(1, voice="HT_ref_audio", unit_log=log, **manner)
    anew.sound(7_030, SOUND[: 7_030 * 16])
    run(anew)
    assert not anew.outputs and anew.slot.state.number == 7
    assert _apart(anew, whole) < 1e-4 and _history(anew) == _history(whole)
    assert [span.said for span in anew.slot.state.window.spans] == [span.said for span in whole.slot.state.window.spans]
    for client in (whole, anew):
        _until(client, 10_030)
    assert _said(anew) == _said(whole, before) and _apart(anew, whole) < 1e-4 and _history(anew) == _history(whole)
    assert [output.unit.unit for output in anew.outputs if output.unit is not None] == [0, 1, 2]
    assert {output.label.response_id for output in anew.outputs if output.kind == "text"} == {"t1"}
    for ours, theirs in zip(anew.thoughts(), whole.thoughts()[-len(anew.thoughts()) :], strict=True):
        assert (states(ours) - states(theirs)).abs().max() < 1e-4


def test_a_session_whose_units_were_closed_early_goes_on_as_if_nothing_had_been(opened: Opened) -> None:
    """The very first unit, and one behind a whole one; silence is passed over behind each, and is not heard again either."""
    whole = opened(voice="HT_ref_audio", **GREEDY)
    for until, close, skip in ((640, 1_640, None), (1_000, None, (640, 900)), (5_330, 6_330, None), (5_700, None, (5_330, 5_500))):
        while whole._ms < until:
            _hear(whole, min(until, whole._ms + 500))
        if close is not None and whole.slot.state.turn_label is None:
            whole.close_unit(close)
        if skip is not None:
            run(whole)
            whole.skip_silence(*skip)
    _until(whole, 7_030)
    log, before = told(whole.outputs), len(whole.outputs)
    notes = whole.engine.validate({"unit_log": log}).unit_log
    assert [(note.start_ms, note.end_ms) for note in notes][:2] == [(0, 640), (900, 1_900)] and notes[0].number == 0
    anew = opened(1, voice="HT_ref_audio", unit_log=log, **GREEDY)
    anew.sound(7_030, SOUND[: 7_030 * 16])
    run(anew)
    assert not anew.outputs and _apart(anew, whole) < 1e-4 and _history(anew) == _history(whole)
    for client in (whole, anew):
        _until(client, 10_030)
    assert _said(anew) == _said(whole, before) and _apart(anew, whole) < 1e-4


def test_notes_say_what_was_fed(opened: Opened, first: Client, log: list[str]) -> None:
    notes = first.engine.validate({"unit_log": log}).unit_log
    assert [(note.number, note.start_ms, note.end_ms) for note in notes[:2]] == [(0, 0, 1030), (1, 1030, 2030)]
    assert notes[0] == Note(0, 1030, 0, (LISTEN,), (LISTEN,)) and notes[2].tokens[3] == TURN_EOS
    spoken = [list(thought.token_ids) for thought in first.thoughts()]
    assert [list(note.tokens[1:-1]) for note in notes if len(note.tokens) > 1] == spoken
    assert [token for note in notes for token in note.drawn] == _history(first)
    for output in first.outputs:
        if output.payload is not None and output.kind == "unit_note":
            assert len(output.payload.unit_note.data) <= MOST_BYTES and not output.label.response_id


def test_sound_that_is_gone_is_heard_as_silence(opened: Opened, first: Client, log: list[str]) -> None:
    """Sound from 2500 ms on, in the midst of a unit, against all of it with silence up to there; then a log whose sound is gone."""
    silenced = SOUND.copy()
    silenced[: 2_500 * 16] = 0
    late, whole = opened(1, begins_ms=2_500, unit_log=log, **GREEDY), opened(1, unit_log=log, **GREEDY)
    late.sound(20, SOUND[2_500 * 16 : 2_520 * 16])
    run(late)
    assert late.slot.state.number == 2, "what needs no sound does not wait for it"
    _until(late, 9_030)
    whole.sound(7_030, silenced[: 7_030 * 16])
    _hear(whole, 8_030, silenced)
    _hear(whole, 9_030, silenced)
    assert _apart(late, whole) < 1e-4 and _said(late) == _said(whole) and late.receipts() == [1000, 1000]
    assert _apart_at_all(late, first)
    gone = opened(1, begins_ms=7_500, unit_log=log, **GREEDY)
    _until(gone, 9_500)
    assert gone.receipts() == [1000, 1000] and gone.slot.state.number == 9
    assert [note.start_ms for note in gone.engine.validate({"unit_log": [*log, *told(gone.outputs)]}).unit_log[-2:]] == [7_500, 8_500]


def _apart_at_all(ours: Client, theirs: Client) -> bool:
    count = theirs.slot.state.table.length
    return bool((_context(ours)[..., :count, :] - _context(theirs)).abs().max() > 1e-3)


def test_a_log_that_ends_in_a_turn_closes_it_and_what_follows_can_be_placed_anew_again(opened: Opened, log: list[str]) -> None:
    log = log[:6]
    second = opened(1, begins_ms=6_030, unit_log=log, **GREEDY)
    _until(second, 8_030)
    assert second.kinds()[:2] == ["listen", "unit_done"] and second.outputs[0].payload is not None
    assert second.outputs[0].payload.decision.reason == "forced"
    log += told(second.outputs)
    closing = second.engine.validate({"unit_log": log}).unit_log[6]
    assert (closing.number, closing.tokens, closing.drawn) == (6, (TURN_EOS, LISTEN), ())
    lost = opened(0, begins_ms=8_030, unit_log=log, **GREEDY)
    lost.sound(0, SOUND[:0])
    run(lost)
    spans = [span.length for span in second.slot.state.window.spans]
    assert [span.length for span in lost.slot.state.window.spans] == spans and not lost.outputs
    assert lost.slot.state.fed_open == second.slot.state.fed_open and lost.slot.state.number == 8 and _history(lost) == _history(second)
    third = opened(1, begins_ms=6_030, unit_log=log, **GREEDY)
    _hear(third, 8_030)
    assert _apart(third, second) < 1e-4


def test_a_unit_that_was_broken_off_is_noted_as_it_was_fed(opened: Opened) -> None:
    whole = opened(**GREEDY)
    _until(whole, 1_030)
    whole.sound(1_000, SOUND[1_030 * 16 : 2_030 * 16])
    while whole.slot.state.unit is None or len(whole.slot.state.unit.tokens) < 3:
        whole.engine.step([whole.slot])
    whole.cancel()
    assert [output.kind for output in whole.outputs[-2:]] == ["unit_note", "unit_done"]
    _until(whole, 3_030)
    log = told(whole.outputs)
    broken, after = whole.engine.validate({"unit_log": log}).unit_log[1:]
    assert broken.tokens[2:] == (TURN_EOS, CHUNK_EOS) and len(broken.drawn) == 3 and after.tokens == (LISTEN,)
    anew = opened(1, unit_log=log, **GREEDY)
    _hear(anew, 3_030)
    assert not anew.outputs and _apart(anew, whole) < 1e-4 and _history(anew) == _history(whole)
    before = len(whole.outputs)
    for client in (whole, anew):
        client.slot.epoch = 1
        client.slot.state.epoch = 1
        _until(client, 5_030)
    assert _said(anew) == _said(whole, before)


def test_units_up_to_what_was_heard_listen_behind_the_log(opened: Opened, log: list[str]) -> None:
    anew = opened(1, unit_log=log[:3], listen_until_ms=5_500, **GREEDY)
    anew.sound(9_000, SOUND[: 9_000 * 16])
    with pytest.raises(SessionOver, match="4 s of sound"):
        opened(1, unit_log=log[:3], listen_until_ms=5_500).sound(9_040, SOUND[: 9_040 * 16])
    run(anew)
    assert anew.kinds()[:5] == ["listen", "unit_done", "listen", "unit_done", "speak"] and anew.receipts() == [1000] * 5
    assert anew.slot.state.force_listen is False


@pytest.mark.parametrize("mode", ["off", "basic", "context"])
def test_a_log_that_is_longer_than_the_window_drops_its_oldest_units(
    mode: str, log: list[str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    engine = _engine(tiny_checkpoint, tmp_path, slots=1, window_tokens=512)
    unit = engine.validate({"unit_log": log}).unit_log[1]
    data = packed(unit.number, unit.tokens, unit.drawn)
    arrays = [msgspec.msgpack.encode((1000 * index, 1000 * index + 1000, data)) for index in range(60)]
    anew = Client(engine, "same", begins_ms=60_000, unit_log=[base64.b64encode(array).decode() for array in arrays], window=mode, **GREEDY)
    anew.sound(20)
    run(anew)
    session = anew.slot.state
    spans = [span.length for span in session.window.spans]
    assert session.failure is None and not anew.outputs and session.ended == 60
    assert set(spans) == {12 + len(unit.tokens)} and 5 < len(spans) < 40
    assert session.table.length == session.table.prefix_length + sum(spans) - len(session.close)
    assert (len(session.window.previous) > 0) == (mode == "context")
    engine.close(anew.slot)
    assert engine._pool.held == 0


def test_what_comes_while_it_is_fed_again_waits_in_order(opened: Opened, log: list[str]) -> None:
    """More sound than may wait, of it all but two units heard again; a camera frame of a new unit; a late one."""
    anew = opened(1, unit_log=log, **GREEDY)
    anew.frame(7_500)
    for start in range(0, 9_000, 500):
        anew.sound(500, SOUND[start * 16 : (start + 500) * 16])
    anew.frame(8_100)
    anew.frame(6_900)
    assert [error.param for error in anew.errors()] == ["camera[3].t_ms"]
    anew.outputs.clear()
    run(anew)
    session = anew.slot.state
    assert anew.receipts() == [1000] and session.number == 8 and session.unit is not None and session.unit.pictures == 1
    lengths = [span.length for span in session.window.spans]
    assert lengths[7] > 66 and max(lengths[:7]) < 40
    anew.update(unit_log=[], **GREEDY)
    assert [error.param for error in anew.errors()] == ["unit_log"] and session.config.unit_log


def test_a_cancel_and_a_clear_while_it_is_fed_again(opened: Opened, first: Client, log: list[str]) -> None:
    cancelled, cleared = opened(1, unit_log=log, **GREEDY), opened(1, unit_log=log, **GREEDY)
    for client in (cancelled, cleared):
        client.sound(7_500, SOUND[: 7_500 * 16])
        while client.slot.state.number < 3:
            client.engine.step([client.slot])
    cancelled.cancel()
    cleared.engine.cleared(cleared.slot)
    run(cancelled, cleared)
    for client in (cancelled, cleared):
        assert not client.outputs and client.slot.state.number == 7 and _apart(client, first) < 1e-4
    cleared.sound(600, SOUND[: 600 * 16])
    cancelled.sound(600, SOUND[7_500 * 16 : 8_100 * 16])
    run(cancelled, cleared)
    assert cancelled.kinds() == ["listen", "unit_done"] and cancelled.outputs[0].payload is not None
    assert cancelled.outputs[0].payload.decision.reason == "forced" and not cleared.outputs
    assert cleared.slot.state.gather.start_ms == 7_500


def test_an_update_before_the_first_sound_gives_another_log(opened: Opened, log: list[str]) -> None:
    log = log[:3]
    anew = opened(1, unit_log=log[:1], **GREEDY)
    run(anew)
    anew.update(unit_log=log, instructions="Another.", **GREEDY)
    _hear(anew, 500)
    anew.update(unit_log=log[:1], instructions="One more.", **GREEDY)
    _hear(anew, 3_030)
    assert [error.param for error in anew.errors()] == ["unit_log"] and anew.slot.state.number == 3
    assert anew.slot.state.config.instructions == "One more."


def test_a_session_that_is_fed_again_beside_others_is_what_it_is_alone(opened: Opened, log: list[str]) -> None:
    alone, beside, live = opened(1, unit_log=log, **GREEDY), opened(1, unit_log=log, **GREEDY), opened(1, name="other", temperature=0.8)
    alone.sound(7_030, SOUND[: 7_030 * 16])
    run(alone)
    beside.sound(7_030, SOUND[: 7_030 * 16])
    live.units(3)
    run(beside, live)
    single = opened(0, name="other", temperature=0.8)
    single.units(3)
    run(single)
    assert _said(live) == _said(single) and _apart(live, single) < 1e-4 and len(live.receipts()) == 3
    for client in (alone, beside):
        _until(client, 9_030)
    assert _apart(alone, beside) < 1e-4 and _said(alone) == _said(beside) and len(alone.receipts()) == 2


def test_a_unit_that_is_fed_again_is_due_as_a_prefix_is(opened: Opened, log: list[str]) -> None:
    anew = opened(1, unit_log=log, **GREEDY)
    run(anew)
    assert anew.engine.ready(anew.slot) is None, "nothing came"
    anew.sound(2_030, SOUND[: 2_030 * 16])
    complete_at = anew.slot.state.gather.waiting[0].complete_at
    assert anew.engine.ready(anew.slot) == complete_at + 0.5
