"""The rules of docs/failover.md in every state that small worlds can reach, and each rule shown to matter by what happens without it.

Checked in every scenario: an event number never means two things and none is missing; a response's chunks arrive in order, none missing,
none twice, one terminal, nothing of it afterwards; every sample reaches every stage that hears exactly once and in order (of a stock
client: at most once, and what it says on a living connection is heard); llm's outputs reach talker exactly once and in order; a command is
obeyed or refused exactly once; a stage never obeys a gateway after it obeyed a younger one; the last takeover has the session; nothing
is lost silently or told as lost twice, and nothing at all as long as Redis forgets nothing; and where nothing more can happen, nothing is
owed.
"""

from __future__ import annotations

import pytest

from .explore import Broken, explore
from .faults import FAULTS
from .rules import DESIGN
from .scenarios import SCENARIOS

MOST_STATES = 100_000
SMALL = ("answer", "two ears", "stock", "ear lost")
"""Scenarios that can be visited whole within a second."""


@pytest.mark.behaviour("F4", "F9", "R2", "R3", "R5", "X15")
@pytest.mark.parametrize("name", SCENARIOS)
def test_rules_as_designed(name: str) -> None:
    visited = explore(SCENARIOS[name], DESIGN)
    print(f"{name}: {visited.states} states, {visited.transitions} transitions, {visited.ends} ends")
    assert visited.states < MOST_STATES
    assert visited.ends


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_rule(name: str) -> None:
    fault = FAULTS[name]
    with pytest.raises(Broken) as broken:
        explore(SCENARIOS[fault.scenario], fault.rules)
    print(f"{name}, in '{fault.scenario}' ({broken.value.states} states): {broken.value}")
    assert broken.value.violation.startswith(fault.breaks)
    assert broken.value.path


def test_every_rule_has_its_fault() -> None:
    broken = [name for fault in FAULTS.values() for name, holds in fault.rules._asdict().items() if not holds]
    assert set(broken) == set(DESIGN._fields)
    assert len(broken) == len(FAULTS)


@pytest.mark.parametrize("name", SMALL)
def test_what_is_left_out_hides_nothing(name: str) -> None:
    """With every interleaving, the verdict is the same."""
    reduced, whole = explore(SCENARIOS[name], DESIGN), explore(SCENARIOS[name], DESIGN, whole=True)
    print(f"{name}: {reduced.states} of {whole.states} states")
    assert reduced.states <= whole.states
