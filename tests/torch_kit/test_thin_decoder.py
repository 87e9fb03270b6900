"""Forwards of few tokens, whose products are thin, and of more with padded products, against the plain path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.torch_kit.support import HIDDEN, embeddings, reference
from tests.torch_kit.support.fused import DEVICE, GROUPED, SINGLE, TILING, Both, fused, prefix, window
from torch_kit.decoder import DecoderConfig
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.kernels.thin_product import Thin
from torch_kit.page_table import PageTable
from torch_kit.ragged import RaggedBatch

SHAPES = pytest.mark.parametrize("config", [GROUPED, SINGLE], ids=["grouped", "single"])
DIVIDED = {"qkv": Thin(64, 32), "out": Thin(32, 16, 3), "gate_up": Thin(64, 64, warps=2), "down": Thin(64, 32, 3)}


@pytest.mark.parametrize(("config", "ways"), [(GROUPED, DIVIDED), (SINGLE, None)], ids=["grouped, divided", "single, chosen"])
@pytest.mark.behaviour("N46")
def test_one_to_sixteen_tokens_equal_the_plain_path(config: DecoderConfig, ways: dict[str, Thin] | None) -> None:
    both = Both(config, 3, thin_tokens=16, ways=ways)
    both.feed([(0, prefix(3)), (1, window(13))], embeddings(16, seed=1))
    both.feed([(0, window(1))], embeddings(1, seed=2))
    both.change(1, lambda table: table.cut(0, 7))
    both.feed([(2, window(1)), (1, window(1)), (0, window(1))], embeddings(3, seed=4), [True, False, True], only_sampled=True)
    both.feed([(0, window(6)), (2, window(3))], embeddings(9, seed=5))
    both.fused.thin_tokens = 64
    both.feed([(0, window(18)), (2, window(3))], embeddings(21, seed=6))


@SHAPES
def test_one_line_needs_no_tensor_cores(config: DecoderConfig) -> None:
    both = Both(config, 1, thin_tokens=1, ways=dict.fromkeys(DIVIDED, Thin(16, 32, stages=1, dots=False)))
    both.feed([(0, window(5))], embeddings(5, seed=1))
    both.feed([(0, window(1))], embeddings(1, seed=2))


def test_thin_or_not_is_the_same() -> None:
    both = Both(SINGLE, 2, thin_tokens=2)
    both.feed([(0, window(1)), (1, window(1))], embeddings(2, seed=1))
    both.feed([(0, window(3)), (1, window(2))], embeddings(5, seed=2))
    both.feed([(0, window(1)), (1, window(1))], embeddings(2, seed=3), [True, False], only_sampled=True)


def test_products_may_be_padded() -> None:
    both = Both(GROUPED, 2, thin_tokens=0, padded={4: 7, 24: 32})
    both.feed([(0, window(2)), (1, window(1))], embeddings(3, seed=1))
    both.feed([(0, window(14)), (1, window(4))], embeddings(18, seed=2), [True, False], only_sampled=True)


def _embedded(ours: FusedDecoder, padding: float) -> tuple[torch.Tensor, torch.Tensor]:
    table = PageTable(ours.pool, 3)
    inputs = torch.cat((embeddings(3, seed=1), torch.full((1, HIDDEN), padding))).to(DEVICE)
    kept = inputs.clone()
    hidden = ours.forward(inputs, RaggedBatch.tiled([table.append(3)], TILING))[:3]
    assert torch.equal(inputs.nan_to_num(), kept.nan_to_num())
    return hidden, ours.pool.storage[:, table.pages[0], :, :, :3].clone()


@pytest.mark.parametrize("how", [{"thin_tokens": 16}, {"thin_tokens": 16, "ways": DIVIDED}, {}], ids=["chosen", "divided", "library"])
def test_padding_rows_of_nan_come_into_no_other_and_inputs_stay(how: dict[str, Any]) -> None:
    ours = fused(reference(GROUPED), GROUPED, **how)
    hidden, pages = _embedded(ours, 0.0)
    poisoned, poisoned_pages = _embedded(ours, torch.nan)
    assert hidden.isfinite().all() and torch.equal(hidden, poisoned) and torch.equal(pages, poisoned_pages)


def test_many_tokens_are_never_thin() -> None:
    with pytest.raises(ValueError, match="thin_tokens: 129, not 0 to 128"):
        fused(reference(GROUPED), GROUPED, thin_tokens=129)
