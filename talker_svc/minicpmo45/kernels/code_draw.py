"""From logits to the code, the state of its session and the next input, in one pass over a row that stays in registers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.philox import exponentials


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a sampler knows of all its sessions, each tensor [rows, ...] and contiguous, and what holds for all of them."""

    state: Tensor
    """int64 [rows, 3 + window]: last code, codes made, whether stopped, the codes that the penalty looks back on."""
    rules: Tensor
    """int64 [rows, 3]: number of the unit, floor, whether it ends the turn."""
    seed: Tensor
    """int64 [rows]"""
    greedy: Tensor
    """bool [rows]"""
    temperature: Tensor
    """fp32 [rows]"""
    factors: Tensor
    """fp32 [rows, window + 1]: the penalty for a code that is so many times among them."""
    width: int
    """Codes; the last one ends a unit."""
    piece: int
    min_piece: int
    draw: int


@triton.jit(do_not_specialize_on_alignment=["logits", "rows", "codes"])
def _kernel(
    logits, rows, state, rules, seeds, greedy, temperatures, factors, codes, table, embeddings,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, PIECE: tl.constexpr, MIN_PIECE: tl.constexpr, DRAW: tl.constexpr,
    HIDDEN: tl.constexpr, HIDDEN_BLOCK: tl.constexpr, EMBED: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line).to(tl.int64)
    own = state + row * (3 + WINDOW)
    last, made, stopped = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    unit, floor, ending = tl.load(rules + row * 3), tl.load(rules + row * 3 + 1), tl.load(rules + row * 3 + 2)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(logits + line * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    fine = tl.abs(value) < float("inf")
    bad = tl.sum(tl.where(fine, 0, 1)) > 0
    score = tl.div_rn(tl.where(fine, value, 0.0), tl.load(temperatures + row))
    count = tl.zeros((BLOCK,), tl.int32)
    for place in tl.static_range(WINDOW):
        count += tl.where(column == tl.load(own + 3 + place), 1, 0)
    factor = tl.load(factors + row * (WINDOW + 1) + count, mask=count > 0, other=1.0)
    score = tl.where(score < 0, score * factor, tl.div_rn(score, factor))
    begun = made % PIECE
    short = (ending > 0) & (made > PIECE) & (begun > 0) & (begun < MIN_PIECE)
    may_end = (made >= floor) & (short == 0)
    score = tl.where(inside & ((column != WIDTH - 1) | may_end), score, float("-inf"))
    top = tl.max(score)
    bad = bad | ~(tl.abs(top) < float("inf"))
    weight = tl.exp(score - top)
    wait = exponentials(tl.load(seeds + row), unit, made, DRAW, tl.arange(0, BLOCK // 4), BLOCK)
    wait = tl.where(tl.load(greedy + row) != 0, 1.0, wait)
    won = tl.where(inside, tl.div_rn(weight, wait), -1.0)
    # of equals the first, as torch's argmax
    code = tl.min(tl.where(won == tl.max(won), column, WIDTH)).to(tl.int64)
    code = tl.where(stopped > 0, last, tl.where(bad, -1, code))
    tl.store(codes + line, code)
    if EMBED:
        part = tl.arange(0, HIDDEN_BLOCK)
        source = table + tl.where(code < 0, 0, code) * HIDDEN + part
        tl.store(embeddings + line * HIDDEN + part, tl.load(source, mask=part < HIDDEN, other=0.0), mask=part < HIDDEN)
    # a bad one is no code: the penalty must not look it up
    newest = tl.where(code < 0, WIDTH, code)
    place = tl.arange(0, WINDOW)
    held = tl.load(own + 3 + place)
    moved = tl.load(own + 3 + place + 1, mask=place < WINDOW - 1, other=0)
    ended = (code < 0) | (code == WIDTH - 1)
    # all threads have read the state before one of them writes it
    tl.debug_barrier()
    tl.store(own + 3 + place, tl.where(stopped > 0, held, tl.where(place == WINDOW - 1, newest, moved)))
    tl.store(own, code)
    tl.store(own + 1, tl.where(stopped > 0, made, made + 1))
    tl.store(own + 2, tl.where(stopped > 0, stopped, tl.where(ended, 1, 0)))


def draw_codes(
    drawing: Drawing, rows: Tensor, logits: Tensor, codes: Tensor, table: Tensor | None = None, embeddings: Tensor | None = None,
    *, warps: int = 0,
) -> None:  # fmt: skip
    """`codes` int64 [R] of logits [R, width], any float type, for the sessions `rows` [R]; their state goes on, see `CodeSampler`.

    With `table` [width, hidden]: `embeddings` [R, hidden] become its lines of these codes, line 0 for a code below 0. All contiguous.
    Draws are those of `torch_kit.draws.exponentials` but for rounding, see `torch_kit.kernels.philox`. Rows that share a session,
    as padding does, leave the state of any of them. `warps`: of a program; 0: chosen.
    """
    hidden = 1 if table is None else table.shape[1]
    block = triton.next_power_of_2(drawing.width)
    _kernel[(len(codes),)](
        logits, rows, drawing.state, drawing.rules, drawing.seed, drawing.greedy, drawing.temperature, drawing.factors,
        codes, table, embeddings,
        drawing.width, block, drawing.factors.shape[1] - 1, drawing.piece, drawing.min_piece, drawing.draw,
        hidden, triton.next_power_of_2(hidden), table is not None, num_warps=warps or min(max(block // 512, 1), 16),
    )  # fmt: skip
