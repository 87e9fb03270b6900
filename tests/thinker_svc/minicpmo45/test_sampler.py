"""The sampler against a slow computation of its rules, row by row."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from minicpmo45.tokens import Tokens
from tests.thinker_svc.minicpmo45.thinking import vocabulary_of
from thinker_svc.minicpmo45.sampler import HISTORY, Draws, Manner, Sampler, Sampling
from torch_kit.draws import exponentials

V = 64
IDS = {"chunk_eos": 60, "chunk_tts_eos": 59, "turn_eos": 58, "listen": 57, "im_end": 56, "tts_pad": 55}
FORBIDDEN = [60, 55, 1, 2]


@pytest.fixture
def tokens(tiny_checkpoint: Path) -> Tokens:
    base = vocabulary_of(tiny_checkpoint).tokens
    return Tokens(**{field: IDS.get(field, getattr(base, field)) for field in base.__struct_fields__})


def _sampler(tokens: Tokens, slots: int) -> Sampler:
    forbidden = torch.zeros(V, dtype=torch.bool)
    forbidden[FORBIDDEN] = True
    return Sampler(tokens, forbidden, slots)


def _slow(logits: np.ndarray, setting: Sampling, history: list[int], waits: np.ndarray) -> tuple[int, bool]:
    """One row in fp64, without a tensor: the token, and whether the history has it."""

    def softmax(scores: dict[int, float]) -> dict[int, float]:
        top = max(scores.values())
        parts = {token: math.exp(score - top) for token, score in scores.items()}
        return {token: part / sum(parts.values()) for token, part in parts.items()}

    def draw(scores: dict[int, float], race: np.ndarray) -> int:
        if setting.greedy:
            return max(scores, key=lambda token: scores[token])
        chances = softmax(scores)
        return max(chances, key=lambda token: chances[token] / race[token])

    first = draw(dict(enumerate(logits.tolist())), waits[0])
    if first == IDS["chunk_eos"]:
        return first, False
    scores = {token: score for token, score in enumerate(logits.tolist()) if token not in FORBIDDEN}
    for token in set(history[-HISTORY:]) & set(scores):
        scores[token] /= setting.repetition_penalty
    end = scores[IDS["turn_eos"]]
    scores[IDS["turn_eos"]] = end / setting.length_penalty if end > 0 else end * setting.length_penalty
    listen = IDS[setting.listen_token]
    scores[listen] *= setting.listen_prob_scale
    if sum(score > scores[listen] for score in scores.values()) < setting.listen_top_k:
        return listen, False
    if setting.greedy:
        return draw(scores, waits[1]), True
    scores = {token: score / setting.temperature for token, score in scores.items()}
    if setting.top_k:
        least = sorted(scores.values())[-setting.top_k :][0]
        scores = {token: score for token, score in scores.items() if score >= least}
    if setting.top_p:
        kept, total = {}, 0.0
        for token, chance in sorted(softmax(scores).items(), key=lambda item: (-item[1], item[0])):
            if total > setting.top_p:
                break
            kept[token] = scores[token]
            total += chance
        scores = kept
    return draw(scores, waits[1]), True


def _settings(rng: np.random.Generator) -> Sampling:
    return Sampling(
        temperature=float(rng.uniform(0.3, 1.5)),
        top_k=int(rng.choice([0, 1, 3, 20])),
        top_p=float(rng.choice([0.0, 0.4, 0.9])),
        repetition_penalty=float(rng.choice([0.7, 1.0, 1.3])),
        length_penalty=float(rng.choice([0.5, 1.1, 2.0])),
        listen_prob_scale=float(rng.choice([0.5, 1.0, 2.0])),
        listen_token="listen" if rng.random() < 0.7 else "im_end",
        listen_top_k=int(rng.choice([0, 0, 2])),
        greedy=bool(rng.random() < 0.2),
    )


@pytest.mark.behaviour("N44", "S1")
def test_rows_of_one_batch_follow_the_rules_each_by_its_own_settings_and_history(tokens: Tokens) -> None:
    rng = np.random.default_rng(3)
    rows = 12
    sampler, settings = _sampler(tokens, rows), [_settings(rng) for _ in range(rows)]
    histories: list[list[int]] = [[] for _ in range(rows)]
    for slot, setting in enumerate(settings):
        sampler.tune(slot, setting)
    kinds = set()
    for step in range(40):
        slots = torch.from_numpy(rng.permutation(rows)[: rng.integers(1, rows + 1)])
        logits = rng.standard_normal((len(slots), V)).astype(np.float32) * 2
        logits[:, IDS["chunk_eos"]] += rng.choice([-3, 4], len(slots))
        logits[:, IDS["listen"]] += rng.choice([-3, 3], len(slots))
        draws = Draws(slots + 5, torch.full_like(slots, 7), torch.full_like(slots, step))
        waits = torch.stack([exponentials(*draws[:3], draw, V) for draw in (0, 1)]).numpy()
        counted = torch.from_numpy(rng.random(len(slots)) < 0.8)
        found = sampler.sample(slots, torch.from_numpy(logits), draws, counted).tolist()
        for row, slot in enumerate(slots.tolist()):
            token, entered = _slow(logits[row], settings[slot], histories[slot], waits[:, row])
            assert found[row] == token, (step, slot, settings[slot])
            kinds.add((token == IDS["chunk_eos"], entered))
            if entered and counted[row]:
                histories[slot].append(token)
    assert len(kinds) == 3


@pytest.mark.behaviour("N44")
def test_the_penalty_forgets_what_is_older_than_its_window(tokens: Tokens) -> None:
    sampler = _sampler(tokens, 1)
    sampler.tune(0, Sampling(greedy=True, repetition_penalty=2.0))
    slot, zero = torch.tensor([0]), torch.tensor([0])
    draws, counted = Draws(zero, zero, zero), torch.tensor([True])

    def say(best: int, second: int) -> int:
        logits = torch.full((1, V), -1.0)
        logits[0, best], logits[0, second] = 3.0, 2.0
        return int(sampler.sample(slot, logits, draws, counted, manner=Manner.GREEDY))

    assert say(20, 21) == 20 and say(20, 21) == 21
    for token in range(HISTORY - 1):
        say(30 + token % 20, 3)
    assert say(21, 22) == 22, "the 512th last is still penalised"
    assert say(20, 22) == 20, "what is older is not"
    sampler.forget(0)
    assert say(30, 31) == 30


def test_a_script_replaces_what_is_drawn_and_enters_the_history(tokens: Tokens) -> None:
    sampler = _sampler(tokens, 2)
    for slot in (0, 1):
        sampler.tune(slot, Sampling(greedy=True, repetition_penalty=2.0))
    slots, zero = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int64)
    logits = torch.full((2, V), -1.0)
    logits[:, 20], logits[:, 21] = 3.0, 2.0
    draws, counted = Draws(zero, zero, zero), torch.ones(2, dtype=torch.bool)
    assert sampler.sample(slots, logits, draws, counted, torch.tensor([-1, 40]), manner=Manner.GREEDY).tolist() == [20, 40]
    assert sampler.sample(slots, logits, draws, counted, torch.tensor([-1, -1]), manner=Manner.GREEDY).tolist() == [21, 20]


@pytest.mark.behaviour("N44")
def test_the_narrow_draw_is_the_wide_one(tokens: Tokens) -> None:
    """Over more columns than the narrow one looks at, with ties at k."""
    size, rows = 400, 16
    forbidden = torch.zeros(size, dtype=torch.bool)
    forbidden[FORBIDDEN] = True
    generator = torch.Generator().manual_seed(2)
    slots, zero = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    narrow, wide = Sampler(tokens, forbidden, rows), Sampler(tokens, forbidden, rows)
    for sampler in (narrow, wide):
        for slot in range(rows):
            sampler.tune(slot, Sampling(temperature=1.5, top_k=1 + 4 * slot, top_p=(0.0, 0.6, 0.95)[slot % 3]))
    assert narrow.manner(range(rows)) is Manner.NARROW
    for step in range(20):
        logits = torch.randn(rows, size, generator=generator).mul(4).round().div(4)
        draws, counted = Draws(slots, zero, zero + step), torch.ones(rows, dtype=torch.bool)
        found = [
            sampler.sample(slots, logits, draws, counted, manner=manner)
            for sampler, manner in ((narrow, Manner.NARROW), (wide, Manner.WIDE))
        ]
        assert torch.equal(*found)


def test_nothing_scaled_to_zero_becomes_nan(tokens: Tokens) -> None:
    sampler = _sampler(tokens, 1)
    sampler.tune(0, Sampling(listen_prob_scale=0.0, temperature=0.05))
    zero = torch.tensor([0])
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(1))
    assert 0 <= int(sampler.sample(zero, logits, Draws(zero, zero, zero), torch.tensor([True]))) < V
