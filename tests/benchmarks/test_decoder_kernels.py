"""The bench of the decoder's kernels, rehearsed with tiny sizes: what it checks before it would time anything."""

from __future__ import annotations

from benchmarks.native import decoder_kernels
from benchmarks.native.card import Card
from benchmarks.native.decoder_scenes import TINY_THINKER, Scene
from tests.torch_kit.support.fused import DEVICE

CARD = Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)
SCENE = Scene("1 takes 3, 1 steps", (3, 1), 20)


def test_every_kernel_is_checked_before_it_is_timed() -> None:
    rows = decoder_kernels.alone("thinker", TINY_THINKER, SCENE, DEVICE, CARD, plain=True)
    assert [row["kernel"] for row in rows] == ["residual, norm", "silu, product", "norm, turn, write", "attention"]
    assert all(row["holds"] and row["floor us"] > 0 for row in rows)


def test_a_whole_forward_is_timed_beside_its_floor() -> None:
    (row,) = decoder_kernels.whole("thinker", TINY_THINKER, [SCENE], DEVICE, CARD, plain=True)
    assert row["floor ms"] > 0 and row["without graph ms"] > 0
    raw = {"card": {"name": "any", "torch": "2", "date": "now"}, "whole": [row]}
    assert "1 takes 3, 1 steps" in decoder_kernels.sections(raw)[1][1]
