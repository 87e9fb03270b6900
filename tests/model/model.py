"""A setup under certain rules, with what follows from the two."""

from __future__ import annotations

from .rules import Rules
from .world import ANSWERING, HEARING, Setup


class Model:
    """Stages by their index in the setup. source and reader: the ends of the edge llm -> talker, 0 and 0 where there is none."""

    def __init__(self, setup: Setup, rules: Rules) -> None:
        self.setup, self.rules = setup, rules
        self.hearing = tuple(i for i, name in enumerate(setup.stages) if name in HEARING)
        self.answering = tuple(i for i, name in enumerate(setup.stages) if name in ANSWERING)
        self.source, self.reader = (self.answering[0], self.answering[1]) if len(self.answering) > 1 else (0, 0)
        self.voice = self.answering[-1] if self.answering else -1
        self.losable = tuple(setup.stages.index(name) for name in setup.losable)
        self.numbers: list[int] = []
        """Of each entry of the script: which sample, or which command it is, from 1."""
        counts = {True: 0, False: 0}
        for name in setup.script:
            counts[name == "say"] += 1
            self.numbers.append(counts[name == "say"])
        misfortunes = setup.losses + setup.forgets + setup.outages
        self.is_calm = "barge" not in setup.script and not misfortunes and rules.commit_first
        """Nothing is ever cancelled."""
        self.samples, self.commands = counts[True], counts[False]

    def is_source(self, stage: int) -> bool:
        return bool(self.reader) and stage == self.source
