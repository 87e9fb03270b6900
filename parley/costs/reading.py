"""How many sessions a process holds, out of what it shows at /metrics, and what that costs."""

from __future__ import annotations

import re

import msgspec

MOST = 2**31 - 1
"""The annotation is an int32."""
_LINE = re.compile(rb"^parley_(gateway|stage)_(sessions|draining)(?:\{.*\})? (\S+)$", re.MULTILINE)


class Reading(msgspec.Struct, frozen=True):
    """sessions: of the fullest stage here, since a conversation has a place at each; of a gateway, those without a client among them."""

    sessions: int
    draining: bool


def reading(metrics: bytes) -> Reading:
    """Out of Prometheus' text format. Raises ValueError where no sessions are told of."""
    gateway: list[float] = []
    stages: list[float] = []
    draining = False
    for process, what, said in _LINE.findall(metrics):
        number = float(said)
        if not 0 <= number <= MOST:
            raise ValueError("not a number of sessions")
        if what == b"draining":
            draining = draining or number > 0
        else:
            (gateway if process == b"gateway" else stages).append(number)
    if not gateway and not stages:
        raise ValueError("no sessions are told of")
    return Reading(int(max(sum(gateway), *stages, 0)), draining)


def together(readings: list[Reading]) -> Reading:
    """Of a pod with several containers."""
    return Reading(max(each.sessions for each in readings), any(each.draining for each in readings))


def cost(sessions: int, step: int) -> int:
    """0 for nobody, else the upper end of the step: 1 to `step` sessions cost `step`."""
    return min(-(-sessions // step) * step, MOST)
