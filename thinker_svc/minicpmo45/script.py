"""Scripted decisions: tokens that replace what was drawn, while everything else runs as ever. For benchmarks and tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minicpmo45.tokens import Tokens

FREE = -1


class BadScript(ValueError):
    """The file holds no script. `item` names what is wrong in it."""

    def __init__(self, item: str, why: str) -> None:
        super().__init__(f"script: {item}: {why}")
        self.item = item


class Script:
    """Which token each step of each unit gets. `table`: int64 [units, steps], FREE where the drawn one stands.

    `repeat`: the units begin anew when they are over; otherwise what follows is free. `stagger`: so many units lie between the beginnings
    of two neighbouring slots.
    """

    def __init__(self, table: Tensor, *, repeat: bool = True, stagger: int = 0) -> None:
        self.table = table
        self.repeat = repeat
        self.stagger = stagger

    @classmethod
    def read(cls, file: Path, tokens: Tokens, vocab_size: int, device: torch.device) -> Script:
        """`{"units": [["listen"], ["speak", 872, null, "chunk_eos"]], "repeat": true, "stagger": 0}`.

        A token is an id, a field of `Tokens`, or null (free). Raises BadScript.
        """
        try:
            content = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise BadScript(file.name, f"cannot be read ({type(error).__name__})") from None
        if not isinstance(content, dict) or not isinstance(content.get("units"), list) or not content["units"]:
            raise BadScript("units", "not a list of units")
        units = [_unit(unit, tokens, vocab_size) for unit in content["units"]]
        steps = max(map(len, units)) + 1
        table = torch.tensor([[*unit, *[FREE] * (steps - len(unit))] for unit in units], device=device)
        repeat, stagger = content.get("repeat", True), content.get("stagger", 0)
        if not isinstance(repeat, bool) or type(stagger) is not int or stagger < 0:
            raise BadScript("repeat or stagger", "not a truth value, or not a whole number")
        return cls(table, repeat=repeat, stagger=stagger)

    def __call__(self, slots: Tensor, units: Tensor, steps: Tensor) -> Tensor:
        """int64 [rows]: the tokens of these steps (all counted from 0), FREE where none is said."""
        count, width = self.table.shape
        units = units + slots * self.stagger
        said = steps < width
        if not self.repeat:
            said = said & (units < count)
        return torch.where(said, self.table[units % count, steps.clamp(max=width - 1)], FREE)


def _unit(unit: Any, tokens: Tokens, vocab_size: int) -> list[int]:
    if not isinstance(unit, list):
        raise BadScript("units", "a unit is no list")
    found: list[int] = []
    for each in unit:
        token = FREE if each is None else getattr(tokens, each, None) if isinstance(each, str) else each
        if type(token) is not int or not FREE <= token < vocab_size:
            raise BadScript("units", f"{each!r} is no token")
        found.append(token)
    return found
