"""The duplex template: what stands where in the prefix and in a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicpmo45.tokens import Tokens
from thinker_svc.minicpmo45.vocabulary import Vocabulary

EMBEDDED = -1
"""In place of an id: the row is an embedding of sound or picture."""
AUDIO_ROWS = 10
PREVIOUS_MARKER = "\n\nprevious: "

Kind = Literal["head", "voice", "previous", "suffix", "close", "unit", "image", "slice", "audio", "turn_end", "noted", "draft"]


class Span(NamedTuple):
    """A part of a plan: rows `start` to `stop`, its delimiters included."""

    kind: Kind
    start: int
    stop: int


class Plan(NamedTuple):
    """Rows that are fed to the language model. `ids`: int64 [n], EMBEDDED where an embedding goes; embeddings follow in order."""

    ids: NDArray[np.int64]
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Rows, embeddings included."""
        return len(self.ids)


Part = tuple[Kind, Sequence[int]]


def plan(*parts: Part) -> Plan:
    """Parts in order; empty ones are left out."""
    ids: list[int] = []
    spans: list[Span] = []
    for kind, content in parts:
        if content:
            spans.append(Span(kind, len(ids), len(ids) + len(content)))
            ids.extend(content)
    return Plan(np.array(ids, np.int64), tuple(spans))


def prefix_head(vocabulary: Vocabulary, instructions: str, voice_rows: int) -> Plan:
    """What sessions of one prompt and voice share: `<|im_start|>system\\n{instructions}\\n`, then `<|audio_start|>` and the voice, if
    there is one."""
    tokens = vocabulary.tokens
    voice = [tokens.audio_start, *[EMBEDDED] * voice_rows] if voice_rows else []
    return plan(("head", [tokens.im_start, *vocabulary.encode(f"system\n{instructions}\n")]), ("voice", voice))


def prefix_tail(vocabulary: Vocabulary, previous: Sequence[int], *, voice: bool) -> Plan:
    """The rest of the prefix, each session's own: the recap of what was said before, then `<|audio_end|>` (with a voice) and `<|im_end|>`.

    The recap stands in front of `<|audio_end|>`, where the reference puts it.
    """
    tokens = vocabulary.tokens
    recap = [*vocabulary.encode(PREVIOUS_MARKER), *previous] if previous else []
    return plan(("previous", recap), ("suffix", [tokens.audio_end, tokens.im_end] if voice else [tokens.im_end]))


def unit_opening(tokens: Tokens, close: Sequence[int]) -> Plan:
    """`close`: what ends the unit before (its last token and `</unit>`); then `<unit>`."""
    return plan(("close", close), ("unit", [tokens.unit]))


def picture_rows(tokens: Tokens, slices: int, queries: int) -> Plan:
    """A picture: `<image>` its overview `</image>`, then `<slice>` ... `</slice>` for every slice; `slices` counts the overview, too."""
    rows = [EMBEDDED] * queries
    overview: Part = ("image", [tokens.image, *rows, tokens.image_end])
    detail: Part = ("slice", [tokens.slice, *rows, tokens.slice_end])
    return plan(overview, *[detail] * (slices - 1))


def audio_rows() -> Plan:
    """The sound of a unit."""
    return plan(("audio", [EMBEDDED] * AUDIO_ROWS))


def draft_row(tokens: Tokens) -> Plan:
    """What a unit that speaks begins with, in mid-turn, too."""
    return plan(("draft", [tokens.speak]))


def joined(*plans: Plan) -> Plan:
    """One plan after the other."""
    spans: list[Span] = []
    offset = 0
    for each in plans:
        spans += [Span(kind, start + offset, stop + offset) for kind, start, stop in each.spans]
        offset += each.rows
    return Plan(np.concatenate([each.ids for each in plans]) if plans else np.zeros(0, np.int64), tuple(spans))
