"""A unit log whose stage notes badly or not always, or whose store forgot some of it: it is told unbroken, or not at all."""

from __future__ import annotations

import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import NoteOut, StageUnit

from .duplex import DUPLEX, Duplex
from .noting import kept, listen, lose, noting, talk


def test_a_note_beyond_1_kib_is_not_kept_and_the_log_begins_behind_it() -> None:
    tale = noting()
    talk(tale, "One. ", "Two. ")
    tale.say(1000)
    tale.noting = False
    tale.note(data=bytes(1025))
    tale.do(StageUnit("seer", 2))
    assert kept(tale) == [] and not tale.of(events.Error) and tale.c.responses.live is not None
    assert [data for data in (tale.stored.get(f"unit:{n}") for n in range(3)) if data] == []
    tale.noting, tale.units = True, 3
    for word, ends in (("Three. ", False), ("Four.", True)):
        tale.say(1000)
        tale.speaks(word, ends=ends)
        tale.sings(last=ends)
        tale.sounds(2000, last=ends)
    tale.wait(6000)
    before, notes = lose(tale)
    assert tale.done.status == "completed" and before == "One. Two." and [data for *_, data in notes] == [b"3", b"4"]


def test_what_a_note_says_beside_itself_means_nothing() -> None:
    tale = noting()
    talk(tale, "One. ")
    for stage in ("seer", "singer", "turn"):
        tale.chunk(stage, NoteOut(0, 1000, b"?"), response_id=tale.label, turn=tale.model_turn, last=True)
    assert kept(tale) == [b"0", b"?"], "only the model's own"
    assert tale.c.responses.live is not None and not tale.c.responses.live.text_ended
    notes = [effect for stage in ("singer", "sounder") for effect in tale.relays(stage) if isinstance(effect.payload, NoteOut)]
    assert not notes and tale.c.state.consumed["seer"] == tale.positions["seer"]


def test_a_cancel_does_not_touch_what_was_noted() -> None:
    tale = noting()
    talk(tale, "One. ", "Two. ")
    tale.do(commands.ResponseCancel())
    tale.note(epoch=1)
    assert kept(tale) == [b"0", b"1", b"2"]


def test_a_log_that_is_not_continued_is_not_told() -> None:
    tale = noting()
    talk(tale, "One. ", "Two. ")
    tale.noting = False
    tale.say(1000)
    tale.speaks("Three.", ends=True)
    tale.sings(last=True)
    tale.sounds(1000, last=True)
    assert not kept(tale) and lose(tale) == ("One. Two. Three.", [])


def test_a_receipt_that_comes_again_breaks_nothing() -> None:
    tale = noting()
    talk(tale, "One. ", "Two. ")
    tale.do(StageUnit("seer", tale.units - 1))
    listen(tale, 1)
    assert kept(tale) == [b"0", b"1", b"2"]


def test_a_log_that_begins_in_mid_conversation_tells_only_what_follows() -> None:
    """So it is after a restore from a checkpoint of a gateway that knew no notes."""
    tale = noting()
    tale.noting = False
    talk(tale, "One. ")
    for name in [name for name in tale.stored if name in ("unit_log", "told") or name.startswith("unit:")]:
        del tale.stored[name]
    tale.arrive()
    tale.die()
    tale.noting = True
    for word, ends in (("Two. ", False), ("Three.", True)):
        tale.say(1000)
        tale.speaks(word, ends=ends)
        tale.sings(last=ends)
        tale.sounds(1000, last=ends)
    before, notes = lose(tale)
    assert before == "One. Two." and [data for *_, data in notes] == [b"1"]


@pytest.mark.behaviour("R8")
def test_a_store_that_forgot_units_breaks_the_log() -> None:
    world = Duplex()
    world.noting = True
    world.say(1000)
    world.listens()
    forgotten = world.restored()
    listen(world, 2)
    marks = {"client": forgotten.input.position}
    ahead = tuple(commands.StageAttached(stage, 1, marks, 1, first_kept=9) for stage in DUPLEX.stages)
    forgotten.receive(commands.Resume(ahead, known_seq=world.c.state.seq), world.now)
    assert not forgotten.unit_log.notes and forgotten.unit_log.reached is not None
