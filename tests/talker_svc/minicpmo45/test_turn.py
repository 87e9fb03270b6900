"""What a turn does with the codes that are drawn: pieces, room, the end."""

from __future__ import annotations

from pathlib import Path

import torch

from stage_kit import Label
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from talker_svc.minicpmo45.thoughts import Words
from talker_svc.minicpmo45.turn import Piece, Turn
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool, pages_for

END = 99
LABEL = Label(turn=3, response_id="r")


def _turn(*tokens: int, ends: bool = False, complete: bool = False, **settings: int) -> Turn:
    turn = Turn(LABEL, MiniCpmTalkerSettings(checkpoint=Path(), **settings))
    for index, count in enumerate(tokens):
        turn.waiting.append(Words((1,) * count, torch.zeros(count, 4), turn_end=ends and index == len(tokens) - 1))
    turn.complete = complete
    return turn


def _table(positions: int = 1024) -> PageTable:
    pages = pages_for(positions)
    return PageTable(PagePool(layers=1, kv_heads=1, head_dim=2, pages=pages + 1, poison=True), pages)


def _unit(turn: Turn, table: PageTable, codes: list[int]) -> list[Piece]:
    """Feeds and draws until the unit ends."""
    pieces: list[Piece] = []
    for code in codes:
        turn.place(table)
        pieces += turn.drew([code], END)
        if turn.unit is None:
            break
    return pieces


def test_a_unit_in_the_middle_is_one_piece_and_its_last_code_is_fed_with_the_next() -> None:
    turn, table = _turn(4, 3), _table()
    assert turn.opening and turn.rule().floor == 0 and turn.rule().number == 3 << 32
    assert [piece.codes for piece in _unit(turn, table, list(range(25)))] == [list(range(25))]
    assert table.length == 4 + 1 + 24 and turn.feeds_code
    assert turn.rule().floor == 25 and not turn.rule().ending and turn.rule().number == (3 << 32) + 1
    turn.place(table)
    turn.drew([1], END)
    assert table.length == 29 + 1 + 3 + 1 and not turn.opening


def test_an_end_code_in_the_first_unit_leaves_nothing_to_feed() -> None:
    turn, table = _turn(4, 3), _table()
    pieces = _unit(turn, table, [5, 6, END])
    assert [(piece.codes, piece.last) for piece in pieces] == [([5, 6], False)]
    assert table.length == 5 + 2 and not turn.feeds_code
    assert _unit(_turn(4), _table(), [END]) == []


def test_the_tail_comes_in_pieces_with_last_on_the_final_one() -> None:
    for made, expected in ((0, [0]), (7, [7]), (25, [25]), (30, [25, 5]), (50, [25, 25]), (80, [25, 25, 25, 5])):
        turn = _turn(2, ends=True)
        assert turn.rule().ending and turn.rule().floor == 0
        pieces = _unit(turn, _table(), [*range(made), END])
        assert [len(piece.codes) for piece in pieces] == expected
        assert [piece.last for piece in pieces] == [False] * (len(expected) - 1) + [True]
        assert not any(piece.cut_short for piece in pieces) and turn.over and turn.codes == made


def test_a_tail_without_an_end_is_cut_at_the_bound() -> None:
    for bound, expected in ((104, [25, 25, 25, 25, 4]), (100, [25] * 4), (26, [25, 1])):
        turn = _turn(2, ends=True, tail_codes=bound)
        pieces = _unit(turn, _table(), [1] * 500)
        assert [len(piece.codes) for piece in pieces] == expected
        assert pieces[-1].last and pieces[-1].cut_short and turn.over


def test_a_turn_that_is_known_to_be_complete_ends_with_its_last_unit() -> None:
    turn, table = _turn(2, 2, complete=True), _table()
    assert not turn.rule().ending
    assert not _unit(turn, table, [1] * 25)[-1].last
    assert turn.rule().ending
    assert _unit(turn, table, [1, END])[-1].last and turn.over


def test_a_long_turn_keeps_its_newest_whole_units() -> None:
    positions, units = 400, 600
    turn, table = _turn(*[3] * units, positions=positions, window_units=8, thought_tokens=20), _table(positions)
    held = table.pool
    lengths = []
    for _ in range(units):
        _unit(turn, table, [1] * 25)
        lengths.append(table.window_length)
        # units are 4 condition rows and 25 codes; the newest one's last code is not fed yet
        assert (table.window_length + 1) % 29 == 0
    assert max(lengths) <= positions and table.position == 29 * units - 1
    assert lengths.count(8 * 29 + 28) > 50 and held.held <= pages_for(positions)


def test_a_unit_as_large_as_its_place_lets_everything_else_go() -> None:
    turn = _turn(3, 100, 3, 100, positions=256, thought_tokens=100, tail_codes=104, ends=True)
    table = _table(256)
    for _ in range(4):
        pieces = _unit(turn, table, [1] * 104)
        assert table.window_length <= 256
    assert pieces[-1].last and turn.over


def test_a_failed_step_can_be_taken_back() -> None:
    turn, table = _turn(4, 3), _table()
    _unit(turn, table, [1] * 25)
    for _ in range(2):
        placed = turn.place(table)
        table.rewind(placed.count)
    assert table.length == 29 and len(turn.waiting) == 1
    assert turn.place(table).position == 29
