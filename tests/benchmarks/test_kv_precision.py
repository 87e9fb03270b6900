"""The bench of fp8 keys and values, rehearsed with tiny sizes: what it finds before it would time anything."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.native import kv_precision
from benchmarks.native.card import Card
from benchmarks.native.decoder_scenes import Scene
from tests.torch_kit.support.fused import DEVICE

CARD = Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)


def test_fp8_loses_more_than_bf16_and_the_fused_path_loses_as_much() -> None:
    rows = list(kv_precision.errors(kv_precision.TINY, 200, 24, DEVICE, sharp=True))
    plain = {row["pages"]: row for row in rows if row["path"] == "plain" and row["weights"] == "fp32"}
    assert plain["fp32"]["last"] == 0 < plain["bf16"]["last"] < 0.02 < plain["fp8"]["last"] < 0.2
    assert 0 < plain["bf16"]["divergence"] < plain["fp8"]["divergence"] < 0.1
    fused = next(row for row in rows if row["path"] == "fused" and row["pages"] == "fp8")
    assert abs(fused["last"] / plain["fp8"]["last"] - 1) < 0.05


def test_attention_is_right_over_pages_of_either_kind() -> None:
    rows = list(kv_precision.attention(kv_precision.TINY, Scene("3 step", (1, 1, 1), 40), DEVICE, CARD))
    assert len(rows) == 2 and all(row["holds"] for row in rows) and rows[1]["floor us"] < rows[0]["floor us"]


def test_the_plan_gains_sessions_and_is_told() -> None:
    options = Namespace(tiny=True, sessions=[3], context=24)
    rows = list(kv_precision.measured("plan", options, DEVICE, CARD))
    assert [row["pages"] for row in rows] == ["bf16", "fp8"] and rows[1]["sessions"] > rows[0]["sessions"]
    raw = {"card": {"name": "any", "torch": "2", "date": "now"}, "context": 24, "plan": rows}
    assert "fp8" in kv_precision.sections(raw)[1][1]
