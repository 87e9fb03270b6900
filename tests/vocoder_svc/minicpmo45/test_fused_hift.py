"""HiFT with fused kernels against the plain one: rows of several lengths in one batch, memory that nobody wrote is NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minicpmo45.config import HiftConfig
from tests.vocoder_svc.minicpmo45.kernels import DEVICE, randn
from tests.vocoder_svc.minicpmo45.weights import CAUSAL, HIFT, hift_weights
from vocoder_svc.minicpmo45 import fused_hift
from vocoder_svc.minicpmo45.fused_hift import FusedHift
from vocoder_svc.minicpmo45.hift import Hift
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings
from vocoder_svc.minicpmo45.source import noise_table

GENERATIONS = pytest.mark.parametrize("config", [HIFT, CAUSAL], ids=["first", "causal"])
FRAMES, SIZE = (6, 4), 6


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that kernels are given is full of NaN; torch's convolutions are exact."""
    empty = torch.empty

    def poisoned(*size: int, **options: object) -> Tensor:
        made: Tensor = empty(*size, **options)  # type: ignore[call-overload]
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def _both(config: HiftConfig) -> tuple[Hift, FusedHift]:
    weights = {name: tensor.to(DEVICE) for name, tensor in hift_weights(config).items()}
    return Hift(weights, config), FusedHift(weights, config, tf32=False)


def _given(hop: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mels and excitation, NaN beyond each row's frames; these lie as columns of what a step is told."""
    frames = torch.tensor(FRAMES, device=DEVICE)[:, None].repeat(1, 3)[:, 1]
    mel, source = randn(2, 80, SIZE), randn(2, SIZE * hop, seed=1) / 10
    for row, count in enumerate(FRAMES):
        mel[row, :, count:] = torch.nan
        source[row, count * hop :] = torch.nan
    return mel, source, frames


@pytest.mark.behaviour("N48", "S1")
@GENERATIONS
def test_sound_is_the_plain_one_and_a_row_is_as_it_is_alone(config: HiftConfig) -> None:
    plain, fused = _both(config)
    mel, source, frames = _given(plain.hop)
    decoded = torch.stack((frames, frames - 1), 1)[:, 1]
    found, truth = (each.decode(mel, source, frames, decoded) for each in (fused, plain))
    assert (found - truth).abs().max() < 1e-5
    size = FRAMES[1]
    alone = fused.decode(mel[1:, :, :size], source[1:, : size * plain.hop], frames[1:], decoded[1:])
    assert (found[1, : size * plain.hop] - alone[0]).abs().max() < 1e-6


@GENERATIONS
def test_pitch_and_excitation_are_the_plain_ones(config: HiftConfig) -> None:
    plain, fused = _both(config)
    mel, _, frames = _given(plain.hop)
    # round the table's end, and far on in a turn
    noise = noise_table(config, 3)[:3000].to(DEVICE)
    begin, phase = torch.tensor([[1700, 0], [10**10, 0]], device=DEVICE)[:, 0], torch.rand(2, 9, dtype=torch.float64, device=DEVICE)
    made = []
    for each in (plain, fused):
        f0 = each.pitch(mel, frames)
        source, after = each.source(f0, frames, torch.tensor([0, 1], device=DEVICE), phase, noise, begin)
        made.append((f0, source, after))
    for found, truth in zip(made[1], made[0], strict=True):
        for row, count in enumerate(FRAMES):
            counted = count * truth.shape[1] // SIZE if truth.shape[1] % SIZE == 0 else truth.shape[1]
            assert torch.allclose(found[row, :counted], truth[row, :counted], rtol=1e-6, atol=1e-6)


# without a GPU TF32 is no rounding
@pytest.mark.parametrize("dtype", [torch.float16, *[torch.bfloat16, torch.float32][: 2 * (DEVICE == "cuda")]])
def test_what_operands_of_few_bits_lose(dtype: torch.dtype) -> None:
    weights = {name: tensor.to(DEVICE) for name, tensor in hift_weights(HIFT).items()}
    plain, fused = Hift(weights, HIFT), FusedHift(weights, HIFT, dtype)
    mel, source, frames = (each[1:] for each in _given(plain.hop))
    mel, source = mel[:, :, : FRAMES[1]], source[:, : FRAMES[1] * plain.hop]
    found, truth = (each.decode(mel, source, frames, frames) for each in (fused, plain))
    # measured with the released sizes: 5.6e-4, 5.0e-3 and 2.7e-3 of the peak
    bound = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 5e-3}[dtype]
    assert (found - truth).abs().max() < bound * truth.abs().max()


@GENERATIONS
def test_rows_that_are_decoded_apart_sound_the_same(config: HiftConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows in two parts, of which the last is not full."""
    _, fused = _both(config)
    mel, source, frames = (torch.cat((each, each[:1])) for each in _given(fused.hop))
    decoded = torch.stack((frames, frames - 1), 1)[:, 1]
    together = fused.decode(mel, source, frames, decoded)
    monkeypatch.setattr(fused_hift, "ROWS_AT_ONCE", 2)
    apart = fused.decode(mel, source, frames, decoded)
    assert together.isfinite().all() and apart.shape == together.shape and (apart - together).abs().max() < 1e-6


def test_settings_name_what_is_of_fused_kernels_alone() -> None:
    with pytest.raises(ValueError, match="hift_dtype"):
        MiniCpmVocoderSettings(checkpoint=".", hift_dtype="float16")  # type: ignore[call-arg, arg-type]
