"""HiFT with fused residual blocks against the plain one, rows of several lengths in one batch."""

from __future__ import annotations

import pytest
import torch

from minicpmo45.config import HiftConfig
from tests.vocoder_svc.minicpmo45.kernels import DEVICE, randn
from tests.vocoder_svc.minicpmo45.weights import CAUSAL, HIFT, hift_weights
from vocoder_svc.minicpmo45.fused_hift import FusedHift
from vocoder_svc.minicpmo45.hift import Hift


@pytest.mark.behaviour("N48")
@pytest.mark.parametrize("config", [HIFT, CAUSAL], ids=["first", "causal"])
def test_sound_is_the_plain_one(config: HiftConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    weights = {name: tensor.to(DEVICE) for name, tensor in hift_weights(config).items()}
    plain, fused = Hift(weights, config), FusedHift(weights, config)
    frames = torch.tensor([14, 9], device=DEVICE)
    mel, source = randn(2, 80, 14), randn(2, 14 * plain.hop, seed=1) / 10
    found, truth = (each.decode(mel, source, frames, frames - 1) for each in (fused, plain))
    assert (found - truth).abs().max() < 1e-5
