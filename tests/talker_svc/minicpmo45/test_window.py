"""Long turns: what is held stays bounded, and what is computed equals one masked forward."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stage_kit import Label
from talker_svc.minicpmo45.inputs import Input
from talker_svc.minicpmo45.model import TalkerModel, decoder_config
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from talker_svc.minicpmo45.thoughts import Words
from talker_svc.minicpmo45.turn import Turn
from tests.talker_svc.minicpmo45.support import CONFIG, embed, folded_weights, model, thought
from tests.torch_kit.support.pairwise import pairwise
from torch_kit.page_table import PageTable
from torch_kit.pages import pages_for
from torch_kit.ragged import RaggedBatch


def _units(count: int) -> list[Words]:
    made = []
    for seed in range(count):
        ids, hidden = thought(3 + seed % 3, seed)
        made.append(Words(tuple(ids), hidden, turn_end=False))
    return made


def _turn(units: list[Words], positions: int, window_units: int) -> Turn:
    settings = MiniCpmTalkerSettings(checkpoint=Path(), positions=positions, window_units=window_units, thought_tokens=20)
    turn = Turn(Label(turn=1, response_id="r"), settings)
    turn.waiting.extend(units)
    return turn


def _code(unit: int, step: int) -> int:
    return (unit * 131 + step * 17) % CONFIG.end_code


def _forced(talker: TalkerModel, table: PageTable, turn: Turn) -> tuple[Tensor, list[tuple[int, int]]]:
    """Speaks all units with codes that are given, each unit's tokens in one forward; the hidden states behind its codes, and for each unit
    its first token and the oldest one that it saw."""
    hidden, seen = [], []
    while turn.waiting:
        unit, words, before = turn.units, turn.waiting[0], turn.feeds_code
        # the book-keeping goes code by code, the forward takes the unit at once
        start = table.position
        for step in range(25):
            turn.place(table)
            turn.drew([_code(unit, step)], CONFIG.end_code)
        seen.append((start, table.window_start))
        count = table.position - start
        table.rewind(count)
        inputs = [Input(before, words), *[Input(code=True, words=None)] * 24]
        codes = [_code(unit - 1, 24)] * before + [_code(unit, step) for step in range(24)]
        embeddings = embed(talker, inputs, torch.tensor(codes))
        batch = RaggedBatch.of([table.append(count)])
        hidden.append(talker.decoder.forward(embeddings, batch)[count - 25 : count])
    return torch.cat(hidden), seen


def test_a_cut_turn_equals_one_masked_forward() -> None:
    units, weights = _units(24), folded_weights()
    talker = model(pages=40)
    table, turn = PageTable(talker.decoder.pool, 18), _turn(units, positions=256, window_units=5)
    hidden, seen = _forced(talker, table, turn)
    rows = []
    for unit, words in enumerate(units):
        codes = torch.tensor([_code(unit - 1, 24)] * (unit > 0) + [_code(unit, step) for step in range(24)])
        rows.append(embed(talker, [Input(unit > 0, words), *[Input(code=True, words=None)] * 24], codes))
    inputs = torch.cat(rows)
    where = torch.arange(len(inputs))
    mask = torch.ones(len(inputs), len(inputs), dtype=torch.bool).tril()
    for start, oldest in seen:
        mask[start:, :oldest] = False
    assert seen[-1][1] > 300

    class Reference:
        def state_dict(self) -> dict[str, Tensor]:
            return {name.removeprefix("tts.model."): each for name, each in weights.items() if name.startswith("tts.model.")}

    expected = pairwise(Reference(), decoder_config(CONFIG), inputs, where[:, None] - where, mask)
    ends = torch.cat([torch.arange(stop - 25, stop) for stop in [start for start, _ in seen[1:]] + [len(inputs)]])
    assert (hidden - expected[ends]).abs().max() < 1e-4


def test_a_ten_minute_turn_stays_within_its_positions() -> None:
    positions, units = 1024, 600
    talker = model(pages=pages_for(positions) + 1, page=64)
    table, turn = PageTable(talker.decoder.pool, pages_for(positions)), _turn(_units(units), positions, window_units=20)
    hidden, seen = _forced(talker, table, turn)
    assert hidden.shape == (25 * units, CONFIG.hidden_size) and hidden.isfinite().all()
    assert table.position > 29 * units and table.window_length <= positions
    held = [start - oldest for start, oldest in seen]
    assert max(held) <= positions - 25
    # in the steady state the last 20 s are never missing
    assert min(held[units // 2 :]) >= 20 * 29
