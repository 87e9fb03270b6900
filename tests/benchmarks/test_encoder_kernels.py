"""The bench of the encoders' kernels, rehearsed with tiny sizes: what it checks before it would time anything."""

from __future__ import annotations

from benchmarks.native import encoder_kernels
from benchmarks.native.card import Card
from minicpmo45.config import tiny
from tests.torch_kit.support.fused import DEVICE

CARD = Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)


def test_every_kernel_is_checked_before_it_is_timed() -> None:
    rows = encoder_kernels.alone(tiny(), [1], [2], 6, DEVICE, CARD)
    assert [row["kernel"] for row in rows][:4] == [
        "slot attention",
        "residual, norm of frames",
        "residual, norm of patches",
        "attention of patches, no mask",
    ]
    assert all(row["holds"] and row["floor us"] > 0 for row in rows)


def test_units_and_pictures_are_timed_plain_and_fused() -> None:
    rows = encoder_kernels.whole(tiny(), [1], [2], 3, DEVICE, CARD)
    assert [(row["what"], row["count"]) for row in rows] == [("units", 1), ("pictures", 2)]
    assert all(row["fused served ms"] > 0 and row["plain served ms"] > 0 for row in rows)
    raw = {"card": {"name": "any", "torch": "2", "date": "now"}, "whole": rows}
    assert "pictures" in encoder_kernels.sections(raw)[1][1]


def test_what_is_lost_is_told() -> None:
    assert all(row["holds"] for row in encoder_kernels.lost(tiny(), DEVICE, 3, 2))
