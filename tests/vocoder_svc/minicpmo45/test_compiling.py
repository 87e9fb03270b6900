"""A start launches nothing that was not compiled ahead."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.support.pretended_card import told_by

GENERATIONS = pytest.mark.parametrize("generation", ["first", "causal"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = told_by("tests.vocoder_svc.minicpmo45.launches", tmp_path_factory.mktemp("cache"))
    return found


@GENERATIONS
def test_what_a_start_launches_is_what_was_compiled_ahead(told: dict[str, Any], generation: str) -> None:
    ahead, start = told[generation]
    assert len(ahead["kinds"]) > 40
    assert {kind[0] for kind in ahead["kinds"].values()} >= {"_convolve", "_mean", "_attend", "_product", "_join", "_norm", "_excite"}
    assert start["kinds"].keys() == ahead["kinds"].keys()
    assert [entry["event"] for entry in ahead["logs"]] == ["kernels compiled"]


@GENERATIONS
def test_batches_and_lengths_make_no_kinds_of_their_own(told: dict[str, Any], generation: str) -> None:
    found = [json.dumps(kind, sort_keys=True) for kind in told[generation][0]["kinds"].values()]
    assert len(found) == len(set(found))


def test_what_fails_is_logged_and_stops_nothing(told: dict[str, Any]) -> None:
    (entry,) = told["no voice"]["logs"]
    assert entry["event"] == "not all kernels were compiled ahead" and entry["log_level"] == "warning"
    assert entry["error"].startswith("IndexError at model.py")
