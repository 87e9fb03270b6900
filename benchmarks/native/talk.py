"""What one conversation with a native model found: each unit's lag, and how its sound would have played."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import msgspec

RATE = 24_000
UNIT_MS, FIRST_MS = 1000, 1030
PACKET_MS = 100
RESERVE_MS = 80.0
"""A player waits so long after a turn's first sound before it begins."""
LATE_SEND_MS = 20.0
"""A packet that leaves so late voids the run: the generator was too slow."""


class Unit(msgspec.Struct, frozen=True):
    """Times in ms after the packet that completed the unit. `lag_ms`: all that it made is there; `first_ms`: its first sound is."""

    number: int
    speaks: bool
    opens: bool
    lag_ms: float
    first_ms: float | None = None
    hole_ms: float = 0.0
    """How long a player that has a reserve fell silent before the unit's sound."""


class Talk(msgspec.Struct):
    """All that one client saw. Moments are seconds of its own clock."""

    sent: list[float] = []
    """When the packets were due: the n-th ends at (n + 1) * PACKET_MS of input."""
    late_ms: list[float] = []
    """How late each left."""
    decisions: list[tuple[int, str, int, str, float]] = []
    """(unit, kind, end of the unit in input ms, response, when it came)."""
    sound: dict[str, list[tuple[int, float]]] = {}
    """By response: samples so far, and when they were there."""
    done: dict[str, float] = {}
    errors: list[str] = []
    cancelled: list[float] = []
    """ms from a cancel to the last sound that came after it."""


def units(talk: Talk) -> list[Unit]:
    """Units in order; one whose sound never came whole has infinite lag."""
    found: list[Unit] = []
    spoken: dict[str, int] = {}
    for number, kind, end_ms, response, came in talk.decisions:
        if kind == "turn_end":
            continue
        complete = _completed(talk, end_ms)
        if complete is None:
            continue
        if kind != "speak":
            found.append(Unit(number, False, False, (came - complete) * 1000))
            continue
        spoken[response] = nth = spoken.get(response, 0) + 1
        found.append(_speaking(talk, number, response, nth, complete))
    return _with_holes(talk, found)


def _completed(talk: Talk, end_ms: int) -> float | None:
    """When the packet that completed the unit was due; None: it never was."""
    packet = -(-end_ms // PACKET_MS) - 1
    return talk.sent[packet] if packet < len(talk.sent) else None


def _speaking(talk: Talk, number: int, response: str, nth: int, complete: float) -> Unit:
    heard = talk.sound.get(response, [])
    first = _reached(heard, (nth - 1) * RATE + 1)
    whole = _reached(heard, nth * RATE)
    if whole is None and response in talk.done:
        whole = talk.done[response]
    lag = float("inf") if whole is None else (whole - complete) * 1000
    return Unit(number, True, nth == 1, lag, None if first is None else (first - complete) * 1000)


def _reached(heard: Sequence[tuple[int, float]], samples: int) -> float | None:
    at = bisect.bisect_left(heard, samples, key=lambda each: each[0])
    return heard[at][1] if at < len(heard) else None


def _with_holes(talk: Talk, found: list[Unit]) -> list[Unit]:
    """A hole is charged to the unit whose sound came too late."""
    holes: dict[tuple[str, int], float] = {}
    for response, heard in talk.sound.items():
        if not heard:
            continue
        plays_until = heard[0][1] + RESERVE_MS / 1000 + heard[0][0] / RATE
        for (before, _), (after, came) in itertools.pairwise(heard):
            if came > plays_until:
                nth = before // RATE + 1
                holes[response, nth] = holes.get((response, nth), 0.0) + (came - plays_until) * 1000
                plays_until = came
            plays_until += (after - before) / RATE
    if not holes:
        return found
    counted: dict[str, int] = {}
    by_number: dict[int, float] = {}
    for number, kind, _, response, _ in talk.decisions:
        if kind == "speak":
            counted[response] = counted.get(response, 0) + 1
            by_number[number] = holes.get((response, counted[response]), 0.0)
    return [msgspec.structs.replace(unit, hole_ms=by_number.get(unit.number, 0.0)) for unit in found]
