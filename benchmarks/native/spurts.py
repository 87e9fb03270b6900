"""Scripts of decisions: spurts of speech and listening, and how many tokens each unit says."""

from __future__ import annotations

import random
from collections.abc import Iterator

MEAN_S = 6.0
"""Of a spurt, and of the listening between two: exponential."""
TEXTS = {1: 5, 2: 15, 3: 35, 4: 30, 5: 10, 8: 4, 18: 1}
"""Text tokens of a unit, in per cent; with `<|speak|>` and the terminator, the longest is as long as a unit can be."""
WORDS = range(872, 2872)


def spurts(units: int, share: float, seed: int) -> list[list[str | int]]:
    """A script of `units` units that begins and ends with a whole spurt or pause. share: of speaking units, 0 (exclusive) to 1, held to
    one unit, as the shares of TEXTS are."""
    draw, script = random.Random(seed), list[list[str | int]]()
    counts = _counts(draw)
    speaking = max(1, round(units * share))
    number = max(1, round(speaking / MEAN_S)) if share == 1 else max(1, min(round(speaking / MEAN_S), units - speaking))
    for spoken, paused in zip(_lengths(draw, speaking, number), _lengths(draw, units - speaking, number), strict=True):
        script += [_said(draw, next(counts), ends=index == spoken - 1) for index in range(spoken)]
        script += [["listen"]] * paused
    return script


def _lengths(draw: random.Random, total: int, number: int) -> list[int]:
    """So many lengths, exponentially spread over what is more than one each, that make up the total; none: all are zero."""
    if not total:
        return [0] * number
    shares = [draw.expovariate(1.0) for _ in range(number)]
    ends = [round((total - number) * sum(shares[: index + 1]) / sum(shares)) for index in range(number)]
    return [1 + end - before for before, end in zip([0, *ends], ends, strict=False)]


def _counts(draw: random.Random) -> Iterator[int]:
    """Without end, by decks that hold TEXTS exactly: the rarest are so few that drawn one by one they would be half as many or twice."""
    while True:
        deck = [count for count, cards in TEXTS.items() for _ in range(cards)]
        draw.shuffle(deck)
        yield from deck


def _said(draw: random.Random, count: int, *, ends: bool) -> list[str | int]:
    words: list[str | int] = [draw.choice(WORDS) for _ in range(count - ends)]
    return ["speak", *words, *(["turn_eos"] if ends else []), "chunk_eos"]
