"""How a turn's codes are cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_kit import Label
from vocoder_svc.minicpmo45.caches import Piece
from vocoder_svc.minicpmo45.stream import Stream, Turn

ONE, TWO = Label(1, 1, "t1"), Label(1, 2, "t2")
SILENCE = (4218, 4218, 4218)


def _pieces(turn: Turn) -> list[tuple[int, int, bool]]:
    return [(len(piece.codes), piece.fresh, piece.final) for piece in turn.pieces]


@pytest.mark.behaviour("D1")
def test_25_and_3_with_silence_in_front() -> None:
    turn = Turn(ONE)
    turn.push(range(25), last=False)
    turn.push(range(25, 50), last=False)
    turn.push(range(50, 60), last=True)
    assert _pieces(turn) == [(28, 25, False), (28, 25, False), (13, 13, True)]
    assert turn.pieces[0].codes == (*SILENCE, *range(25))
    assert turn.pieces[1].codes == tuple(range(22, 50))


@pytest.mark.behaviour("D1")
def test_less_than_five_are_held_and_eight_let_out() -> None:
    turn = Turn(ONE)
    turn.push(range(4), last=False)
    assert not turn.pieces and turn.waiting == 7
    turn.push([4], last=False)
    assert turn.pieces.popleft() == Piece((*SILENCE, 0, 1, 2, 3, 4), 5, False) and turn.waiting == 3
    turn.push([], last=True)
    assert list(turn.pieces) == [Piece((2, 3, 4), 3, True)] and turn.ended


def test_a_turn_without_codes_has_no_sound() -> None:
    turn = Turn(ONE)
    turn.push([], last=True)
    assert turn.ended and not turn.pieces


@given(messages=st.lists(st.lists(st.integers(0, 6560), max_size=60), max_size=8))
def test_every_code_becomes_sound_once_and_in_order(messages: list[list[int]]) -> None:
    turn = Turn(ONE)
    for codes in messages:
        turn.push(codes, last=False)
    turn.push([], last=True)
    sent = [code for codes in messages for code in codes]
    said = [code for piece in turn.pieces for code in piece.codes[: piece.fresh]]
    assert said == ([*SILENCE, *sent] if sent else [])
    assert [piece.final for piece in turn.pieces] == [False] * (len(turn.pieces) - 1) + [True] * bool(sent)
    assert all(piece.fresh <= 25 and (piece.final or (piece.fresh >= 5 and len(piece.codes) == piece.fresh + 3)) for piece in turn.pieces)


def test_a_turn_that_begins_ends_the_one_before() -> None:
    stream = Stream()
    first = stream.push(ONE, range(25), last=False)
    second = stream.push(TWO, range(25), last=False)
    assert first is not None and second is not None
    assert stream.current() is first and first.ended and _pieces(first)[-1] == (3, 3, True)
    stream.finish(first)
    assert stream.current() is second
    assert stream.push(ONE, range(5), last=True) is None and stream.current() is second


def test_dropped_and_cancelled_turns_are_forgotten() -> None:
    stream = Stream()
    stream.push(ONE, range(25), last=False)
    stream.drop(ONE)
    assert stream.current() is None and stream.push(ONE, range(25), last=True) is None
    stream.push(TWO, range(25), last=False)
    stream.push(Label(2, 3, "t3"), range(25), last=False)
    stream.forget_below(2)
    current = stream.current()
    assert current is not None and current.label.response_id == "t3"
