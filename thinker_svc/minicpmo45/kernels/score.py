"""Scores of the second draw, from logits: what every kernel that reads logits agrees on."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

SETTINGS = 5
"""fp32 numbers of a slot: temperature, top-p, repetition penalty, length penalty, listen scale."""
CHOICES = 4
"""int64 numbers of a slot: top-k, listen token, listen top-k, greedy."""
FIELDS = 6
"""int64 numbers of a deciding row: slot, unit, goes on, turn is open, place, draft."""


@triton.jit
def finite(logits):
    """Logits in fp32, -inf where they are NaN or infinite."""
    value = logits.to(tl.float32)
    return tl.where(tl.abs(value) < float("inf"), value, float("-inf"))


@triton.jit
def bit(words, column):
    """Whether a column's bit is set in `words` int32, loaded for each column."""
    return ((words >> (column & 31)) & 1) != 0


@triton.jit
def penalised(value, forbidden, seen, penalty):
    """Without forbidden ids, and with the repetition penalty: a division, whatever the sign."""
    value = tl.where(forbidden, float("-inf"), value)
    return tl.where(seen, tl.div_rn(value, penalty + tl.zeros_like(value)), value)


@triton.jit
def turned(value, column, length_penalty, listen_token, listen_scale, TURN_EOS: tl.constexpr):
    """With the length penalty on `<|turn_eos|>` and the scale of the listen token."""
    ended = tl.where(value > 0, tl.div_rn(value, length_penalty + tl.zeros_like(value)), value * length_penalty)
    value = tl.where(column == TURN_EOS, ended, value)
    # a scale of 0 would make NaN of a forbidden token
    return tl.where((column == listen_token) & (value != float("-inf")), value * listen_scale, value)


@triton.jit
def sortable(value):
    """int32 that sorts like fp32, zeros alike."""
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unsorted(key):
    """fp32 of what `sortable` gave."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def step_of(numbers, steps, row, drafted, FIELDS: tl.constexpr):
    """Slot, unit and step (int64) of a line: a unit that opens is at step 0, a draft's line one further than its row's."""
    slot = tl.load(numbers + row * FIELDS)
    goes_on = tl.load(numbers + row * FIELDS + 2)
    step = tl.load(steps + slot)
    return slot, tl.load(numbers + row * FIELDS + 1), tl.where(goes_on == 0, step * 0, step) + drafted
