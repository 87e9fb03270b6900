"""Both draws of each line: the first from its blocks' best, the second among its highest scores, which are looked for where they can be."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinker_svc.minicpmo45.kernels.score import CHOICES, FIELDS, SETTINGS, bit, finite, penalised, sortable, step_of, turned, unsorted
from thinker_svc.minicpmo45.kernels.survey import COUNTS, GROUP, NUMBERS, Survey
from torch_kit.kernels.philox import exponentials_at

KEPT = 128
"""Scores that the second draw may be among."""
ROOM = 512
"""Candidates that are held at once; half as many are looked at at once."""
EACH = 8
"""Candidates that all are compared with at once."""
PICKS = 4


@triton.jit
def _floor(tops, count, GROUPS: tl.constexpr, PADDED: tl.constexpr):
    """A score that at least `count` scores reach, if so many are: the `count`-th highest of the groups' highest, its last 12 bits 0."""
    group = tl.arange(0, PADDED)
    keys = sortable(tl.load(tops + group, mask=group < GROUPS, other=float("-inf")))
    order = keys.to(tl.int64) + 2147483648
    floor = tl.zeros((), tl.int64)
    for index in range(20):
        wanted = floor + (tl.full((), 2147483648, tl.int64) >> index)
        floor = tl.where(tl.sum((order >= wanted).to(tl.int32), 0) >= count, wanted, floor)
    # not below the lowest finite number
    return unsorted((tl.maximum(floor, 8388608) - 2147483648).to(tl.int32))


@triton.jit
def _order(found, held, ROOM: tl.constexpr, KEPT: tl.constexpr, EACH: tl.constexpr):
    """The highest KEPT of the `held` keys at `found`, all different, are put in falling order; gives the last of these."""
    place = tl.arange(0, ROOM)
    tl.debug_barrier()
    keys = tl.load(found + place, mask=place < held, other=-9223372036854775808)
    rank = tl.zeros((ROOM,), tl.int32)
    for start in range(0, held, EACH):
        other = start + tl.arange(0, EACH)
        others = tl.load(found + other, mask=other < held, other=-9223372036854775808)
        rank += tl.sum((others[None, :] > keys[:, None]).to(tl.int32), 1)
    tl.debug_barrier()
    kept = (place < held) & (rank < KEPT)
    tl.store(found + rank, keys, mask=kept)
    tl.debug_barrier()
    return tl.min(tl.where(kept, keys, 9223372036854775807), 0)


