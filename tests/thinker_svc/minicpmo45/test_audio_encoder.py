"""The audio encoder: the reference's numbers over the 30 s reset, units against one masked pass, poison, precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minicpmo45.config import tiny
from minicpmo45.errors import CheckpointError
from tests.thinker_svc.minicpmo45.perception_support import FIXTURES, sound, tiny_weights
from thinker_svc.minicpmo45.audio_encoder import AudioEncoder, place
from thinker_svc.minicpmo45.mel import LogMel

torch.set_num_threads(1)
CONFIG = tiny()
WEIGHTS = tiny_weights(CONFIG)


def features(units: int, seed: int = 0) -> torch.Tensor:
    """Frames of a recording that end 2 frames behind the last unit's own: [units * 100 + 2, 80]."""
    return LogMel(80, torch.device("cpu")).whole(torch.from_numpy(sound(units, seed)))[: units * 100 + 2]


def cut(frames: torch.Tensor, index: int) -> torch.Tensor:
    """A unit's 104 frames; what stands before the first is NaN."""
    if index == 0:
        return torch.cat((torch.full((2, 80), torch.nan), frames[:102]))
    return frames[100 * index - 2 : 100 * index + 102]


def test_units_over_a_cache_equal_one_pass_with_a_block_mask() -> None:
    encoder, frames = AudioEncoder(WEIGHTS, CONFIG.audio), features(28)
    whole, cache = encoder.whole(frames), encoder.cache(2).fill_(torch.nan)
    for index in range(28):
        made = encoder.unit(
            cache, torch.tensor([1]), torch.tensor([50 * index]), torch.tensor([index == 0]), cut(frames, index)[None], 50 * index + 50
        )
        torch.testing.assert_close(made[0], whole[10 * index : 10 * index + 10], atol=1e-5, rtol=0)
    assert cache[:, 0].isnan().all()


def test_a_wider_span_changes_nothing() -> None:
    encoder, frames = AudioEncoder(WEIGHTS, CONFIG.audio), features(2)
    made = []
    for span in (100, 700, 1500):
        cache = encoder.cache(1).fill_(torch.nan)
        for index in (0, 1):
            out = encoder.unit(
                cache, torch.tensor([0]), torch.tensor([50 * index]), torch.tensor([index == 0]), cut(frames, index)[None], span
            )
        made.append(out)
    torch.testing.assert_close(made[1], made[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(made[2], made[0], atol=1e-6, rtol=0)


def test_the_cache_starts_anew_after_1450_frames() -> None:
    cached, starts = 0, []
    for index in range(60):
        at = place(cached, 1500)
        starts += [index] if at == 0 else []
        cached = at + 50
    assert starts == [0, 29, 58]


def test_a_fresh_start_forgets_what_was_heard_but_keeps_the_context_of_the_convolutions() -> None:
    encoder, frames = AudioEncoder(WEIGHTS, CONFIG.audio), features(3)
    one, two = encoder.cache(1), encoder.cache(1)
    slot, zero, no = torch.tensor([0]), torch.tensor([0]), torch.tensor([False])
    encoder.unit(one, slot, zero, torch.tensor([True]), cut(frames, 0)[None], 50)
    anew = encoder.unit(one, slot, zero, no, cut(frames, 2)[None], 100)
    torch.testing.assert_close(anew, encoder.unit(two, slot, zero, no, cut(frames, 2)[None], 50), atol=1e-6, rtol=0)
    without_context = cut(frames, 2).clone()
    without_context[:2] = 0
    assert (anew - encoder.unit(two, slot, zero, no, without_context[None], 50)).abs().max() > 1e-3


def test_the_mean_may_stand_before_the_last_linear_layer() -> None:
    encoder, frames = AudioEncoder(WEIGHTS, CONFIG.audio), features(1)[:100]
    x = torch.randn(1, 50, CONFIG.audio.d_model, generator=torch.Generator().manual_seed(0))
    first, second = (torch.nn.Linear(*sizes) for sizes in ((CONFIG.audio.d_model, CONFIG.llm.hidden_size), (CONFIG.llm.hidden_size,) * 2))
    for layer, name in ((first, "linear1"), (second, "linear2")):
        layer.load_state_dict({part: WEIGHTS[f"audio_projection_layer.{name}.{part}"] for part in ("weight", "bias")})
    pooled = torch.nn.functional.avg_pool1d(second(first(x).relu()).transpose(1, 2), 5).transpose(1, 2)
    torch.testing.assert_close(encoder._project(x), pooled, atol=1e-5, rtol=0)
    assert encoder.whole(frames).shape == (10, CONFIG.llm.hidden_size)


def test_a_missing_tensor_is_named() -> None:
    weights = {name: each for name, each in WEIGHTS.items() if name != "apm.layers.1.fc2.weight"}
    with pytest.raises(CheckpointError, match=r"apm\.layers\.1\.fc2\.weight"):
        AudioEncoder(weights, CONFIG.audio)


def test_half_precision_stays_near() -> None:
    frames, exact = features(6), AudioEncoder(WEIGHTS, CONFIG.audio)
    encoder = AudioEncoder({name: each.bfloat16() for name, each in WEIGHTS.items()}, CONFIG.audio)
    assert encoder.cache(1).dtype == torch.bfloat16
    caches = encoder.cache(1), exact.cache(1)
    for index in range(6):
        arguments = torch.tensor([0]), torch.tensor([50 * index]), torch.tensor([index == 0]), cut(frames, index)[None], 300
        near, truth = encoder.unit(caches[0], *arguments).float(), exact.unit(caches[1], *arguments)
        assert (near - truth).norm() < 0.03 * truth.norm()


def test_the_fixture_is_sensitive_to_the_order_of_units() -> None:
    reference = np.load(FIXTURES / "encoder.npz")["zero"]
    assert np.abs(reference[1:] - reference[:-1]).max((1, 2)).min() > 1e-2
