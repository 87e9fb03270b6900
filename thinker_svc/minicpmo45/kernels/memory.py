"""What each line's repetition penalty remembers, as a bit for each id."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from thinker_svc.minicpmo45.kernels.score import FIELDS


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["numbers"])
def _kernel(
    numbers, history, drawn, marks, rows,
    FIELDS: tl.constexpr, HISTORY: tl.constexpr, WORDS: tl.constexpr, SPEAK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    drafted = line >= rows
    slot = tl.load(numbers + tl.where(drafted, line - rows, line) * FIELDS)
    mine = marks + line.to(tl.int64) * WORDS
    for start in range(0, WORDS, BLOCK):
        word = start + tl.arange(0, BLOCK)
        tl.store(mine + word, tl.zeros((BLOCK,), tl.int32), mask=word < WORDS)
    tl.debug_barrier()
    count = tl.load(drawn + slot)
    place = tl.arange(0, HISTORY)
    # <|speak|>, the draft, took the place of the oldest
    draft = tl.where(drafted, count % HISTORY, -1)
    kept = (place < count) & (place != draft)
    token = tl.load(history + slot * HISTORY + place, mask=kept, other=SPEAK).to(tl.int32)
    tl.atomic_or(mine + (token >> 5), tl.full((HISTORY,), 1, tl.int32) << (token & 31), mask=kept | (place == draft), sem="relaxed")


def remember(numbers: Tensor, history: Tensor, drawn: Tensor, marks: Tensor, speak: int) -> None:
    """`marks` int32 [lines, words] becomes the ids that each line's slot remembers, 32 a word; those of a draft's line with `speak`.

    numbers int64 [rows, FIELDS]; history int64 [slots, a power of two]; drawn int64 [slots].
    """
    lines, words = marks.shape
    block = min(4096, triton.next_power_of_2(words))
    _kernel[(lines,)](numbers, history, drawn, marks, len(numbers), FIELDS, history.shape[1], words, speak, block, num_warps=4)
