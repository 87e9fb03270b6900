"""The vision encoder and the resampler: the reference's numbers, independent attention, batches of unequal images, poison."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from minicpmo45.config import tiny
from tests.thinker_svc.minicpmo45.perception_support import FIXTURES, encoded, picture, tiny_weights
from thinker_svc.minicpmo45.frames import Slice, cut, longest_side, read_picture
from thinker_svc.minicpmo45.perception import Perception
from thinker_svc.minicpmo45.resampler import Resampler, sinusoids
from thinker_svc.minicpmo45.vision_encoder import PatchBatch, VisionEncoder, position_buckets

torch.set_num_threads(1)
CPU = torch.device("cpu")
CONFIG = tiny()
WEIGHTS = tiny_weights(CONFIG)
LONGEST = longest_side(CONFIG.vision)


def slices(*shapes: tuple[int, int]) -> list[Slice]:
    rng = np.random.default_rng(4)
    return [Slice(rows, columns, rng.integers(0, 256, (rows * columns, 588), np.uint8)) for rows, columns in shapes]


def test_the_reference_sees_the_same() -> None:
    reference = np.load(FIXTURES / "vision.npz")
    read = [
        read_picture(encoded(picture(width, height, index)), "image/png", most, CONFIG.vision)
        for index, (width, height, most) in enumerate(reference["pictures"].tolist())
    ]
    for index, made in enumerate(Perception(WEIGHTS, CONFIG, 1).see(read)):
        expected = reference[f"embeddings{index}"]
        np.testing.assert_allclose(made[:, ::3] if len(made) > 2 else made, expected, atol=1e-5, err_msg=f"picture {index}")


def test_position_buckets_are_those_of_the_reference() -> None:
    reference, ours = np.load(FIXTURES / "buckets.npz")["table"], position_buckets(100, 70).numpy()
    sides, index = np.arange(101)[:, None], np.arange(100)
    # Where a fraction meets a bound exactly, the rounding of another processor may fall to the other side.
    meets = (index < sides) & (index * 70 % np.maximum(sides, 1) == 0)
    np.testing.assert_array_equal(ours[~meets], reference[~meets])
    assert np.abs(ours - reference).max() <= 1
    np.testing.assert_array_equal(ours[~meets], np.where(index < sides, index * 70 // np.maximum(sides, 1), 0)[~meets])


def test_one_image_equals_plain_attention() -> None:
    """SigLIP by torch's own layers, without batch or mask."""
    only = slices((11, 9))[0]
    x = torch.from_numpy(only.patches).float().sub(127.5).div(127.5)
    x = F.conv2d(
        x.view(-1, 3, 14, 14), WEIGHTS["vpm.embeddings.patch_embedding.weight"], WEIGHTS["vpm.embeddings.patch_embedding.bias"]
    ).flatten(1)
    ids = [[row * 70 // 11 * 70 + column * 70 // 9 for column in range(9)] for row in range(11)]
    x = x + WEIGHTS["vpm.embeddings.position_embedding.weight"][torch.tensor(ids).flatten()]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, WEIGHTS[f"{name}.weight"], WEIGHTS[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], WEIGHTS[f"{name}.weight"], WEIGHTS[f"{name}.bias"], 1e-6)

    for layer in range(CONFIG.vision.layers):
        name = f"vpm.encoder.layers.{layer}"
        y = norm(x, f"{name}.layer_norm1")
        heads = [linear(y, f"{name}.self_attn.{part}_proj").view(99, 2, 16).transpose(0, 1) for part in "qkv"]
        mixed = ((heads[0] @ heads[1].transpose(1, 2)) / 4.0).softmax(-1) @ heads[2]
        x = x + linear(mixed.transpose(0, 1).flatten(1), f"{name}.self_attn.out_proj")
        y = linear(norm(x, f"{name}.layer_norm2"), f"{name}.mlp.fc1")
        x = x + linear(F.gelu(y, approximate="tanh"), f"{name}.mlp.fc2")
    made = VisionEncoder(WEIGHTS, CONFIG.vision, LONGEST)(PatchBatch.of([only], CPU))
    torch.testing.assert_close(made[0], norm(x, "vpm.post_layernorm"), atol=1e-5, rtol=0)


def test_the_resampler_places_keys_only_and_multiplies_proj_from_the_right() -> None:
    hidden, batch = CONFIG.llm.hidden_size, PatchBatch.of(slices((3, 7), (6, 4)), CPU)
    states = torch.randn(2, 24, CONFIG.vision.hidden_size, generator=torch.Generator().manual_seed(2))
    made = Resampler(WEIGHTS, CONFIG.vision, LONGEST)(batch, states)
    attention = torch.nn.MultiheadAttention(hidden, CONFIG.vision.resampler_heads, batch_first=True)
    attention.load_state_dict(
        {name.removeprefix("resampler.attn."): each for name, each in WEIGHTS.items() if ".attn." in name and "res" in name}
    )
    table = torch.arange(10).double()[:, None] * 10_000.0 ** (-torch.arange(hidden // 4).double() / (hidden // 4))
    table = torch.cat((table.sin(), table.cos()), 1).float()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (hidden,), WEIGHTS[f"resampler.{name}.weight"], WEIGHTS[f"resampler.{name}.bias"], 1e-6)

    for index, (rows, columns) in enumerate(((3, 7), (6, 4))):
        values = norm(states[index : index + 1, : rows * columns] @ WEIGHTS["resampler.kv_proj.weight"].T, "ln_kv")
        places = torch.stack([torch.cat((table[column], table[row])) for row in range(rows) for column in range(columns)])
        out = attention(norm(WEIGHTS["resampler.query"], "ln_q")[None], values + places, values)[0]
        torch.testing.assert_close(made[index : index + 1], norm(out, "ln_post") @ WEIGHTS["resampler.proj"], atol=1e-5, rtol=0)


def test_sinusoids_go_as_far_as_asked() -> None:
    long, short = sinusoids(400, 32), sinusoids(70, 32)
    torch.testing.assert_close(long[:70], short)
    torch.testing.assert_close(long[399, 0], torch.tensor(399.0).sin(), atol=1e-5, rtol=0)


def test_images_together_equal_images_alone_whatever_stands_in_padding() -> None:
    vision, resampler = VisionEncoder(WEIGHTS, CONFIG.vision, LONGEST), Resampler(WEIGHTS, CONFIG.vision, LONGEST)
    images = slices((32, 32), (2, 300), (1, 1), (24, 43))
    batch = PatchBatch.of(images, CPU)
    batch.patches[~batch.real] = 255
    together = vision(batch)
    seen = resampler(batch, together)
    assert together.isfinite().all()
    for index, image in enumerate(images):
        single = PatchBatch.of([image], CPU)
        states = vision(single)
        torch.testing.assert_close(together[index, : len(image.patches)], states[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(seen[index], resampler(single, states)[0], atol=1e-5, rtol=0)


def test_pictures_of_many_sessions_come_back_in_order() -> None:
    perception = Perception(WEIGHTS, CONFIG, 1)
    pictures = [cut(picture(160 + 90 * index, 700, index), 1 + index % 9, CONFIG.vision) for index in range(11)]
    assert sum(len(each.slices) for each in pictures) > 32
    made = perception.see(pictures)
    assert [len(each) for each in made] == [len(each.slices) for each in pictures]
    for each, seen in zip(pictures, made, strict=True):
        assert seen.shape[1:] == (64, CONFIG.llm.hidden_size)
        torch.testing.assert_close(perception.see([each])[0], seen, atol=1e-5, rtol=0)
    assert perception.see([]) == []
