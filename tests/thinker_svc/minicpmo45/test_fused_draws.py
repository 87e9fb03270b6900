"""The thinker's decisions by fused kernels against the plain ones: the same tokens, and all that slots hold, over many steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from minicpmo45.tokens import Tokens
from tests.support.interpreter import mend_interpreter
from tests.thinker_svc.minicpmo45.thinking import vocabulary_of
from thinker_svc.minicpmo45.decider import Decider
from thinker_svc.minicpmo45.fused_decider import FusedDecider
from thinker_svc.minicpmo45.kernels import survey as surveying
from thinker_svc.minicpmo45.sampler import HISTORY, Manner, Sampling
from thinker_svc.minicpmo45.script import FREE, Script
from thinker_svc.minicpmo45.unit import UnitRules

mend_interpreter()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
V, HIDDEN, SLOTS = 900, 20, 4
"""Ids: no multiple of a group or of a word."""
NAMED = ("chunk_eos", "chunk_tts_eos", "turn_eos", "listen", "im_end", "tts_pad", "speak", "tts_bos")
IDS = {name: 890 - 40 * index for index, name in enumerate(NAMED)}


def _tokens(checkpoint: Path) -> Tokens:
    base = vocabulary_of(checkpoint).tokens
    return Tokens(**{field: IDS.get(field, getattr(base, field)) for field in base.__struct_fields__})


class Pair:
    """Two deciders that were told the same."""

    def __init__(self, tokens: Tokens, script: Script | None = None) -> None:
        rng = np.random.default_rng(1)
        forbidden, characters = rng.random(V) < 0.1, rng.integers(0, 6, V)
        forbidden[list(IDS.values())] = False
        forbidden[[tokens.chunk_eos, tokens.tts_pad]] = True
        words: Any = SimpleNamespace(tokens=tokens, forbidden=forbidden, characters=characters)
        self.both = [Decider(words, SLOTS, HIDDEN, torch.float32, DEVICE, script) for _ in range(2)]
        self.fused = FusedDecider(self.both[1], tokens)

    def tune(self, slot: int, sampling: Sampling, rules: UnitRules = UnitRules()) -> None:
        for each in self.both:
            each.tune(slot, sampling, rules, 1000 + slot)

    def recall(self, slot: int, drawn: list[int]) -> None:
        for each in self.both:
            each.sampler.observe(slot, drawn)

    def decide(self, numbers: list[tuple[int, ...]], logits: Tensor, manner: Manner = Manner.NARROW) -> Tensor:
        """What both decided, padding left out, after it was compared."""
        given = torch.tensor(numbers, device=DEVICE)
        hidden = torch.randn(len(logits), HIDDEN, generator=torch.Generator().manual_seed(len(numbers))).to(DEVICE)
        expected = self.both[0].decide(given, hidden, logits.to(DEVICE), manner).cpu()
        found = self.fused.decide(given, hidden, logits.to(DEVICE), manner).cpu()
        real = [line for line, row in enumerate([*numbers, *numbers[: len(logits) - len(numbers)]]) if row[0] < SLOTS]
        assert torch.equal(found[real], expected[real]), (found, expected)
        for mine, other in zip(self.state(1), self.state(0), strict=True):
            assert torch.equal(mine, other)
        return expected

    def state(self, index: int) -> list[Tensor]:
        """Of the slots of sessions: all but what nobody reads."""
        decider = self.both[index]
        history, drawn = decider.sampler.tables.history[:SLOTS], decider.sampler.tables.drawn[:SLOTS]
        known = history.masked_fill(torch.arange(HISTORY, device=DEVICE) >= drawn[:, None], -1)
        units = [each[:SLOTS] for each in decider.units.tables[1:5]]
        return [known, drawn, decider.sampler.entered[:SLOTS], *units, decider.states[:SLOTS, :-1]]


def _sampling(rng: np.random.Generator) -> Sampling:
    return Sampling(
        temperature=float(rng.uniform(0.3, 1.5)),
        top_k=int(rng.choice([1, 3, 12])),
        top_p=float(rng.choice([0.0, 0.41, 0.93])),
        repetition_penalty=float(rng.choice([0.7, 1.0, 1.3])),
        length_penalty=float(rng.choice([0.5, 1.1, 2.0])),
        listen_prob_scale=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
        listen_token="listen" if rng.random() < 0.7 else "im_end",
        listen_top_k=int(rng.choice([0, 0, 2])),
        greedy=bool(rng.random() < 0.3),
    )


def _logits(rng: np.random.Generator, lines: int) -> Tensor:
    """Of bf16 values, so that there are ties; the named tokens are likely."""
    logits = torch.from_numpy(rng.standard_normal((lines, V)).astype(np.float32) * 2)
    for name, raised in (("chunk_eos", 6), ("listen", 6), ("speak", 9), ("turn_eos", 5), ("tts_bos", 3)):
        logits[:, IDS[name]] += torch.from_numpy(rng.choice([-3, raised], lines))
    return logits.bfloat16().float()


def _play(pair: Pair, rng: np.random.Generator, steps: int) -> set[str]:
    """Random batches, with drafts and padding; what was met."""
    met, unit, opening, is_open = set(), [0] * SLOTS, [True] * SLOTS, [False] * SLOTS
    for _ in range(steps):
        chosen = rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)].tolist()
        drafts = int(rng.integers(0, len(chosen) + 1))
        rows = [(slot, unit[slot], int(not opening[slot]), int(is_open[slot]), 0, int(row < drafts)) for row, slot in enumerate(chosen)]
        rows += [pair.both[0].padding] * int(rng.integers(0, 3))
        drafts = min(drafts + int(rng.integers(0, 2)), len(rows))
        logits = _logits(rng, len(rows) + drafts)
        logits[[line for line in range(len(logits)) if rng.random() < 0.03]] += torch.inf
        decided = pair.decide(rows, logits) if logits.isfinite().all() else _bad(pair, rows, logits)
        for row, slot in enumerate(chosen):
            ended = bool(decided[row, 1])
            if row < drafts and decided[len(rows) + row, 0] >= 0:
                met.add("accepted")
                ended = bool(decided[len(rows) + row, 1])
            elif row < drafts:
                met.add("rejected")
            met |= {name for name in NAMED if int(decided[row, 0]) == IDS[name]} | ({"entered"} if decided[row, 3] >= 0 else {"left out"})
            opening[slot], unit[slot] = ended, unit[slot] + ended
            is_open[slot] = bool(pair.both[0].units.turn_open[slot])
    return met


def _bad(pair: Pair, rows: list[tuple[int, ...]], logits: Tensor) -> Tensor:
    """A bad line says so, and disturbs no other: without the rows of bad lines, all is as ever."""
    lines = logits.isfinite().all(1)
    drafts = len(logits) - len(rows)
    given = torch.tensor(rows, device=DEVICE)
    kept = [[each.clone() for each in _all(pair, 1)], torch.zeros(len(logits), HIDDEN, device=DEVICE)]
    found = pair.fused.decide(given, kept[1], logits.to(DEVICE), Manner.NARROW).cpu()
    assert torch.equal(found[: len(rows), 2] > 0, lines[: len(rows)])
    told = found[len(rows) :, 0] >= 0
    assert not told[~lines[:drafts]].any() and torch.equal(found[len(rows) :, 2][told] > 0, lines[len(rows) :][told])
    for held, was in zip(_all(pair, 1), kept[0], strict=True):
        held.copy_(was)
    good = [row for row in range(len(rows)) if lines[row] and (row >= drafts or lines[len(rows) + row])]
    if not good:
        return torch.full((len(rows) + drafts, 4), -1)
    places = [*good, *(len(rows) + row for row in good if row < drafts)]
    decided = pair.decide([rows[row] for row in good], logits[places])
    whole = torch.full((len(rows) + drafts, 4), -1)
    whole[places] = decided
    real = [place for place in places if rows[place if place < len(rows) else place - len(rows)][0] < SLOTS]
    assert torch.equal(found[real], whole[real])
    return whole


def _all(pair: Pair, index: int) -> list[Tensor]:
    decider = pair.both[index]
    return [*decider.sampler.tables[2:5], *decider.units.tables[1:5], decider.states]


@pytest.mark.behaviour("N44", "N48", "S1")
def test_many_steps_of_rows_of_all_kinds(tiny_checkpoint: Path) -> None:
    rng = np.random.default_rng(18)
    pair = Pair(_tokens(tiny_checkpoint))
    for slot in range(SLOTS):
        pair.tune(slot, _sampling(rng), UnitRules(int(rng.choice([4, 20])), int(rng.choice([9, 28]))))
        pair.recall(slot, rng.integers(0, V, (0, 5, HISTORY, HISTORY + 3)[slot]).tolist())
    met = _play(pair, rng, 8)
    assert met >= {"accepted", "rejected", "entered", "left out", "listen", "chunk_eos", "speak", "turn_eos", "tts_bos"}


@pytest.mark.parametrize("repeat", [True, False])
def test_scripted_rows(repeat: bool, tiny_checkpoint: Path) -> None:
    speak, listen, turn_eos, chunk_eos = (IDS[name] for name in ("speak", "listen", "turn_eos", "chunk_eos"))
    table = torch.tensor([[speak, 66, FREE, chunk_eos], [listen, FREE, FREE, FREE], [FREE, FREE, turn_eos, FREE]], device=DEVICE)
    pair, rng = Pair(_tokens(tiny_checkpoint), Script(table, repeat=repeat, stagger=1)), np.random.default_rng(13)
    for slot in range(SLOTS):
        pair.tune(slot, _sampling(rng))
    assert _play(pair, rng, 4) >= {"accepted", "rejected"}


@pytest.mark.behaviour("N44")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(levels=st.integers(1, 40), top_k=st.integers(1, 64), seed=st.integers(0, 2**31), raised=st.integers(0, 70))
def test_ties_and_neighbours(tiny_checkpoint: Path, levels: int, top_k: int, seed: int, raised: int) -> None:
    """Few levels of scores: up to a whole vocabulary at the highest; and so many of the highest side by side."""
    pair, rng = Pair(_tokens(tiny_checkpoint)), np.random.default_rng(seed)
    pair.tune(0, Sampling(top_k=top_k, top_p=0.0, temperature=0.77, repetition_penalty=1.0))
    logits = torch.from_numpy(rng.integers(0, levels, (1, V)).astype(np.float32)) / 4
    logits[0, 200 : 200 + raised] += 10
    spread = logits.masked_fill(torch.from_numpy(pair.both[0].sampler.tables.forbidden.cpu().numpy()), -torch.inf)
    least = spread.topk(top_k).values[0, -1]
    if int((spread >= least).sum()) <= 128:
        pair.decide([(0, seed, 0, 0, 0, 0)], logits)
    else:
        # more stay than the narrow draw looks at: the lowest ids of those
        row, hidden = torch.tensor([[0, seed, 0, 0, 0, 0]], device=DEVICE), torch.zeros(1, HIDDEN, device=DEVICE)
        token = int(pair.fused.decide(row, hidden, logits.to(DEVICE), Manner.NARROW)[0, 0])
        order = torch.sort(spread[0], descending=True, stable=True).indices[:128].tolist()
        assert token in (*order, IDS["chunk_eos"], IDS["tts_bos"])


def test_all_may_be_drawn_where_a_row_wants_it(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinker_svc.minicpmo45.fused_decider.WIDE_ROWS", 2)
    pair, rng = Pair(_tokens(tiny_checkpoint)), np.random.default_rng(9)
    for slot in range(SLOTS):
        pair.tune(slot, Sampling(top_k=0 if slot % 2 else 5, top_p=0.97))
    for step in range(3):
        rows = [(slot, step, 0, 0, 0, int(slot < 3)) for slot in range(SLOTS - 1)]
        pair.decide(rows, _logits(rng, len(rows) + 3), Manner.WIDE)


def test_greedy_rows_draw_nothing(tiny_checkpoint: Path) -> None:
    pair, rng = Pair(_tokens(tiny_checkpoint)), np.random.default_rng(10)
    for slot in range(SLOTS):
        pair.tune(slot, Sampling(greedy=True))
    for step in range(2):
        pair.decide([(slot, 0, step, 0, 0, 1) for slot in range(2)], _logits(rng, 4), Manner.GREEDY)


def test_blocks_of_any_size_say_the_same(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    logits, found = _logits(rng, 2), []
    chosen = surveying.survey
    for block in (256, 1024):
        monkeypatch.setattr("thinker_svc.minicpmo45.fused_decider.survey", lambda *given, block=block: chosen(*given, block=block))
        pair = Pair(_tokens(tiny_checkpoint))
        for slot in range(2):
            pair.tune(slot, Sampling(top_k=20, temperature=1.4))
        found.append(pair.decide([(slot, 3, 0, 0, 0, 0) for slot in range(2)], logits))
    assert torch.equal(*found)
