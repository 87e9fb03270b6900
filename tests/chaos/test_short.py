"""`SHORT=1 make chaos` as tests: each way of striking the house once or twice; `make chaos` does it often."""

from __future__ import annotations

import pytest

from tests.chaos.scenarios import SCENARIOS, strike
from tests.chaos.world import World

PROVES: dict[str, tuple[str, ...]] = {
    "gateway-kills": ("X1", "X2", "X7", "R2", "R3", "L7"),
    "crash-points": ("X1", "X2", "R4", "M2"),
    "stage-kills": ("X3",),
    "freezes": ("X3",),
    "sleepers": ("X6", "R6"),
    "outages": ("X4",),
    "wipes": ("X4",),
    "doubles": ("X4",),
    "races": ("R5", "R6"),
    "drains": ("R7",),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(each.name, marks=pytest.mark.behaviour(*PROVES[each.name])) for each in SCENARIOS]
)  # fmt: skip
async def test_every_conversation_outlives_it_exactly(world: World, name: str) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    tally = await strike(world, scenario, short=True)
    assert tally.clean, f"SEED={world.seed} ONLY={name} SHORT=1 make chaos: " + "; ".join(tally.problems)
