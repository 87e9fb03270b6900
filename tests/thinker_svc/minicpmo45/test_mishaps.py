"""What is short in a step, and what fails behind its forward: the session that it concerns waits or ends, all others are as if alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minicpmo45.config import tiny
from stage_kit import Append, Label
from tests.thinker_svc.minicpmo45.language_support import CHUNK_EOS, LISTEN, SPEAK, TURN_EOS, embeddings
from tests.thinker_svc.minicpmo45.thinking import House, Talk, states, vocabulary_of
from thinker_svc.minicpmo45 import stepper
from thinker_svc.minicpmo45.camera import Frame
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.frames import BadFrame, Picture
from thinker_svc.minicpmo45.row import Row
from thinker_svc.minicpmo45.sampler import Sampling
from thinker_svc.minicpmo45.session import Kind, Overflow
from thinker_svc.minicpmo45.unit import UnitRules
from thinker_svc.minicpmo45.window import WindowRules
from torch_kit.rope import MAX_POSITION

HIDDEN = tiny().llm.hidden_size
FREE = -1
SPOKEN = ((SPEAK, FREE, FREE, TURN_EOS, CHUNK_EOS), (LISTEN,), (SPEAK, FREE, CHUNK_EOS))


def _quiet(**fields: Any) -> SessionConfig:
    return SessionConfig(**{"force_listen_count": 0, "sampling": Sampling(greedy=True), **fields})


def _sound(slot: int, unit: int) -> Tensor:
    return embeddings(HIDDEN, "audio", 1000 * slot + unit)


def _house(checkpoint: Path, script: Sequence[Sequence[int]] = SPOKEN, **changes: Any) -> House:
    given: dict[str, Any] = {"script": script, "repeat": True, "sound": _sound, "slots": 3, **changes}
    return House(vocabulary_of(checkpoint), **given)


def _same(ours: Talk, theirs: Talk) -> None:
    assert ours.kinds() == theirs.kinds() and ours.text() == theirs.text() and ours.log() == theirs.log()
    for mine, other in zip(ours.thoughts(), theirs.thoughts(), strict=True):
        assert mine.token_ids == other.token_ids and (not mine.token_ids or (states(mine) - states(other)).abs().max() < 1e-5)


@pytest.mark.behaviour("S1")
def test_a_crowd_of_pictures_and_prompts_is_spread_over_steps(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sessions that all come at once, steps stay small; who speaks waits for none of it; what is too much alone goes alone."""
    stories = []
    for most in (203, stepper.MOST_TOKENS):
        monkeypatch.setattr(stepper, "MOST_TOKENS", most)
        house, batches = _house(tiny_checkpoint), list[list[Row]]()
        whole = house.model.step
        monkeypatch.setattr(
            house.model, "step", lambda rows, *rest, whole=whole, batches=batches: (batches.append(list(rows)), whole(rows, *rest))[1]
        )
        talks = [house.open(_quiet(instructions=f"{row} " * 60), row=row) for row in range(3)]
        for tick in range(2):
            for row, talk in enumerate(talks):
                talk.see([embeddings(HIDDEN, "picture", row, tick, 2 + (row == 2) * tick)])
                talk.hear()
            house.run(talks)
        stories.append((talks, batches))
    (spread, small), (together, large) = stories
    for ours, theirs in zip(spread, together, strict=True):
        _same(ours, theirs)
    sizes = [[row.appended.count for row in rows] for rows in small]
    assert all(sum(counts) <= 203 or sum(count > 1 for count in counts) == 1 for counts in sizes)
    assert any(sum(counts) > 203 for counts in sizes), "a unit with three slices, alone"
    assert max(sum(row.appended.count for row in rows) for rows in large) > 400
    assert any(max(counts) > 100 and min(counts) == 1 for counts in sizes), "tokens go beside what is large"


@pytest.mark.behaviour("S2")
def test_a_session_at_the_last_position_ends_and_no_other(tiny_checkpoint: Path) -> None:
    house = _house(tiny_checkpoint, script=[(LISTEN,)])
    talks = [house.open(_quiet()) for _ in range(2)]
    house.run(talks)
    # as many tokens came and left again
    talks[0].session.table.position = MAX_POSITION - 40
    for talk in talks:
        talk.hear(5)
    house.run(talks)
    assert isinstance(talks[0].session.failure, Overflow) and talks[0].session.number == 3
    assert talks[0].session.table.position <= MAX_POSITION + 1
    assert talks[1].session.failure is None and talks[1].session.number == 5


def test_all_units_leave_where_that_makes_room(tiny_checkpoint: Path) -> None:
    """Two units of 13 are less than a page: with both gone a picture has room."""
    house = _house(tiny_checkpoint, script=[(LISTEN,)], slots=1, pages=5)
    talk = house.open(_quiet())
    talk.hear(2)
    house.run([talk])
    talk.see([embeddings(HIDDEN, "picture", 0, 0, 2)])
    talk.hear()
    house.run([talk])
    assert talk.session.failure is None and talk.session.number == 3 and len(talk.session.window.spans) == 1


