"""Kernels compiled ahead: for real, for a card that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.support.pretended_card import told_by
from torch_kit.compiling import compile_ahead


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = told_by("tests.torch_kit.support.walks", tmp_path_factory.mktemp("cache"))
    return found


def test_what_is_launched_is_compiled_once_and_nothing_is_launched_or_written(told: dict[str, Any]) -> None:
    assert told["several"] == {"kernels": 3, "error": "NoneType", "launched": 0}
    assert told["held"]


def test_a_launch_finds_what_was_compiled(told: dict[str, Any]) -> None:
    assert told["launched"] == ["_doubled", "_doubled"] and not told["late"]


def test_what_was_compiled_is_not_walked_again_unless_facts_or_code_changed(told: dict[str, Any]) -> None:
    assert told["again"] == {"nothing": True}
    assert told["other facts"]["error"] == told["other code"]["error"] == "NoneType"
    assert told["walked"] == 3


def test_a_walk_that_fails_leaves_what_it_asked_for_and_is_tried_again(told: dict[str, Any]) -> None:
    assert told["raising"]["kernels"] == 1 and told["raising"]["error"] == told["raising again"]["error"] == "ValueError"


def test_a_value_cannot_be_asked_for(told: dict[str, Any]) -> None:
    assert told["asking"]["error"] == "RuntimeError"


def test_a_kernel_that_cannot_be_compiled_is_told_and_the_others_are_compiled(told: dict[str, Any]) -> None:
    assert told["wrong"]["kernels"] == 1 and told["wrong"]["error"] == "CompilationError"


def test_other_threads_launch_as_ever(told: dict[str, Any]) -> None:
    assert told["beside"]["error"] == "NoneType"
    assert told["beside"]["launched"] == told["wrong"]["launched"] + 1


def test_walks_of_two_threads_follow_each_other(told: dict[str, Any]) -> None:
    """Else the first to end takes the other's requests for launches, and the other leaves launches that are none behind."""
    outcomes = [[1, "NoneType"]] * 2
    assert told["two at once"] == {"overlapped": False, "outcomes": outcomes, "launched": 0, "restored": True}


def test_interpreted_kernels_are_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def walk() -> None:
        raise AssertionError

    assert compile_ahead(walk, None, [tmp_path]) is None
