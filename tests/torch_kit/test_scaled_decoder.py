"""Decoders over matrices in e4m3: the plain one against transformers' with rounded weights, the fused one against the plain one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_kit.support import HIDDEN, LLAMA, QWEN, decoder, embeddings, feed, reference, table, weights_of, whole
from tests.torch_kit.support.fused import DEVICE, GROUPED, SINGLE, TILING, Both, fused, prefix, window
from torch_kit.decoder import Decoder, DecoderConfig, WeightError
from torch_kit.decoder_weights import DecoderWeights, join, matrix_names
from torch_kit.fp8 import FP8, narrowed, widened
from torch_kit.kernels.thin_product import Thin
from torch_kit.page_table import PageTable
from torch_kit.ragged import RaggedBatch

DIVIDED = {"qkv": Thin(64, 32, lines=32), "out": Thin(32, 16, 3), "gate_up": Thin(64, 32, lines=32), "down": Thin(64, 32, 3, lines=32)}


def rounded_inputs(model: Any) -> None:
    """Every product of transformers' blocks gets its source rounded, a token at a time."""
    for module in model.layers.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, given: (widened(*narrowed(given[0]), torch.float32),))


@pytest.mark.parametrize("config", [QWEN, LLAMA], ids=["qwen", "llama"])
@pytest.mark.parametrize("rounded", [False, True], ids=["weights", "both"])
def test_the_plain_path_is_a_forward_whose_weights_were_rounded(config: DecoderConfig, rounded: bool) -> None:
    model = reference(config)
    ours, inputs = decoder(model, config, scaled=True, rounded=rounded), embeddings(21, seed=1)
    exact = whole(model, inputs)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name in matrix_names(config):
                tensor.copy_(widened(*narrowed(tensor), torch.float32))
    if rounded:
        rounded_inputs(model)
    truth = whole(model, inputs)
    rows = table(ours)
    found = torch.cat([feed(ours, [rows], [part])[0] for part in inputs.split([13, 1, 7])])
    error, lost = (torch.sqrt((each - truth).square().mean()) for each in (found, exact))
    # what lies at a border of rounding goes to either side
    assert lost > 0.02 and error < (0.02 * lost if rounded else 1e-5)


@pytest.mark.parametrize("ways", [DIVIDED, None], ids=["divided", "chosen"])
@pytest.mark.parametrize("thin_tokens", [16, 0], ids=["thin", "widened"])
def test_few_tokens_equal_the_plain_path(thin_tokens: int, ways: dict[str, Thin] | None) -> None:
    both = Both(GROUPED, 3, scaled=True, thin_tokens=thin_tokens, ways=ways)
    both.feed([(0, prefix(3)), (1, window(13))], embeddings(16, seed=1))
    both.feed([(0, window(1))], embeddings(1, seed=2))
    both.change(1, lambda table: table.cut(0, 7))
    both.feed([(2, window(1)), (1, window(1)), (0, window(1))], embeddings(3, seed=4), [True, False, True], only_sampled=True)
    both.feed([(0, window(18)), (2, window(3))], embeddings(21, seed=6))


@pytest.mark.parametrize("config", [GROUPED, SINGLE], ids=["grouped", "single"])
def test_many_tokens_equal_the_plain_path_with_rounded_sources(config: DecoderConfig) -> None:
    both = Both(config, 2, scaled=True, rounded=True, thin_tokens=0, widened_tokens=0, padded={4: 7})
    both.feed([(0, prefix(17)), (1, window(3))], embeddings(20, seed=1))
    both.feed([(0, window(2)), (1, window(1))], embeddings(3, seed=2), [True, False], only_sampled=True)


def test_the_number_of_tokens_chooses() -> None:
    """Two of them are products of bare weights, three are not."""
    model = reference(GROUPED)
    ours = fused(model, GROUPED, scaled=True, thin_tokens=0, widened_tokens=2)
    inputs = embeddings(3, seed=1).to(DEVICE)

    def run(count: int, widened: int) -> torch.Tensor:
        ours.widened_tokens = widened
        return ours.forward(inputs[:count], RaggedBatch.tiled([PageTable(ours.pool, 3).append(count)], TILING))[:count]

    assert torch.equal(run(2, 2), run(2, 128)) and not torch.equal(run(2, 2), run(2, 0))
    assert torch.equal(run(3, 2), run(3, 0)) and not torch.equal(run(3, 2), run(3, 128))
    with pytest.raises(ValueError, match="widened_tokens: 129, not 0 to 128"):
        fused(model, GROUPED, scaled=True, widened_tokens=129)


def test_widths_that_tensor_cores_do_not_take_are_refused() -> None:
    config = replace(GROUPED, intermediate_size=72)
    with pytest.raises(ValueError, match="weights: e4m3 of width 48, 72 within; not multiples of 16"):
        fused(reference(config), config, scaled=True)
    assert not fused(reference(config), config)._weights.scaled


@pytest.mark.parametrize("how", [{"thin_tokens": 16}, {}, {"widened_tokens": 0}], ids=["thin", "widened", "rounded"])
def test_padding_rows_of_nan_come_into_no_other(how: dict[str, Any]) -> None:
    ours, found = fused(reference(GROUPED), GROUPED, scaled=True, **how), []
    for padding in (0.0, torch.nan):
        rows = PageTable(ours.pool, 3)
        inputs = torch.cat((embeddings(3, seed=1), torch.full((1, HIDDEN), padding))).to(DEVICE)
        hidden = ours.forward(inputs, RaggedBatch.tiled([rows.append(3)], TILING))[:3]
        found.append((hidden, ours.pool.storage[:, rows.pages[0], :, :, :3].clone()))
    assert all(torch.equal(left, right) and left.isfinite().all() for left, right in zip(*found, strict=True))


def test_joined_matrices_are_the_same_and_their_scales_go_along() -> None:
    weights = weights_of(reference(QWEN), QWEN, scaled=True)
    apart = DecoderWeights(weights, QWEN)
    join(weights, QWEN)
    assert not any(part in name for name in weights for part in (".q_proj", ".up_proj"))
    together = DecoderWeights(weights, QWEN)
    assert apart.scaled and together.scaled
    for left, right in zip(apart.layers, together.layers, strict=True):
        for one, other in zip(left.matrices, right.matrices, strict=True):
            assert one.values.dtype == FP8 and torch.equal(one.values.float(), other.values.float())
            assert one.scales is not None and other.scales is not None and torch.equal(one.scales, other.scales)
    assert together.layers[0].qkv.scales is weights["layers.0.self_attn.qkv_proj.scale"]


def test_weights_at_fault_are_named() -> None:
    model = reference(QWEN)
    pool, plain = decoder(model, QWEN).pool, weights_of(model, QWEN)

    def refused(change: dict[str, torch.Tensor], without: str = "") -> str:
        weights = {name: tensor for name, tensor in (weights_of(model, QWEN, scaled=True) | change).items() if name != without}
        with pytest.raises(WeightError) as error:
            Decoder(weights, QWEN, pool)
        return str(error.value)

    scale = "layers.1.mlp.down_proj.scale"
    assert refused({}, without=scale) == f"{scale}: missing"
    assert refused({scale: torch.ones(HIDDEN + 1)}) == f"{scale}: shape (49,), not (48,)"
    key, out = (f"layers.2.self_attn.{part}_proj.weight" for part in "ko")
    assert refused({key: plain[key]}) == f"{key}: not of the type of layers.2.self_attn.q_proj.weight, to which it is joined"
    assert refused({out: plain[out]}) == "layers.2: some matrices are in e4m3, others are not"
