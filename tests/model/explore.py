"""Visits every reachable world, nearest first."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .checks import check, check_end
from .gateway import settled
from .model import Model
from .rules import Rules
from .steps import alone, steps
from .world import Setup, Violation, World, begin

Origins = dict[World, tuple[str, World] | None]


class Visited(NamedTuple):
    states: int
    transitions: int
    ends: int


class Broken(AssertionError):
    """A rule was broken. path: the shortest way there."""

    def __init__(self, violation: str, path: list[str], states: int) -> None:
        self.violation, self.path, self.states = violation, path, states
        super().__init__(f"{violation}, after {len(path)} steps:\n  " + "\n  ".join(path))


def explore(setup: Setup, rules: Rules, *, whole: bool = False) -> Visited:
    """Raises Broken, with a shortest counterexample. whole: also the interleavings that make no difference."""
    m, first = Model(setup, rules), begin(setup)
    came: Origins = {first: None}
    queue = deque([first])
    transitions = ends = 0
    while queue:
        world = queue.popleft()
        step, before = "", transitions
        try:
            single = None if whole else alone(m, world)
            for step, reached in steps(m, world) if single is None else (single,):
                transitions += 1
                after = reached if whole else settled(m, reached)
                known = len(came)
                came.setdefault(after, (step, world))
                if len(came) > known:
                    queue.append(after)
                    check(m, after)
            step = ""
            if transitions == before:
                ends += 1
                check_end(m, world)
        except Violation as violation:
            raise Broken(str(violation), _path(came, world, step), len(came)) from None
    return Visited(len(came), transitions, ends)


def _path(came: Origins, world: World, last: str) -> list[str]:
    path = [last] if last else []
    while (before := came[world]) is not None:
        path.append(before[0])
        world = before[1]
    return path[::-1]
