"""The decoder's matrix products by number of lines: the library's beside the least that must be read, and thin ones of few lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from benchmarks.native.card import Card
from benchmarks.native.copies import copied_us
from benchmarks.native.floors import Floor
from benchmarks.native.product import CACHE_BYTES, EPS, Product, largest_error, products_of
from benchmarks.native.scaled_products import Scaled
from torch_kit.decoder_weights import DecoderConfig
from torch_kit.kernels.thin_product import MOST_LINES, Thin, ThinProducts, thin
from torch_kit.matrix import Matrix

Row = dict[str, Any]
LINES = (1, 8, 16, 32, 64, 128, 256, 288, 320, 384, 448, 512, 1024, 2048)
TYPES = ("bf16", "e4m3")
"""Of matrices."""


def ways(product: Product, lines: int) -> Iterator[Thin]:
    """Those worth a try beside the one that is served."""
    if lines == 1:
        shapes = ((4, 512), (8, 512), (2, 1024), (4, 1024), (8, 1024), (4, 2048), (1, 4096))
        yield from (Thin(columns, chunk, stages=1, dots=False) for columns, chunk in shapes if chunk <= 2 * product.deep)
        yield Thin(4, 1024, stages=3, dots=False)
        yield Thin(8, 512, warps=2, stages=1, dots=False)
    if lines > 16:
        tiles = ((64, 64, 64), (64, 32, 64), (64, 128, 64), (128, 64, 64), (128, 32, 64))
        for (tile, columns, chunk), splits in itertools.product(tiles, (2, 4, 8) if product.plain else (1,)):
            if tile <= triton.next_power_of_2(lines) and product.wide / columns * splits * lines / tile <= 1024:
                yield Thin(columns, chunk, splits, warps=8 if tile * columns > 4096 else 4, stages=3, lines=tile)
        return
    divisions = (1, 2, 4, 8) if product.plain else (1,)
    for (columns, chunk), splits in itertools.product(((16, 256), (32, 128), (32, 256), (64, 128)), divisions):
        # too few programs, or more than is worth adding up
        if 64 <= product.wide / columns * splits <= 1024 and chunk * splits <= product.deep:
            yield Thin(columns, chunk, splits, warps=2 if columns == 16 else 4, stages=4 if chunk == 128 or not product.gated else 3)


def products(
    decoders: dict[str, DecoderConfig], device: torch.device, card: Card, lines: tuple[int, ...], types: Collection[str], *, tried: bool
) -> list[Row]:
    """A row a product and number of lines. `types`: of matrices; e4m3 for the thinker alone. `tried`: other ways, too, which must be
    compiled."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows = []
    for name, config in decoders.items():
        for product in products_of(config):
            makers: list[_Raced | Scaled] = [_Raced(product, device, dtype, tried=tried)] if "bf16" in types else []
            if "e4m3" in types and name == "thinker":
                makers.append(Scaled(product, device, dtype, tried=tried))
            for count in lines if makers else ():
                rows.append({"decoder": name, "product": product.name, "lines": count})
                for maker in makers:
                    rows[-1] |= maker.row(count, card)
                print(rows[-1], flush=True)
    return rows


class _Raced:
    """One product over copies of its matrix, so that none is found in L2."""

    def __init__(self, product: Product, device: torch.device, dtype: torch.dtype, *, tried: bool) -> None:
        self._product, self._device, self._tried = product, device, tried
        nbytes = product.columns * product.deep * dtype.itemsize
        self._copies = min(math.ceil(CACHE_BYTES / nbytes), 64) if device.type == "cuda" else 1
        self._weights = torch.randn((self._copies, product.columns, product.deep), device=device, dtype=dtype).div_(math.sqrt(product.deep))
        self._norm = (1 + 0.1 * torch.randn(product.deep, device=device)).to(dtype)
        self._products = ThinProducts(device)

    def row(self, lines: int, card: Card) -> Row:
        """Microseconds; of the library the bare product, of the thin one with norm, gate or residual sum."""
        product, weights = self._product, self._weights
        source = torch.randn(lines, product.deep, device=self._device).to(weights.dtype)
        out = source.new_empty((lines, product.columns))
        moved = product.columns * product.deep + source.numel() + out.numel()
        floor = Floor(moved * weights.dtype.itemsize, 2 * lines * product.columns * product.deep).ms(card) * 1000
        torchs = self._us(lambda copy: torch.mm(source, weights[copy].t(), out=out))
        found: Row = {"floor us": floor, "torch us": torchs}
        # of large matrices with many lines the library is the one to take
        few = lines <= 16 or (lines <= MOST_LINES and product.deep <= 4096 >= product.wide)
        return found | (self._thin(source) if few else {})

    def _thin(self, source: Tensor) -> Row:
        product, lines = self._product, len(source)
        residual, out = (torch.randn(lines, product.wide, device=source.device).to(source.dtype) for _ in range(2))

        def run(copy: int, how: Thin | None) -> None:
            self._products(
                source,
                Matrix(self._weights[copy]),
                out,
                norm=self._norm if product.normed else None,
                eps=EPS,
                residual=residual if product.plain else None,
                gated=product.gated,
                how=how,
            )

        truth, torchs = self._plain(source, residual, torch.float32), self._plain(source, residual, source.dtype)
        found: Row = {"served": str(thin(lines, product.wide, product.deep, plain=product.plain)), "best us": None}
        found |= {"torch error": largest_error(torchs, truth), "holds": True}
        for how in (None, *(ways(product, lines) if self._tried else ())):
            try:
                run(0, how)
                error = largest_error(out, truth)
                us = self._us(lambda copy, how=how: run(copy, how))  # type: ignore[misc]
            except Exception as why:
                # a way may want more shared memory than there is
                print(f"{product.name}: {how}: {type(why).__name__}", flush=True)
                continue
            holds = error <= max(1.5 * found["torch error"], 1e-5)
            found["holds"] = found["holds"] and holds
            if how is None:
                found |= {"thin us": us, "error": error, "best us": us, "best": "served"}
            elif holds and us is not None and (found["best us"] is None or us < found["best us"]):
                found |= {"best us": us, "best": str(how)}
        return found

    def _plain(self, source: Tensor, residual: Tensor, kind: torch.dtype) -> Tensor:
        product = self._product
        given = source.to(kind)
        if product.normed:
            given = functional.rms_norm(given, (product.deep,), self._norm.to(kind), EPS)
        made = given @ self._weights[0].to(kind).t()
        if product.gated:
            gate, up = made.chunk(2, -1)
            made = functional.silu(gate) * up
        return made + residual.to(kind) if product.plain else made

    def _us(self, call: Callable[[int], object]) -> float | None:
        return copied_us(self._device, call, self._copies)
