"""Scripts of decisions: spurts of speech and listening, and how many tokens each unit says."""

from __future__ import annotations

import random

MEAN_S = 6.0
"""Of a spurt, and of the listening between two: exponential."""
TEXTS = {1: 5, 2: 15, 3: 35, 4: 30, 5: 10, 8: 4, 18: 1}
"""Text tokens of a unit, in per cent; with `<|speak|>` and the terminator, the longest is as long as a unit can be."""
WORDS = range(872, 2872)


def spurts(units: int, share: float, seed: int) -> list[list[str | int]]:
    """A script of at least `units` units that begins and ends with a whole spurt. share: of speaking units, 0 (exclusive) to 1."""
    draw, script = random.Random(seed), list[list[str | int]]()
    while len(script) < units:
        spoken = max(1, round(draw.expovariate(1 / MEAN_S)))
        script += [_said(draw, ends=index == spoken - 1) for index in range(spoken)]
        if share < 1:
            pause = max(1, round(draw.expovariate(1 / (MEAN_S * (1 - share) / share))))
            script += [["listen"]] * pause
    return script


def _said(draw: random.Random, *, ends: bool) -> list[str | int]:
    count = draw.choices(list(TEXTS), list(TEXTS.values()))[0]
    words: list[str | int] = [draw.choice(WORDS) for _ in range(count - ends)]
    return ["speak", *words, *(["turn_eos"] if ends else []), "chunk_eos"]
