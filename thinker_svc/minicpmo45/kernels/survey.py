"""One pass over the logits: the first draw of each block of ids, and what the second needs to know of it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinker_svc.minicpmo45.kernels.score import CHOICES, FIELDS, SETTINGS, bit, finite, penalised, step_of, turned
from torch_kit.kernels.philox import exponentials

GROUP = 64
"""Ids whose highest score is noted."""
NUMBERS, COUNTS = 3, 5


class Survey(NamedTuple):
    """Of each line and block of ids."""

    numbers: Tensor
    """fp32 [lines, NUMBERS, blocks]: highest logit; highest probability by exponential, as if that logit's were 1; highest score."""
    counts: Tensor
    """int32 [lines, COUNTS, blocks]: ids of these three; 1 if all logits are finite; how many scores are above the listen token's."""
    tops: Tensor
    """fp32 [lines, groups]: highest score of each GROUP ids."""


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["numbers"])
def _kernel(
    logits, numbers, steps, seeds, settings, choices, forbidden, marks, best, counts, tops, rows,
    FIELDS: tl.constexpr, SETTINGS: tl.constexpr, CHOICES: tl.constexpr, VOCABULARY: tl.constexpr, WORDS: tl.constexpr,
    TURN_EOS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    line = tl.program_id(1)
    drafted = line >= rows
    slot, unit, step = step_of(numbers, steps, tl.where(drafted, line - rows, line), drafted.to(tl.int64), FIELDS)
    penalty = tl.load(settings + slot * SETTINGS + 2)
    length_penalty = tl.load(settings + slot * SETTINGS + 3)
    listen_scale = tl.load(settings + slot * SETTINGS + 4)
    listen_token = tl.load(choices + slot * CHOICES + 1).to(tl.int32)
    greedy = tl.load(choices + slot * CHOICES + 3) > 0
    line = line.to(tl.int64)
    mine = logits + line * VOCABULARY

    # the two ids that have rules of their own, once for all
    lane = tl.arange(0, 2)
    own = tl.where(lane == 0, listen_token, TURN_EOS)
    forbids, seen = tl.load(forbidden + (own >> 5)), tl.load(marks + line * WORDS + (own >> 5))
    scores = penalised(finite(tl.load(mine + own)), bit(forbids, own), bit(seen, own), penalty)
    scores = turned(scores, own, length_penalty, listen_token, listen_scale, TURN_EOS)
    listen = tl.max(tl.where(lane == 0, scores, float("-inf")), 0)
    end = tl.max(tl.where(lane == 1, scores, float("-inf")), 0)

    column = block * BLOCK + tl.arange(0, BLOCK)
    mask = column < VOCABULARY
    given = tl.load(mine + column, mask=mask, other=0.0).to(tl.float32)
    bad = tl.sum((tl.abs(given) < float("inf")).to(tl.int32), 0) < BLOCK
    value = tl.where(mask, finite(given), float("-inf"))
    top, top_place = tl.max(value, 0, return_indices=True)
    ratio, ratio_place = tl.full((), 0.0, tl.float32), top_place
    if greedy == 0:
        waits = exponentials(seed=tl.load(seeds + slot), unit=unit, step=step, draw=0,
                             blocks=block * (BLOCK // 4) + tl.arange(0, BLOCK // 4), COLUMNS=BLOCK)  # fmt: skip
        chance = tl.exp(value - tl.where(top == float("-inf"), 0.0, top))
        ratio, ratio_place = tl.max(chance / waits, 0, return_indices=True)

    word = column >> 5
    forbids = tl.load(forbidden + word, mask=mask, other=-1)
    seen = tl.load(marks + line * WORDS + word, mask=mask, other=0)
    score = penalised(value, bit(forbids, column), bit(seen, column), penalty)
    score = tl.where(column == TURN_EOS, end, tl.where(column == listen_token, listen, score))
    highest, highest_place = tl.max(score, 0, return_indices=True)
    groups = tl.max(tl.reshape(score, (BLOCK // GROUP, GROUP)), 1)
    group = block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    tl.store(tops + line * (BLOCKS * (BLOCK // GROUP)) + group, groups)

    place = best + line * (3 * BLOCKS) + block
    tl.store(place, top)
    tl.store(place + BLOCKS, ratio)
    tl.store(place + 2 * BLOCKS, highest)
    place = counts + line * (5 * BLOCKS) + block
    tl.store(place, block * BLOCK + top_place)
    tl.store(place + BLOCKS, block * BLOCK + ratio_place)
    tl.store(place + 2 * BLOCKS, block * BLOCK + highest_place)
    tl.store(place + 3 * BLOCKS, 1 - bad.to(tl.int32))
    tl.store(place + 4 * BLOCKS, tl.sum((score > listen).to(tl.int32), 0))


def survey(
    logits: Tensor,
    numbers: Tensor,
    steps: Tensor,
    seeds: Tensor,
    settings: Tensor,
    choices: Tensor,
    forbidden: Tensor,
    marks: Tensor,
    turn_eos: int,
    block: int | None = None,
    warps: int | None = None,
) -> Survey:
    """A `Survey` of `logits` [lines, vocabulary], which are read once.

    numbers int64 [rows, FIELDS]; steps, seeds int64 [slots]; settings fp32 [slots, SETTINGS]; choices int64 [slots, CHOICES]; forbidden
    int32 [words], marks int32 [lines, words]: bits. `block`: ids a program, a power of two from GROUP on.
    """
    lines, vocabulary = logits.shape
    size = block or _block(lines, vocabulary, logits.is_cuda)
    blocks = triton.cdiv(vocabulary, size)
    best = torch.empty(lines, NUMBERS, blocks, dtype=torch.float32, device=logits.device)
    counts = torch.empty(lines, COUNTS, blocks, dtype=torch.int32, device=logits.device)
    tops = torch.empty(lines, blocks * (size // GROUP), dtype=torch.float32, device=logits.device)
    _kernel[(blocks, lines)](
        logits, numbers, steps, seeds, settings, choices, forbidden, marks, best, counts, tops, len(numbers),
        FIELDS, SETTINGS, CHOICES, vocabulary, marks.shape[1], turn_eos, blocks, size, GROUP, num_warps=warps or min(size // 256, 8),
    )  # fmt: skip
    return Survey(best, counts, tops)


def _block(lines: int, vocabulary: int, on_card: bool) -> int:
    # the interpreter's time goes by programs
    return (1024 if lines <= 8 else 2048) if on_card else min(65536, triton.next_power_of_2(vocabulary))
