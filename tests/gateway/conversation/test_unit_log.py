"""The log of a native model's latest units: what is kept of it, how long, and what a model that is placed anew is told of it."""

from __future__ import annotations

from binascii import a2b_base64
from typing import Any

import msgspec
import pytest

from gateway.conversation import commands
from gateway.conversation.checkpoint import Checkpoint, restore
from gateway.conversation.commands import StageUnit
from gateway.graph import Graph, load_profile

from .duplex import FORGETFUL, PROFILE, WITH_WORDS
from .noting import kept, listen, lose, noting, place, talk
from .support import SESSION, state_of

LONG = Graph(load_profile(PROFILE.replace("native: {", "native: {unit_log_ms: 120000, "), "long"))
OFF = Graph(load_profile(PROFILE.replace("native: {", "native: {unit_log_ms: 0, "), "off"))
WORDY_FORGETFUL = Graph(load_profile(WITH_WORDS.replace("native: {", "native: {unit_log_ms: 3000, "), "wordy"))
UNTOLD = Graph(load_profile(PROFILE.replace(", notes: unit_log", ""), "untold"))


@pytest.mark.behaviour("X3")
def test_a_lost_model_is_told_of_its_latest_units_and_of_nothing_twice() -> None:
    tale = noting()
    tale.say(40)
    listen(tale, 1)
    talk(tale, "Hello ", "there.", ends=True)
    before, notes = lose(tale)
    assert before == "", "all that was said is in the log"
    assert notes == [(40, 1040, b"0"), (1040, 2040, b"1"), (2040, 3040, b"2")]


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("late", [False, True])
def test_notes_are_kept_once_over_a_takeover(late: bool) -> None:
    tale, whole = noting(FORGETFUL), noting(FORGETFUL)
    for each in (tale, whole):
        listen(each, 2)
        each.late = late and each is tale
        talk(each, "Hello ", "there ")
    tale.arrive()
    tale.die()
    tale.late = False
    tale.commit_now()
    for each in (tale, whole):
        talk(each, "friend.", ends=True)
    assert kept(tale) == kept(whole) == [b"2", b"3", b"4"]
    assert lose(tale) == lose(whole)


@pytest.mark.behaviour("X1", "X3")
def test_a_model_lost_with_its_gateway_is_told_by_the_next_one() -> None:
    tale = noting(FORGETFUL)
    talk(tale, "One ", "two ", "three ", "four.", ends=True)
    tale.arrive()
    tale.die(lost=("seer",))
    recap = tale.c.memory.recap
    assert recap is not None and recap.text == "One" and len(recap.unit_log) == 3


def test_a_note_leaves_when_its_unit_is_too_old() -> None:
    tale = noting(FORGETFUL)
    tale.say(6000)
    for end_ms in (1000, 2000, 4999):
        tale.listens(end_ms)
    assert kept(tale) == [b"1", b"2"], "1000 is before 1999, 2000 is not"
    tale.listens(5000)
    assert kept(tale) == [b"2", b"3"]
    tale.listens(2**32 - 1)
    assert kept(tale) == [b"2", b"3", b"4"], "no note is of what was not heard"
    assert sorted(name for name in tale.stored if name.startswith("unit:")) == ["unit:2", "unit:3", "unit:4"]


def test_units_of_silence_pass_too() -> None:
    tale = noting(FORGETFUL)
    tale.say(1000)
    for _ in range(5):
        tale.listens(1000)
    assert kept(tale) == [b"2", b"3", b"4"]


