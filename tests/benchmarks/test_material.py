"""The checkpoint that benchmarks measure."""

from __future__ import annotations

from pathlib import Path

from benchmarks.native import material
from minicpmo45.weights import talker_weights


def test_a_random_talker_does_not_end_a_unit_by_chance(tmp_path: Path) -> None:
    path = tmp_path / "bench"
    material.checkpoint(path, full=False)
    head = talker_weights(path)["tts.head_code.0.weight"]
    assert not head[-1].any() and head[:-1].any(1).all()
