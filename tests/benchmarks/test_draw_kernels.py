"""The bench of the thinker's draws, rehearsed with one row and its draft at the real vocabulary."""

from __future__ import annotations

from benchmarks.native import draw_kernels
from benchmarks.native.card import Card
from benchmarks.native.draw_kernels import TINY_HIDDEN, Scene
from tests.torch_kit.support.fused import DEVICE

CARD = Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)


def test_both_paths_decide_alike_at_the_real_vocabulary() -> None:
    row = draw_kernels.compared(Scene(1, 1), TINY_HIDDEN, DEVICE, 1)
    assert row["holds"] and row["decisions"] == 2 and row["accepted"] == 1


def test_every_part_stands_beside_its_floor() -> None:
    rows = list(draw_kernels.alone(Scene(1, 0), TINY_HIDDEN, DEVICE, CARD))
    assert [row["kernel"] for row in rows] == ["head", "remember", "survey", "shortlist", "settle", "all but head"]
    assert all(row["floor us"] > 0 for row in rows)
