"""The reference talker's numbers (fixtures/reference_codes.txt)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stage_kit import Label
from talker_svc.minicpmo45.inputs import Input
from talker_svc.minicpmo45.model import TalkerModel
from talker_svc.minicpmo45.sampler import CodeSampler, Manner
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from talker_svc.minicpmo45.thoughts import Words
from talker_svc.minicpmo45.turn import Turn
from tests.talker_svc.minicpmo45.support import CONFIG, begin, embed, folded_weights, model, thought
from torch_kit.page_table import PageTable
from torch_kit.ragged import RaggedBatch

FIXTURE: dict[str, Any] = dict(np.load(Path(__file__).parent / "fixtures" / "reference_codes.npz"))
UNITS: list[tuple[int, int, int]] = [tuple(unit) for unit in FIXTURE["units"].tolist()]
SEEDS = (9, 16, 21)


def _words(unit: int) -> Words:
    _, tokens, end = UNITS[unit]
    ids, hidden = thought(tokens, 1000 + unit)
    return Words(tuple(ids), hidden, bool(end))


def _settings() -> MiniCpmTalkerSettings:
    return MiniCpmTalkerSettings(checkpoint=Path())


class _Session:
    """Speaks all turns of the fixture, and notes the codes of each unit and the logits of its first one."""

    def __init__(self, talker: TalkerModel, sampler: CodeSampler, row: int, seed: int) -> None:
        self.talker, self.sampler, self.row = talker, sampler, row
        self.table = PageTable(talker.decoder.pool, 20)
        self.codes: list[list[int]] = [[] for _ in UNITS]
        self.first: list[Tensor] = []
        sampler.tune(row, Manner(seed=seed))
        self._inputs = self._speak()
        self.turn: Turn | None = next(self._inputs, None)

    def _speak(self) -> Iterator[Turn]:
        number = 0
        for each in dict.fromkeys(turn for turn, _, _ in UNITS):
            turn = Turn(Label(turn=each, response_id="r"), _settings())
            turn.waiting.extend(_words(unit) for unit in range(len(UNITS)) if UNITS[unit][0] == each)
            while not turn.over:
                self.unit = number + turn.units - (turn.unit is not None)
                yield turn
            number += turn.units
            self.table.clear()

    def heard(self, code: int) -> None:
        assert self.turn is not None
        if code != CONFIG.end_code:
            self.codes[self.unit].append(code)
        self.turn.drew([code], CONFIG.end_code)
        self.turn = next(self._inputs, None)


@cache
@torch.inference_mode()
def _speak(*seeds: int) -> list[_Session]:
    """The sessions after all turns, spoken in one batch."""
    talker = model(pages=80)
    sampler = CodeSampler(len(seeds), codes=CONFIG.codes, min_piece=5)
    sessions = [_Session(talker, sampler, row, seed) for row, seed in enumerate(seeds)]
    while active := [session for session in sessions if session.turn is not None]:
        turns = [session.turn for session in active if session.turn is not None]
        placed = [turn.place(session.table) for turn, session in zip(turns, active, strict=True)]
        new = [(session.row, turn.rule()) for turn, session in zip(turns, active, strict=True) if turn.unit is None]
        if new:
            begin(sampler, [row for row, _ in new], [rule for _, rule in new])
        inputs = [Input(turn.feeds_code, turn.waiting[0] if turn.unit is None else None) for turn in turns]
        feeding = torch.tensor([s.row for s, each in zip(active, inputs, strict=True) if each.code], dtype=torch.int64)
        logits = talker.logits(embed(talker, inputs, sampler.last[feeding]), RaggedBatch.of(placed))
        for session, turn, row in zip(active, turns, logits, strict=True):
            if turn.unit is None:
                session.first.append(row)
        codes = sampler.sample(torch.tensor([session.row for session in active]), logits).tolist()
        for session, code in zip(active, codes, strict=True):
            session.heard(code)
    return sessions


def _assert_codes(session: _Session, seed: int) -> None:
    for unit, codes in enumerate(session.codes):
        expected = FIXTURE[f"codes_{seed}_{unit}"].tolist()
        # ours goes on where the reference cuts a turn's tail at 25 codes
        assert codes[:25] == expected, unit
        assert len(codes) == len(expected) or (UNITS[unit][2] and len(expected) == 25)


@pytest.mark.parametrize("seed", SEEDS)
def test_codes_equal_the_reference_over_start_middle_and_end(seed: int) -> None:
    (session,) = _speak(seed)
    _assert_codes(session, seed)
    assert session.table.length == 0 and session.table.pool.held == 0


def test_probabilities_equal_the_reference() -> None:
    (session,) = _speak(16)
    for unit, logits in enumerate(session.first):
        scores = logits / 0.8
        if UNITS[unit][0] == 1 and unit in (1, 2):
            scores[CONFIG.end_code] = -torch.inf
        expected = torch.from_numpy(FIXTURE["first_probabilities"][unit])
        assert (scores.softmax(-1) - expected).abs().max() < 1e-5
        finite = expected > 1e-12
        assert (scores.log_softmax(-1) - expected.log())[finite].abs().max() < 1e-4


def test_conditions_equal_the_reference() -> None:
    talker = model()
    for unit in range(len(UNITS)):
        rows = embed(talker, [Input(code=False, words=_words(unit))], torch.zeros(0, dtype=torch.int64))
        assert (rows - torch.from_numpy(FIXTURE[f"condition_{unit}"])).abs().max() < 1e-5
    assert torch.equal(talker.condition.audio_bos, folded_weights()["tts.emb_text.weight"][CONFIG.audio_bos])


def test_sessions_in_one_batch_speak_as_they_do_alone() -> None:
    """Their units begin and end at different steps, so the rows are in different phases."""
    for session, seed in zip(_speak(*SEEDS), SEEDS, strict=True):
        _assert_codes(session, seed)


def test_logits_of_a_batch_equal_those_alone() -> None:
    (alone,) = _speak(16)
    beside = _speak(*SEEDS)[1]
    for one, other in zip(alone.first, beside.first, strict=True):
        assert (one - other).abs().max() < 1e-5
