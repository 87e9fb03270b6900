"""The bench of the decoder's kernels, rehearsed with tiny sizes: what it checks before it would time anything."""

from __future__ import annotations

from benchmarks.native import decoder_kernels
from benchmarks.native.card import Card
from benchmarks.native.decoder_scenes import TINY_THINKER, Scene
from tests.torch_kit.support.fused import DEVICE

CARD = Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)
FAST = Card("bound by bytes", "", "", "", 1e12, 1e18, 1e18, 1e18)
SCENE = Scene("1 takes 3, 1 steps", (3, 1), 20)


def test_every_kernel_is_checked_before_it_is_timed() -> None:
    rows = decoder_kernels.alone("thinker", TINY_THINKER, SCENE, DEVICE, CARD, plain=True)
    assert [row["kernel"] for row in rows] == ["residual, norm", "silu, product", "norm, turn, write", "attention"]
    assert all(row["holds"] and row["floor us"] > 0 for row in rows)


def test_a_whole_forward_is_timed_beside_its_floor() -> None:
    rows = decoder_kernels.whole("thinker", TINY_THINKER, [SCENE], DEVICE, FAST, ("bf16", "e4m3"), plain=True)
    assert [row["matrices"] for row in rows] == ["bf16", "e4m3"]
    assert all(row["floor ms"] > 0 and row["without graph ms"] > 0 for row in rows)
    assert rows[1]["floor ms"] < rows[0]["floor ms"] and {"thin ms", "widened ms", "rounded ms"} <= rows[1].keys()
    raw = {"card": {"name": "any", "torch": "2", "date": "now"}, "whole": rows}
    assert "1 takes 3, 1 steps" in decoder_kernels.sections(raw)[1][1]


def test_products_with_matrices_in_e4m3_are_checked_beside_the_others() -> None:
    rows = decoder_kernels.products({"thinker": TINY_THINKER}, DEVICE, CARD, (1, 3, 20, 130), ("bf16", "e4m3"), tried=False)
    assert [(row["product"], row["lines"]) for row in rows[:5]] == [("qkv", 1), ("qkv", 3), ("qkv", 20), ("qkv", 130), ("out", 1)]
    few, many = [row for row in rows if row["lines"] < 130], [row for row in rows if row["lines"] == 130]
    assert all(row["holds"] and row["e4m3 holds"] and row["widened error"] < 1e-5 < row["widened loss"] < 0.1 for row in few)
    assert all(row["rounded error"] < 1e-4 < row["rounded loss"] < 0.1 and "widened" not in row for row in many)


def test_what_e4m3_loses_is_told_and_what_kernels_add_is_little() -> None:
    rows = {row["what"]: row for row in decoder_kernels.lost({"thinker": TINY_THINKER}, DEVICE)}
    scaled = [rows[name] for name in ("states, e4m3, thin", "states, e4m3, widened", "states, both e4m3")]
    assert all(row["holds"] for row in rows.values()) and all(row["error"] < row["loss"] / 20 for row in scaled)
    assert scaled[0]["loss"] == scaled[1]["loss"] or abs(scaled[0]["loss"] / scaled[1]["loss"] - 1) < 1e-2
    assert 0.01 < scaled[1]["loss"] < scaled[2]["loss"] < 0.2