def test_a_log_has_64_kib_and_not_a_byte_more() -> None:
    tale = noting(LONG)
    tale.noting = False
    for unit in range(65):
        tale.say(1000)
        tale.note(data=bytes([unit]) * 1024)
        tale.do(StageUnit("seer", unit))
        assert len(kept(tale)) == min(unit + 1, 64)
    assert kept(tale)[0] == b"\x01" * 1024 and tale.c.unit_log.size == 65_536
    tale.note(data=b"")
    assert len(kept(tale)) == 65
    tale.note(data=b"x")
    assert kept(tale)[0] == b"\x02" * 1024


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("units", range(1, 8))
@pytest.mark.parametrize("ends", [False, True])
def test_the_recap_reaches_to_where_the_log_begins_in_the_middle_of_a_reply(units: int, ends: bool) -> None:
    tale = noting(FORGETFUL)
    talk(tale, "Once. ", "Upon. ", "A time.", ends=True)
    words = [f"w{unit}. " for unit in range(units)]
    talk(tale, *words, ends=ends)
    before, notes = lose(tale)
    assert [data for *_, data in notes] == [b"%d" % unit for unit in range(units, units + 3)]
    spoken = ["Once. ", "Upon. ", "A time.\n", *words]
    assert before == "".join(spoken[:units]).strip()


def test_a_turn_that_is_told_later_is_part_of_it() -> None:
    """The model begins its next turn while the sound of the last one still leaves."""
    tale = noting(FORGETFUL)
    tale.say(1000)
    tale.speaks("First. ", begins=True, ends=True)
    for at, word in enumerate(("One ", "two ", "three ", "four.")):
        tale.say(1000)
        tale.speaks(word, begins=not at, ends=at == 3)
    assert len(tale.c.responses.coming) == 1
    for turn, ms in ((1, 1000), (2, 4000)):
        tale.sings(last=True, turn=turn)
        tale.sounds(ms, last=True, turn=turn)
        tale.wait(ms)
    assert tale.history() == ["First. ", "One two three four."]
    assert lose(tale)[0] == "First.\nOne"


def test_a_turn_that_was_never_told_is_no_part_of_it() -> None:
    tale = noting(FORGETFUL)
    talk(tale, "First. ", "Second.")
    tale.speaks("", ends=True)
    tale.say(1000)
    tale.speaks("Never ", begins=True)
    assert tale.c.responses.coming
    tale.do(commands.ResponseCancel())
    listen(tale, 3)
    before, notes = lose(tale)
    assert before == "First. Second." and tale.history() == ["First. Second."] and len(notes) == 3


def test_words_of_the_user_are_told_as_text_when_their_units_left() -> None:
    tale = noting(WORDY_FORGETFUL)
    tale.say(1000)
    tale.decide("speech_started", 0)
    tale.say(1000)
    tale.decide("speech_stopped", 1800)
    tale.transcribe("What is it?")
    tale.listens()
    talk(tale, "A ", "bird ", "of ", "prey.", ends=True)
    assert lose(tale)[0] == "user: What is it?\nassistant: A"


@pytest.mark.behaviour("X3")
def test_the_notes_of_the_old_and_the_new_placement_are_one_log() -> None:
    tale = noting(FORGETFUL)
    talk(tale, "One. ", "Two.", ends=True)
    assert lose(tale)[0] == ""
    place(tale)
    assert kept(tale) == [b"0", b"1"]
    listen(tale, 2)
    before, notes = lose(tale)
    assert before == "One." and [data for *_, data in notes] == [b"1", b"2", b"3"]
    place(tale)
    listen(tale, 2)
    assert lose(tale)[0] == "One. Two."
    tale.check()


def test_a_model_that_moves_is_told_the_same() -> None:
    tale = noting(FORGETFUL)
    talk(tale, "One. ", "Two. ", "Three. ", "Four.", ends=True)
    tale.wait(6000)
    tale.arrive()
    tale.do(commands.StageDraining("seer"))
    recap = tale.c.memory.recap
    assert recap is not None and recap.text == "One." and len(recap.unit_log) == 3


@pytest.mark.parametrize("graph", [OFF, UNTOLD])
def test_without_a_log_all_is_told_as_text(graph: Graph) -> None:
    tale = noting(graph)
    talk(tale, "One. ", "Two.", ends=True)
    assert lose(tale) == ("One. Two.", [])
    assert not [name for name in tale.stored if name.startswith("unit:")]


def test_a_log_that_was_turned_off_since_is_not_told() -> None:
    tale = noting()
    talk(tale, "One. ", "Two.", ends=True)
    there = restore(SESSION, OFF, tale.limits, tale.hot, dict(tale.stored))
    there.receive(commands.Resume((), lost=("seer",)), tale.now)
    assert there.memory.recap is not None and (there.memory.recap.text, there.memory.recap.unit_log) == ("One. Two.", ())


