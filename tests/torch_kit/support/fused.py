"""The plain decoder on the CPU and the fused one beside it, fed alike: on CUDA where there is one, else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.support.interpreter import mend_interpreter
from tests.torch_kit.support import HIDDEN, decoder, reference, weights_of
from torch_kit.decoder import DecoderConfig
from torch_kit.fp8 import FP8, widened
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.page_table import Appended, PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.tiles import Tiling

mend_interpreter()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE = 16
GROUPED = DecoderConfig(HIDDEN, 2, 4, 2, 16, 80, 1e-6, 1_000_000.0, qk_norm=True)
SINGLE = DecoderConfig(HIDDEN, 2, 2, 2, 32, 80, 1e-6, 10_000.0, qk_norm=False)
TILING = Tiling(pages=4, rows=6)


def fused(
    model: Any,
    config: DecoderConfig,
    *,
    pages: int = 48,
    page: int = PAGE,
    kept: torch.dtype = torch.float32,
    scaled: bool = False,
    **how: Any,
) -> FusedDecoder:
    """Over the weights of transformers' model (`scaled`: in e4m3), in a pool of dtype `kept` whose free pages are NaN. `how`: of its
    products."""
    sizes = {"layers": config.layers, "kv_heads": config.kv_heads, "head_dim": config.head_dim, "pages": pages, "page": page}
    pool = PagePool(**sizes, dtype=kept, device=DEVICE, poison=True)
    return FusedDecoder({name: tensor.to(DEVICE) for name, tensor in weights_of(model, config, scaled=scaled).items()}, config, pool, **how)


class Both:
    """Sessions that live in both decoders at once. `kept`: dtype of the pages; `scaled`: matrices in e4m3; `rounded`: what comes into their
    products, too."""

    def __init__(
        self,
        config: DecoderConfig,
        sessions: int,
        *,
        reserve: int = 5,
        kept: torch.dtype = torch.float32,
        scaled: bool = False,
        rounded: bool = False,
        **how: Any,
    ) -> None:
        model = reference(config)
        self.plain = decoder(model, config, pages=48, page=PAGE, kept=kept, scaled=scaled, rounded=rounded)
        self.fused = fused(model, config, kept=kept, scaled=scaled, **how)
        self._exact = kept != FP8 and not rounded
        self.tables = [(PageTable(self.plain.pool, reserve), PageTable(self.fused.pool, reserve)) for _ in range(sessions)]

    def change(self, session: int, what: Callable[[PageTable], object]) -> None:
        """The same change of both tables of a session."""
        for table in self.tables[session]:
            what(table)

    def feed(
        self,
        appends: Sequence[tuple[int, Callable[[PageTable], Appended]]],
        inputs: Tensor,
        sample: Sequence[bool] | None = None,
        *,
        only_sampled: bool = False,
        tiling: Tiling = TILING,
    ) -> RaggedBatch:
        """One forward of both, of appends to sessions; equal in what comes out and in all pages. The fused one's batch."""
        rows = [append(self.tables[session][0]) for session, append in appends]
        expected = self.plain.forward(inputs, RaggedBatch.of(rows))[: len(inputs)]
        batch = RaggedBatch.tiled([append(self.tables[session][1]) for session, append in appends], tiling, sample)
        hidden = self.fused.forward(inputs.to(DEVICE), batch, only_sampled=only_sampled).cpu()
        assert hidden.isfinite().all()
        if only_sampled:
            assert len(hidden) == len(batch.sampled)
            chosen = RaggedBatch.of(rows, sample).sampled
            self._compare(hidden[: len(chosen)], expected[chosen])
        else:
            self._compare(hidden[: batch.count], expected)
        mine, theirs = _held(self.fused.pool), _held(self.plain.pool)
        assert torch.equal(mine.isnan(), theirs.isnan())
        self._compare(mine.nan_to_num(), theirs.nan_to_num())
        return batch

    def _compare(self, mine: Tensor, theirs: Tensor) -> None:
        if self._exact:
            assert (mine - theirs).abs().max() < 1e-5
        else:
            # the last bit decides where an element at a border of rounding goes; rounding itself is 20 times as much
            assert (mine - theirs).square().mean().sqrt() < 2e-3 and (mine - theirs).abs().median() < 1e-4


def _held(pool: PagePool) -> Tensor:
    """fp32, on the host: keys and values, without the sink."""
    vectors = pool.storage if pool.scales is None else widened(pool.storage, pool.scales, torch.float32)
    return vectors[:, 1:].cpu()


def window(count: int) -> Callable[[PageTable], Appended]:
    return lambda table: table.append(count)


def prefix(count: int) -> Callable[[PageTable], Appended]:
    return lambda table: table.append_prefix(count)
