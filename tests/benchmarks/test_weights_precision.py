"""The bench of matrices in e4m3, rehearsed with tiny sizes: what it finds before it is run on a card."""

from __future__ import annotations

import pytest
import torch

from benchmarks.native import weights_precision
from benchmarks.native.decoder_scenes import TINY_THINKER
from benchmarks.native.weights_errors import errors


@pytest.mark.parametrize("outliers", [False, True])
def test_the_more_is_rounded_the_more_is_lost(outliers: bool) -> None:
    rows = list(errors(TINY_THINKER, 300, 24, torch.device("cpu"), outliers=outliers))
    found = {(row["rounded"], row["states"]): row for row in rows}
    truth, bf16, weights, both = (
        found[key] for key in (("nothing", "float32"), ("nothing", "bfloat16"), ("weights", "float32"), ("both", "float32"))
    )
    assert truth["error"] == 0 < bf16["error"] < 0.02 < weights["error"] < both["error"] < 0.2
    assert truth["likeliest same"] == 1 and 0 < bf16["divergence"] < weights["divergence"] < 0.2
    assert truth["divergence"] == 0 < truth["divergence, head e4m3"]
    assert abs(found["weights", "bfloat16"]["error"] / weights["error"] - 1) < 0.1


def test_the_plan_gains_sessions_and_is_told() -> None:
    rows = list(weights_precision.plan())
    bf16, fp8 = (
        next(row for row in rows if (row["window"], row["matrices"], row["keys and values"]) == (4096, kind, "fp8"))
        for kind in ("bf16", "fp8")
    )
    assert bf16["H200"] < fp8["H200"] and bf16["48 GB"] < fp8["48 GB"] and fp8["thinker's weights, GB"] < bf16["thinker's weights, GB"]
    raw = {"card": {"name": "any", "torch": "2", "date": "now"}, "width": 48, "layers": 2, "words": 300, "context": 24, "plan": rows}
    assert "| 4096 | fp8 |" in weights_precision.sections(raw)[1][1]
