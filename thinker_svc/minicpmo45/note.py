"""What is noted of a unit that ended, so that a stage placed anew can be fed the same again. Sound and pictures are not in it."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from thinker_svc.minicpmo45.unit import MOST_UNIT_TOKENS

MOST_NOTES = 600
"""Of a log."""
MOST_BYTES = 1024
"""Of a note's data."""
_MOST_LETTERS = 4 * (MOST_BYTES + 32) // 3
"""Of a note with its times, in base64."""

_Whole = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Note(msgspec.Struct, frozen=True):
    """A unit as it was in the end."""

    start_ms: int
    """Of its real input, on the input timeline."""
    end_ms: int
    number: int
    tokens: tuple[int, ...]
    """All that stood behind its sound, from the first to the terminator."""
    drawn: tuple[int, ...]
    """What it entered in the history of the repetition penalty: a drawn token is not always the one that is fed."""

    @property
    def fed(self) -> tuple[int, ...]:
        """Its tokens but for the terminator, which rides with the rows behind it."""
        return self.tokens[:-1]


class BadLog(ValueError):
    """A log is refused. `why` is one line."""


class _Data(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    number: _Whole
    tokens: Annotated[tuple[_Whole, ...], Meta(min_length=1, max_length=MOST_UNIT_TOKENS)]
    drawn: Annotated[tuple[_Whole, ...], Meta(max_length=MOST_UNIT_TOKENS)]


class _Kept(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    start_ms: _Whole
    end_ms: _Whole
    data: Annotated[bytes, Meta(max_length=MOST_BYTES)]


_DATA, _KEPT = msgspec.msgpack.Decoder(_Data), msgspec.msgpack.Decoder(_Kept)


def packed(number: int, tokens: Sequence[int], drawn: Sequence[int]) -> bytes:
    """The stage's own part of a note: the msgpack array [number, tokens, drawn]. Of 64 tokens each it takes 652 bytes."""
    return msgspec.msgpack.encode((number, tokens, drawn))


def read_log(content: Any, vocab_size: int) -> tuple[Note, ...]:
    """The notes of a list of base64 strings, each the msgpack array [start_ms, end_ms, data]; oldest first. Raises BadLog."""
    if not isinstance(content, list) or len(content) > MOST_NOTES:
        raise BadLog(f"must be a list of at most {MOST_NOTES} notes")
    notes = tuple(_note(each, index, vocab_size) for index, each in enumerate(content))
    reached = 0
    for index, note in enumerate(notes):
        if not reached <= note.start_ms <= note.end_ms:
            raise BadLog(f"note {index}: its times do not follow")
        reached = note.end_ms
    return notes


def _note(text: Any, index: int, vocab_size: int) -> Note:
    if not isinstance(text, str) or len(text) > _MOST_LETTERS:
        raise BadLog(f"note {index}: must be base64 of at most {_MOST_LETTERS} letters")
    try:
        kept = _KEPT.decode(binascii.a2b_base64(text, strict_mode=True))
        data = _DATA.decode(kept.data)
    except ValueError:
        # binascii.Error and msgspec's errors are ValueErrors; what they say may quote the content
        raise BadLog(f"note {index}: cannot be read") from None
    if max(*data.tokens, *data.drawn, 0) >= vocab_size:
        raise BadLog(f"note {index}: a token beyond {vocab_size - 1}")
    return Note(kept.start_ms, kept.end_ms, data.number, data.tokens, data.drawn)