# items that go


@pytest.mark.parametrize("gone", [[0], [1], [2], [1, 0], [0, 1], [2, 1]])
def test_the_recap_ends_where_it_did_when_items_are_deleted(gone: list[int]) -> None:
    tale = noting(FORGETFUL)
    for word in ("One.", "Two.", "Three."):
        talk(tale, word, ends=True)
        tale.wait(2000)
    listen(tale, 2)
    items, said = list(tale.c.history.order), ["One.", "Two.", "Three."]
    for index in gone:
        tale.do(commands.ItemDelete(item_id=items[index]))
    assert state_of(tale.restored()) == state_of(tale.c)
    before, notes = lose(tale)
    assert before == "\n".join(said[index] for index in (0, 1) if index not in gone) and len(notes) == 3


# the checkpoint


def test_a_note_is_written_once_and_deleted_when_it_leaves() -> None:
    tale = noting(FORGETFUL)
    written: list[tuple[str, bool]] = []
    take = tale.checkpointer.take

    def watched() -> Checkpoint:
        checkpoint = take()
        written.extend((name, data is not None) for name, data in checkpoint.fields.items() if name.startswith("unit:"))
        return checkpoint

    tale.checkpointer.take = watched  # type: ignore[method-assign]
    talk(tale, "One. ", "Two. ", "Three. ", "Four. ", "Five.", ends=True)
    tale.wait(3000)
    made, gone = [(f"unit:{number}", True) for number in range(5)], [(f"unit:{number}", False) for number in range(2)]
    assert sorted(written) == sorted([*made, *gone])
    tale.checkpointer.forget()
    assert {f"unit:{number}" for number in (2, 3, 4)} <= set(take().fields), "a full one has them all"


def test_what_a_model_was_told_is_told_again_with_an_update_and_written_once() -> None:
    tale = noting(FORGETFUL)
    talk(tale, "One. ", "Two. ", "Three. ", "Four.", ends=True)
    _, notes = lose(tale)
    place(tale)
    assert "told" in tale.stored and b"One." in tale.stored["memory"] and len(tale.stored["memory"]) < 100
    listen(tale, 3)
    tale.update(model_options={"top_k": 4})
    config: dict[str, Any] = msgspec.json.decode(tale.told_stages()[-1][1].config_json)
    assert config["before"] == "One." and [msgspec.msgpack.decode(a2b_base64(each))[2] for each in config["notes"]] == [
        d for *_, d in notes
    ]
    there = tale.restored()
    assert there.memory == tale.c.memory and state_of(there) == state_of(tale.c)


@pytest.mark.behaviour("X1", "X3")
@pytest.mark.parametrize("graph", [OFF, LONG])
def test_a_model_lost_with_its_gateway_answers_nothing_that_comes_again(graph: Graph) -> None:
    """Whose client sends again, is counted back; the model is told up to where the one before had heard all the same."""
    tale = noting(graph)
    talk(tale, "One. ", "Two.", ends=True)
    tale.wait(4000)
    listen(tale, 2)
    tale.arrive()
    heard_ms = tale.heard_ms
    tale.die(lost=("seer",))
    recap = tale.c.memory.recap
    assert recap is not None and recap.heard_until_ms == heard_ms == tale.heard_ms


def test_a_unit_that_was_told_and_got_no_receipt_gives_its_number_to_no_other() -> None:
    tale = noting()
    listen(tale, 2)
    for end_ms in (3000, 4000):
        tale.say(1000)
        tale.chunk("seer", commands.DecisionOut("listen", end_ms - 1000, end_ms), epoch=tale.c.fence.epoch, response_id="")
        if end_ms == 3000:
            tale.lose("seer")
            place(tale)
            tale.chunk("seer", commands.DecisionOut("listen", 2000, 3000), epoch=tale.c.fence.epoch, response_id="")
            tale.do(StageUnit("seer", 0))
    assert [unit for unit, _ in tale.decisions] == [0, 1, 2, 3]