@triton.jit
def _candidates(
    logits, tops, forbidden, marks, groups, found, count, temperature, penalty, length_penalty, listen_token, listen_scale,
    VOCABULARY: tl.constexpr, TURN_EOS: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr,
    KEPT: tl.constexpr, ROOM: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """How many scores by temperature are not below the `count`-th, KEPT at most: score and id in one int64, falling, at `found`."""
    floor = tl.div_rn(_floor(tops, count, GROUPS, PADDED), temperature)
    group = tl.arange(0, PADDED)
    top = tl.load(tops + group, mask=group < GROUPS, other=float("-inf"))
    good = (top > float("-inf")) & (tl.div_rn(top, temperature + tl.zeros_like(top)) >= floor)
    tl.store(groups + tl.cumsum(good.to(tl.int32), 0) - 1, group, mask=good)
    wanted = tl.sum(good.to(tl.int32), 0)
    tl.debug_barrier()

    least = sortable(floor).to(tl.int64) << 32
    held = tl.zeros((), tl.int32)
    lane = tl.arange(0, ROOM // 2)
    for start in range(0, wanted, ROOM // 2 // GROUP):
        index = start + lane // GROUP
        column = tl.load(groups + index, mask=index < wanted, other=0) * GROUP + lane % GROUP
        mask = (index < wanted) & (column < VOCABULARY)
        value = finite(tl.load(logits + column, mask=mask, other=float("-inf")))
        forbids = tl.load(forbidden + (column >> 5), mask=mask, other=-1)
        seen = tl.load(marks + (column >> 5), mask=mask, other=0)
        score = penalised(value, bit(forbids, column), bit(seen, column), penalty)
        score = turned(score, column, length_penalty, listen_token, listen_scale, TURN_EOS)
        mask = mask & (score > float("-inf"))
        scaled = sortable(tl.div_rn(score, temperature + tl.zeros_like(score)))
        key = (scaled.to(tl.int64) << 32) | (2147483647 - column).to(tl.int64)
        taken = mask & (key >= least)
        more = tl.sum(taken.to(tl.int32), 0)
        if held + more > ROOM:
            # only the best stay, and what comes must be better than they are
            least = _order(found, held, ROOM, KEPT, EACH)
            held = tl.zeros((), tl.int32) + KEPT
            taken = mask & (key > least)
            more = tl.sum(taken.to(tl.int32), 0)
        tl.store(found + held + tl.cumsum(taken.to(tl.int32), 0) - 1, key, mask=taken)
        held += more
    _order(found, held, ROOM, KEPT, EACH)
    return tl.minimum(held, KEPT)


@triton.jit
def _draw(found, held, count, share, seed, unit, step, KEPT: tl.constexpr):
    """int32: the second draw among candidates by top-k (ties with the k-th stay) and top-p (the one that passes stays)."""
    place = tl.arange(0, KEPT)
    keys = tl.load(found + place, mask=place < held, other=0)
    scaled = unsorted((keys >> 32).to(tl.int32))
    column = 2147483647 - (keys & 4294967295).to(tl.int32)
    last = tl.sum(tl.where(place == tl.minimum(count, held) - 1, scaled, 0.0), 0)
    kept = (place < held) & (scaled >= last)
    top = tl.sum(tl.where(place == 0, scaled, 0.0), 0)
    chance = tl.exp(tl.where(kept, scaled - top, float("-inf")))
    chance = chance / tl.sum(chance, 0)
    within = kept & (tl.cumsum(chance, 0) <= share)
    kept = kept & (place <= tl.sum(within.to(tl.int32), 0))
    waits = exponentials_at(seed, unit, step, 1, tl.where(kept, column, 0))
    _, chosen = tl.max(tl.where(kept, chance / waits, -1.0), 0, return_indices=True)
    return tl.sum(tl.where((place == chosen) & (held > 0), column, 0), 0)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["numbers"])
def _kernel(
    logits, numbers, steps, seeds, settings, choices, forbidden, marks, best, counts, tops, groups, found, picks, rows,
    FIELDS: tl.constexpr, SETTINGS: tl.constexpr, CHOICES: tl.constexpr, VOCABULARY: tl.constexpr, WORDS: tl.constexpr,
    TURN_EOS: tl.constexpr, CHUNK_EOS: tl.constexpr, BLOCKS: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr,
    PADDED: tl.constexpr, GROUP: tl.constexpr, KEPT: tl.constexpr, ROOM: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    drafted = line >= rows
    slot, unit, step = step_of(numbers, steps, tl.where(drafted, line - rows, line), drafted.to(tl.int64), FIELDS)
    greedy = tl.load(choices + slot * CHOICES + 3) > 0
    line = line.to(tl.int64)

    block = tl.arange(0, WIDE)
    mask = block < BLOCKS
    best += line * (3 * BLOCKS)
    counts += line * (5 * BLOCKS)
    top = tl.load(best + block, mask=mask, other=float("-inf"))
    ratio = tl.load(best + BLOCKS + block, mask=mask, other=0.0)
    highest = tl.load(best + 2 * BLOCKS + block, mask=mask, other=float("-inf"))
    most, most_block = tl.max(top, 0, return_indices=True)
    shift = tl.where(top == float("-inf"), 0.0, tl.exp(top - tl.where(most == float("-inf"), 0.0, most)))
    _, ratio_block = tl.max(tl.where(mask, ratio * shift, -1.0), 0, return_indices=True)
    _, highest_block = tl.max(highest, 0, return_indices=True)
    # of equals the lowest block, whose id is the lowest
    first = tl.where(greedy, tl.load(counts + most_block), tl.load(counts + BLOCKS + ratio_block))
    second = tl.load(counts + 2 * BLOCKS + highest_block)
    good = tl.min(tl.load(counts + 3 * BLOCKS + block, mask=mask, other=1), 0)
    above = tl.sum(tl.load(counts + 4 * BLOCKS + block, mask=mask, other=0), 0)
    at_once = (above < tl.load(choices + slot * CHOICES + 2)).to(tl.int32)

    if (greedy == 0) & (first != CHUNK_EOS) & (at_once == 0):
        count = tl.minimum(tl.load(choices + slot * CHOICES), KEPT).to(tl.int32)
        settings += slot * SETTINGS
        found += line * ROOM
        held = _candidates(
            logits + line * VOCABULARY, tops + line * GROUPS, forbidden, marks + line * WORDS, groups + line * GROUPS, found,
            count, tl.load(settings), tl.load(settings + 2), tl.load(settings + 3), tl.load(choices + slot * CHOICES + 1).to(tl.int32),
            tl.load(settings + 4), VOCABULARY, TURN_EOS, GROUPS, PADDED, GROUP, KEPT, ROOM, EACH,
        )  # fmt: skip
        second = _draw(found, held, count, tl.load(settings + 1), tl.load(seeds + slot), unit, step, KEPT)

    picks += line * 4
    tl.store(picks, first)
    tl.store(picks + 1, second)
    tl.store(picks + 2, at_once)
    tl.store(picks + 3, good)


def shortlist(
    logits: Tensor,
    surveyed: Survey,
    numbers: Tensor,
    steps: Tensor,
    seeds: Tensor,
    settings: Tensor,
    choices: Tensor,
    forbidden: Tensor,
    marks: Tensor,
    turn_eos: int,
    chunk_eos: int,
    warps: int = 4,
) -> Tensor:
    """int32 [lines, PICKS]: first draw, second draw, whether the listen token is taken at once, whether all logits are finite.

    Arguments as of `survey`, which gave `surveyed`. The second draw is among at most KEPT scores; it means something only where the first
    is not `chunk_eos` and the listen token is not taken. With a NaN or infinity among the logits both draws are ids that mean nothing.
    """
    lines, vocabulary = logits.shape
    blocks, width = surveyed.numbers.shape[2], surveyed.tops.shape[1]
    assert surveyed.numbers.shape[1] == NUMBERS and surveyed.counts.shape[1] == COUNTS
    groups = torch.empty(lines, width, dtype=torch.int32, device=logits.device)
    found = torch.empty(lines, ROOM, dtype=torch.int64, device=logits.device)
    picks = torch.empty(lines, PICKS, dtype=torch.int32, device=logits.device)
    _kernel[(lines,)](
        logits, numbers, steps, seeds, settings, choices, forbidden, marks, *surveyed, groups, found, picks, len(numbers),
        FIELDS, SETTINGS, CHOICES, vocabulary, marks.shape[1], turn_eos, chunk_eos, blocks, triton.next_power_of_2(blocks), width,
        triton.next_power_of_2(width), GROUP, KEPT, ROOM, EACH, num_warps=warps,
    )  # fmt: skip
    return picks
