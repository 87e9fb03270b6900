"""Why a profile is refused."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong. `path` is dotted, from the root of the profile, such as "nodes.llm.inputs.0"; empty for the whole."""

    path: str
    message: str


class ProfileError(Exception):
    """A profile was refused; `problems` names everything that was found, in the order of the text."""

    def __init__(self, name: str, problems: tuple[Problem, ...]) -> None:
        self.name, self.problems = name, problems
        lines = (f"{problem.path}: {problem.message}" if problem.path else problem.message for problem in problems)
        super().__init__(f"profile '{name}' is refused: " + "; ".join(lines))

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(problem.message for problem in self.problems)
