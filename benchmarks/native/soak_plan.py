"""What a session of a soak run is made to say: f(session, unit), on every device, by whoever knows the session's id.

Decisions and how many words a unit has come from a script that all sessions walk through, each from a place of its own. Which words these
are, and which codes they become, is drawn by Philox keyed by the session alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.native.spurts import WORDS, spurts
from minicpmo45.config import CODE_RATE
from torch_kit.draws import philox, session_seed

Unit = list[str | int]
UNITS = 240
MOST_WORDS = 5
"""Of a unit, so that its text stays below the bound at which a unit is ended."""
LISTENS = 3
"""Units at the beginning of a session that must listen."""
SHORTEST_END, LONGEST_END = 8, CODE_RATE
"""Codes of a turn's last unit: one piece."""
_WORD, _CODE, _END, _PLACE = range(4)
_MASK = 0xFFFFFFFF


def script(share: float, seed: int = 22) -> list[Unit]:
    """Spurts of speech and listening, with at most MOST_WORDS words a unit."""
    return [_short(unit) for unit in spurts(UNITS, share, seed)]


def _short(unit: Unit) -> Unit:
    words = [token for token in unit if isinstance(token, int)][:MOST_WORDS]
    return [unit[0], *words, *unit[unit.index("turn_eos") if "turn_eos" in unit else -1 :]] if unit[0] == "speak" else unit


def word_ids(seeds: Tensor, units: Tensor, steps: Tensor) -> Tensor:
    """int64 [rows]: the words at these steps of these units."""
    return WORDS.start + _drawn(seeds, units, steps, _WORD) % len(WORDS)


def codes(seeds: Tensor, units: Tensor, made: Tensor, count: int) -> Tensor:
    """int64 [rows], below `count`: code number `made` of these units. A talker's unit is numbered (turn << 32) + unit of the turn."""
    return _drawn(seeds, units, made, _CODE) % count


def end_codes(seeds: Tensor, units: Tensor) -> Tensor:
    """int64 [rows]: codes of these units, if a turn ends with them."""
    return SHORTEST_END + _drawn(seeds, units, torch.zeros_like(units), _END) % (LONGEST_END - SHORTEST_END + 1)


def places(seeds: Tensor, count: int) -> Tensor:
    """int64 [rows]: where in a script of `count` units each session begins."""
    zero = torch.zeros_like(seeds)
    return _drawn(seeds, zero, zero, _PLACE) % count


class Plan:
    """One session's, for whoever judges what came of it."""

    def __init__(self, session_id: str, script: Sequence[Unit], code_count: int) -> None:
        self._seed = torch.tensor([session_seed(session_id)])
        self._script = script
        self._codes = code_count
        self._place = int(places(self._seed, len(script)))

    def unit(self, number: int) -> Unit:
        """The script's unit of this number, without its own words."""
        return ["listen"] if number < LISTENS else self._script[(number + self._place) % len(self._script)]

    def words(self, number: int) -> list[int]:
        """Token ids that this unit says; none if it listens."""
        steps = [step for step, token in enumerate(self.unit(number)) if isinstance(token, int)]
        return self._all(partial(word_ids, self._seed), number, steps)

    def messages(self, turn: int, units: int, *, ended: bool) -> list[list[int]]:
        """The codes of a turn, a list for each unit. ended: the last one ends it."""
        found = []
        for index in range(units):
            unit = (turn << 32) + index
            count = int(end_codes(self._seed, torch.tensor([unit]))) if ended and index == units - 1 else CODE_RATE
            found.append(self._all(partial(codes, self._seed, count=self._codes), unit, range(count)))
        return found

    def _all(self, drawn: partial[Tensor], unit: int, steps: Sequence[int]) -> list[int]:
        seeds = self._seed.expand(len(steps))
        return drawn.func(seeds, torch.full_like(seeds, unit), torch.tensor(list(steps), dtype=torch.int64), **drawn.keywords).tolist()


def _drawn(seeds: Tensor, units: Tensor, steps: Tensor, purpose: int) -> Tensor:
    counter = (torch.full_like(seeds, purpose), steps & _MASK, units & _MASK, units >> 32)
    return philox(counter, (seeds & _MASK, seeds >> 32))[0]
