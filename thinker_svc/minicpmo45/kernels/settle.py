"""What becomes of the draws of a row and of its draft: script, unit rules, history, states. The one kernel that changes what slots hold."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minicpmo45.tokens import Tokens
from thinker_svc.minicpmo45.kernels.score import CHOICES, FIELDS


class Slots(NamedTuple):
    """What is kept of each slot; flags are uint8."""

    choices: Tensor
    """int64 [slots, CHOICES]"""
    rules: Tensor
    """int64 [slots, 2]: most tokens, most characters."""
    step: Tensor
    length: Tensor
    turn_open: Tensor
    turn_ended: Tensor
    history: Tensor
    drawn: Tensor
    entered: Tensor
    said: Tensor
    """[slots, tokens, hidden]"""


class Script(NamedTuple):
    """`table` int64 [units, steps], negative where the drawn token stands."""

    table: Tensor
    repeat: bool
    stagger: int


@triton.jit
def _scripted(table, slot, unit, step, UNITS: tl.constexpr, STEPS: tl.constexpr, REPEAT: tl.constexpr, STAGGER: tl.constexpr):
    """int32: the token that replaces the drawn one; negative: none."""
    said = tl.full((), -1, tl.int32)
    if UNITS > 0:
        unit = unit + slot * STAGGER
        spoken = step < STEPS
        if not REPEAT:
            spoken = spoken & (unit < UNITS)
        said = tl.load(table + unit % UNITS * STEPS + tl.minimum(step, STEPS - 1), mask=spoken, other=-1).to(tl.int32)
    return said


@triton.jit
def _judged(
    picks, script, listen_token, step, length, is_open, turn_ended, most_tokens, most_characters, characters,
    CHUNK_EOS: tl.constexpr, CHUNK_TTS_EOS: tl.constexpr, LISTEN: tl.constexpr, TTS_BOS: tl.constexpr, TURN_EOS: tl.constexpr,
):  # fmt: skip
    """Drawn token, whether it enters the history, token, whether it ends the unit; then length, open turn and ended turn."""
    free = step < most_tokens - 1
    first = tl.load(picks)
    at_once = tl.load(picks + 2) != 0
    over = first == CHUNK_EOS
    drawn = tl.where(over, CHUNK_EOS, tl.where(at_once, listen_token, tl.load(picks + 1)))
    entered = free & (over == 0) & (at_once == 0)
    entered = tl.where(script >= 0, free & (script != CHUNK_EOS), entered)
    drawn = tl.where(script >= 0, script, drawn)

    token = tl.where(is_open & (drawn == LISTEN), TTS_BOS, drawn)
    token = tl.where(free, token, CHUNK_EOS)
    ended = (token == LISTEN) | (token == CHUNK_EOS) | (token == CHUNK_TTS_EOS)
    grown = length + tl.where(step > 0, tl.load(characters + token), 0)
    refused = (ended == 0) & (turn_ended | (grown >= most_characters))
    token = tl.where(refused, CHUNK_EOS, token)
    ended = ended | refused
    closes = (ended == 0) & (token == TURN_EOS)
    return drawn, entered, token, ended, tl.where(ended, length, grown), tl.where(ended, is_open, closes == 0), turn_ended | closes


@triton.jit
def _note(out, line, token, ended, finite, entered, drawn):
    tl.store(out + line * 4, token.to(tl.int64))
    tl.store(out + line * 4 + 1, ended.to(tl.int64))
    tl.store(out + line * 4 + 2, finite.to(tl.int64))
    tl.store(out + line * 4 + 3, tl.where(entered, drawn, -1).to(tl.int64))


@triton.jit
def _keep(said, hidden, slot, place, line, TOKENS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < HIDDEN
    state = tl.load(hidden + line.to(tl.int64) * HIDDEN + column, mask=mask)
    tl.store(said + (slot * TOKENS + place) * HIDDEN + column, state, mask=mask)


@triton.jit(do_not_specialize=["rows", "drafts", "spare"], do_not_specialize_on_alignment=["numbers"])
def _kernel(
    picks, numbers, hidden, table, characters, choices, rules, steps, lengths, turn_open, turn_ended, history, drawn, entered, said, out,
    rows, drafts, spare,
    FIELDS: tl.constexpr, CHOICES: tl.constexpr, HISTORY: tl.constexpr, TOKENS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
    UNITS: tl.constexpr, STEPS: tl.constexpr, REPEAT: tl.constexpr, STAGGER: tl.constexpr, SPEAK: tl.constexpr,
    CHUNK_EOS: tl.constexpr, CHUNK_TTS_EOS: tl.constexpr, LISTEN: tl.constexpr, TTS_BOS: tl.constexpr, TURN_EOS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(numbers + row * FIELDS)
    unit = tl.load(numbers + row * FIELDS + 1)
    opening = tl.load(numbers + row * FIELDS + 2) == 0
    # several rows of padding have the same slot, which nobody reads
    real = slot != spare
    step = tl.where(opening, 0, tl.load(steps + slot))
    length = tl.where(opening, 0, tl.load(lengths + slot))
    is_open = tl.where(opening, tl.load(numbers + row * FIELDS + 3) > 0, tl.load(turn_open + slot) != 0)
    over = (opening == 0) & (tl.load(turn_ended + slot) != 0)
    most_tokens = tl.load(rules + slot * 2)
    most_characters = tl.load(rules + slot * 2 + 1)
    listen_token = tl.load(choices + slot * CHOICES + 1).to(tl.int32)
    count = tl.load(drawn + slot)

    script = _scripted(table, slot, unit, step, UNITS, STEPS, REPEAT, STAGGER)
    mine, new, token, ended, length, is_open, over = _judged(
        picks + row * 4, script, listen_token, step, length, is_open, over, most_tokens, most_characters, characters,
        CHUNK_EOS, CHUNK_TTS_EOS, LISTEN, TTS_BOS, TURN_EOS,
    )  # fmt: skip
    finite = tl.load(picks + row * 4 + 3)
    _note(out, row, token, ended, finite, new, mine)
    # the state of a unit's last input is nobody's
    if real & (opening == 0):
        _keep(said, hidden, slot, step - 1, row, TOKENS, HIDDEN, BLOCK)
    tl.store(history + slot * HISTORY + count % HISTORY, mine.to(tl.int64), mask=real & new)
    count += new.to(tl.int64)
    step += 1

    if row < drafts:
        line = rows + row
        accepted = (tl.load(numbers + row * FIELDS + 5) > 0) & (token == SPEAK) & (finite > 0)
        if accepted:
            script = _scripted(table, slot, unit, step, UNITS, STEPS, REPEAT, STAGGER)
            mine, new, token, ended, length, is_open, over = _judged(
                picks + line * 4, script, listen_token, step, length, is_open, over, most_tokens, most_characters, characters,
                CHUNK_EOS, CHUNK_TTS_EOS, LISTEN, TTS_BOS, TURN_EOS,
            )  # fmt: skip
            _note(out, line, token, ended, tl.load(picks + line * 4 + 3), new, mine)
            if real:
                _keep(said, hidden, slot, step - 1, line, TOKENS, HIDDEN, BLOCK)
            tl.store(history + slot * HISTORY + count % HISTORY, mine.to(tl.int64), mask=real & new)
            count += new.to(tl.int64)
            step += 1
        else:
            tl.store(out + line * 4 + tl.arange(0, 4), tl.full((4,), -1, tl.int64))

    tl.store(steps + slot, step, mask=real)
    tl.store(lengths + slot, length, mask=real)
    tl.store(turn_open + slot, is_open.to(tl.uint8), mask=real)
    tl.store(turn_ended + slot, over.to(tl.uint8), mask=real)
    tl.store(drawn + slot, count, mask=real)
    tl.store(entered + slot, new.to(tl.uint8), mask=real)


def settle(
    picks: Tensor, numbers: Tensor, hidden: Tensor, script: Script | None, characters: Tensor, slots: Slots, tokens: Tokens, spare: int
) -> Tensor:
    """int64 [lines, 4] as of `Decider.decide`; `slots` become what they are after it, but for the slot `spare`, which is left alone.

    picks int32 [lines, PICKS]; numbers int64 [rows, FIELDS]; hidden [lines, hidden]; characters int64 [vocabulary].
    """
    lines, rows = len(picks), len(numbers)
    _, places, width = slots.said.shape
    out = torch.empty(lines, 4, dtype=torch.int64, device=picks.device)
    units, steps = (0, 0) if script is None else script.table.shape
    table = picks if script is None else script.table
    repeat, stagger = (True, 0) if script is None else (script.repeat, script.stagger)
    block = triton.next_power_of_2(width)
    _kernel[(rows,)](
        picks, numbers, hidden, table, characters, *slots, out, rows, lines - rows, spare,
        FIELDS, CHOICES, slots.history.shape[1], places, width, block, units, steps, repeat, stagger, tokens.speak,
        tokens.chunk_eos, tokens.chunk_tts_eos, tokens.listen, tokens.tts_bos, tokens.turn_eos, num_warps=min(max(block // 1024, 1), 4),
    )  # fmt: skip
    return out
