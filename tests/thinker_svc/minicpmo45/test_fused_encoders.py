"""The encoders with fused kernels against the plain ones, on CUDA where there is one, else in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from minicpmo45.config import tiny
from tests.support.interpreter import mend_interpreter
from tests.thinker_svc.minicpmo45.perception_support import sound, tiny_weights, unit_of
from thinker_svc.minicpmo45.frames import Slice, longest_side
from thinker_svc.minicpmo45.fused_encoders import FusedAudioEncoder, FusedVisionEncoder
from thinker_svc.minicpmo45.perception import Perception
from thinker_svc.minicpmo45.vision_encoder import PatchBatch, VisionEncoder
from torch_kit.kernels import layer_norm

torch.set_num_threads(1)
mend_interpreter()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = tiny()
WEIGHTS = {name: each.to(DEVICE) for name, each in tiny_weights(CONFIG).items()}
LONGEST = longest_side(CONFIG.vision)
UNITS, CACHED = (0, 3, 29, 14), (0, 150, 1450, 700)
"""Of four sessions: a first unit, one before the floor of the features moves at 5 s, one whose cache starts anew, one between."""


def aged(kernels: Any) -> Perception:
    """Four sessions in those phases, and a slot of nobody. The same caches every time; what does not count is NaN."""
    perception = Perception(WEIGHTS, CONFIG, 5, plain=True, kernels=kernels)
    generator = torch.Generator().manual_seed(5)
    perception.cache.fill_(torch.nan)
    perception.mel_state.tail.fill_(torch.nan)
    perception.mel_state.loudest.fill_(torch.nan)
    for slot, (units, cached) in enumerate(zip(UNITS, CACHED, strict=True)):
        perception.open(slot)
        perception._units[slot], perception._cached[slot] = units, cached
        history = perception.cache[:, slot, :, :, :cached]
        history.copy_(torch.randn(history.shape, generator=generator))
        if units:
            perception.mel_state.tail[slot] = 0.1 * torch.randn(1000, generator=generator).to(DEVICE)
            perception.mel_state.loudest[slot] = -3.0
    return perception


@pytest.mark.behaviour("N48")
def test_sessions_in_all_phases_hear_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # the interpreter takes its time for each program: as many lines in one as where there are many
    monkeypatch.setattr(layer_norm, "_ONE_EACH", 0)
    plain, fused = aged("plain"), aged("fused")
    for tick, slots in enumerate([[3, 0, 2], [2, 1]]):
        samples = [unit_of(sound(5, slot), min(tick + slot, 4) if plain._units[slot] else 0) for slot in slots]
        first = [plain._units[slot] == 0 for slot in slots]
        expected, made = plain.hear(slots, samples, first), fused.hear(slots, samples, first)
        torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(fused.cache, plain.cache, atol=1e-5, rtol=0, equal_nan=True)
    assert fused._cached.tolist()[:4] == [50, 200, 100, 750] and fused.cache[:, 4].isnan().all()


@pytest.mark.behaviour("N48")
@pytest.mark.parametrize("shapes", [((3, 4), (2, 6)), ((3, 4), (1, 1), (2, 3))], ids=["full", "padded"])
def test_images_are_seen_the_same(shapes: tuple[tuple[int, int], ...]) -> None:
    draw = np.random.default_rng(1)
    slices = [Slice(rows, columns, draw.integers(0, 256, (rows * columns, 588), np.uint8)) for rows, columns in shapes]
    batch = PatchBatch.of(slices, DEVICE)
    assert batch.full == (len(shapes) == 2)
    made = FusedVisionEncoder(WEIGHTS, CONFIG.vision, LONGEST)(batch)
    expected = VisionEncoder(WEIGHTS, CONFIG.vision, LONGEST)(batch)
    for ours, theirs, each in zip(made, expected, slices, strict=True):
        torch.testing.assert_close(ours[: len(each.patches)], theirs[: len(each.patches)], atol=1e-5, rtol=0)


def test_a_device_without_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {name: each.cpu() for name, each in WEIGHTS.items()}
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for make in (lambda: FusedAudioEncoder(weights, CONFIG.audio), lambda: FusedVisionEncoder(weights, CONFIG.vision, LONGEST)):
        with pytest.raises(ValueError, match="weights: on cpu"):
            make()