@pytest.mark.parametrize("mode", ["basic", "context"])
def test_a_unit_that_may_say_more_than_when_it_began_has_room_for_it(mode: Any, tiny_checkpoint: Path) -> None:
    """Pages are filled up to the least that a unit of two tokens takes; an update permits 64 in mid-unit."""
    house = _house(tiny_checkpoint, script=[(LISTEN,)] * 11 + [(SPEAK, *[FREE] * 60, CHUNK_EOS), (LISTEN,)], slots=1, pages=5)
    talk = house.open(_quiet(window=WindowRules(mode, 320, 200), rules=UnitRules(2, 1000)))
    session = talk.session
    talk.hear(11)
    house.run([talk])
    talk.hear(2)
    while session.unit is None or not session.unit.tokens:
        house.stepper.step([talk.slot])
    assert 0 < session.room < 50 and len(session.window.spans) == 11
    session.config = _quiet(window=session.config.window, rules=UnitRules(64, 1000))
    house.model.tune(0, session.config.sampling, session.config.rules, 1)
    house.run([talk])
    assert session.failure is None and session.number == 13 and len(talk.log()[11].tokens) > 50
    assert session.table.length == session.table.prefix_length + sum(span.length for span in session.window.spans) - len(session.close)


@pytest.mark.behaviour("S2")
def test_states_that_cannot_be_had_end_whose_they_are(tiny_checkpoint: Path) -> None:
    """All at once are too much: they are had one by one; those of the second never are."""
    house, alone = _house(tiny_checkpoint, script=SPOKEN[:1]), _house(tiny_checkpoint, script=SPOKEN[:1])
    whole, asked = house.model.said, list[list[int]]()

    def said(slots: Sequence[int], count: int) -> Tensor:
        asked.append(list(slots))
        if len(slots) > 1 or 1 in slots:
            raise torch.OutOfMemoryError("no memory")
        return whole(slots, count)

    house.model.said = said  # type: ignore[method-assign]
    talks = [house.open(_quiet(), row=row) for row in range(3)]
    for talk in talks:
        talk.hear(2)
    house.run(talks)
    assert asked[0] == [0, 1, 2] and isinstance(talks[1].session.failure, torch.OutOfMemoryError)
    for row in (0, 2):
        other = alone.open(_quiet(), row=row)
        other.hear(2)
        alone.run([other])
        assert talks[row].session.failure is None and len(talks[row].thoughts()) == 2
        _same(talks[row], other)


def test_a_turn_in_progress_is_not_made_to_listen_by_an_update(tiny_checkpoint: Path) -> None:
    """The first so many units listen: a turn of which the core was told has its end, and then they do."""
    house = _house(tiny_checkpoint, script=[(SPEAK, 65, CHUNK_EOS), (SPEAK, 66, TURN_EOS, CHUNK_EOS), (SPEAK, 67, CHUNK_EOS)])
    talk = house.open(_quiet())
    talk.hear()
    house.run([talk])
    talk.session.config = _quiet(force_listen_count=1000)
    talk.hear(2)
    house.run([talk])
    told = ["speak", "text", "thought", "unit_done", "speak", "text", "text", "thought", "turn_end", "unit_done", "listen", "unit_done"]
    assert talk.kinds() == told and talk.session.turn_label is None and not talk.session.fed_open


def test_a_cancel_that_comes_in_mid_step_is_of_no_unit_that_began_before(tiny_checkpoint: Path) -> None:
    """The kit raised the epoch, the engine hears of it behind this step: what the unit says is of the old one, and told nobody."""
    house = _house(tiny_checkpoint, script=[(SPEAK, 65, TURN_EOS, CHUNK_EOS)])
    talk = house.open(_quiet())
    house.run([talk])
    talk.hear()
    talk.slot.epoch = 1
    house.stepper.step([talk.slot])
    assert talk.session.unit is not None and talk.session.unit.speaks and not talk.outputs
    assert talk.session.turn_label == Label(0, 1, "t1")


@pytest.mark.parametrize("complete", [False, True])
def test_a_frame_that_turns_out_to_be_none_is_in_no_step(complete: bool, tiny_checkpoint: Path) -> None:
    """Its thread ended between the kit's question and the step."""
    house = _house(tiny_checkpoint)
    talk = house.open(_quiet())
    house.run([talk])
    talk.hear()
    house.run([talk])
    if complete:
        talk.hear()
    decoded: Future[Picture] = Future()
    gather = talk.session.gather
    talk.session.camera.frames.append(Frame(gather.start_ms - 10 * complete, Append("camera", 1, Label(), False, None), decoded))
    assert talk.session.next() is None
    decoded.set_exception(BadFrame("undecodable", "data", "no picture"))
    assert talk.session.next() is None
    talk.session.camera.settle(talk.slot)
    assert not talk.session.camera.frames and talk.session.next() is (Kind.UNIT if complete else None)
    assert talk.outputs[-1].finish is not None
