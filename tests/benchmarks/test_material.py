"""The checkpoint that benchmarks measure."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.native import material
from minicpmo45.weights import talker_weights
from talker_svc.minicpmo45.sampler import Manner


def test_a_random_talker_does_not_end_a_unit_by_chance(tmp_path: Path) -> None:
    """A logit of 0 alone is no bar: that of any other code is above it as often as below."""
    path = tmp_path / "bench"
    material.checkpoint(path, full=False)
    head = talker_weights(path)["tts.head_code.0.weight"].float()
    assert not head[-1].any() and head[:-1].any(1).all()
    states = torch.randn(512, head.shape[1], generator=torch.Generator().manual_seed(1))
    states /= states.square().mean(1, keepdim=True).sqrt()  # as the last norm leaves them
    ends = (states @ head.T / Manner().temperature).softmax(1)[:, -1]
    assert ends.max() < 1e-9
