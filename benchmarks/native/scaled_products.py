"""The products of `decoder_products.py` with matrices in e4m3: widened in thin products, and with both sides rounded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from benchmarks.native.card import Card
from benchmarks.native.copies import copied_us
from benchmarks.native.floors import Floor
from benchmarks.native.product import CACHE_BYTES, EPS, Product, largest_error
from torch_kit.fp8 import FP8, widened
from torch_kit.kernels.rounded_product import narrow_lines, rounded_product
from torch_kit.kernels.thin_product import MOST_LINES, Thin, ThinProducts, thin
from torch_kit.matrix import Matrix

WITHIN = 16
"""Up to so many lines the norm is within the product, as in `ThinStep`; beyond it is not, as in `WidenedStep`."""
Row = dict[str, Any]


def ways(product: Product, lines: int) -> Iterator[Thin]:
    """Those worth a try beside the one that is served."""
    if lines == 1:
        for columns, chunk, warps, stages in (
            (8, 1024, 4, 1), (4, 2048, 4, 1), (2, 4096, 4, 1), (1, 4096, 4, 1), (4, 4096, 8, 1), (4, 1024, 4, 3), (4, 2048, 4, 3),
        ):  # fmt: skip
            if chunk <= product.deep:
                yield Thin(columns, chunk, warps=warps, stages=stages, dots=False)
        return
    divisions = (1, 2, 4, 8) if not product.gated and (product.plain or lines > WITHIN) else (1,)
    if lines <= WITHIN:
        for (columns, chunk, warps), splits in itertools.product(((32, 256, 4), (64, 128, 4), (64, 256, 4), (64, 256, 8)), divisions):
            if 64 <= product.wide / columns * splits <= 1024 and chunk * splits <= product.deep:
                yield Thin(columns, chunk, splits, warps=warps, stages=4)
        return
    tile = min(triton.next_power_of_2(lines), MOST_LINES)
    for (columns, chunk, stages), splits in itertools.product(((64, 128, 3), (128, 128, 3), (64, 64, 4), (128, 64, 4)), divisions):
        if 64 <= product.wide / columns * splits <= 1024 and not (product.gated and columns * tile > 8192):
            yield Thin(columns, chunk, splits, warps=4 if columns * tile <= 4096 else 8, stages=stages, lines=tile)


class Scaled:
    """One product over copies of its matrix in e4m3, so that none is found in L2."""

    def __init__(self, product: Product, device: torch.device, dtype: torch.dtype, *, tried: bool) -> None:
        self._product, self._device, self._dtype, self._tried = product, device, dtype, tried
        copies = min(math.ceil(CACHE_BYTES / (product.columns * product.deep)), 64) if device.type == "cuda" else 1
        self._weight = (torch.randn(product.columns, product.deep, device=device) / math.sqrt(product.deep)).to(dtype)
        self._matrices = [Matrix.narrowed(self._weight) for _ in range(copies)]
        self._norm = (1 + 0.1 * torch.randn(product.deep, device=device)).to(dtype)
        self._products = ThinProducts(device)

    def row(self, lines: int, card: Card) -> Row:
        """Microseconds in a graph. Errors are against what was rounded, losses against what was not, in parts of the largest value."""
        product = self._product
        source = torch.randn(lines, product.deep, device=self._device).to(self._dtype)
        moved = product.columns * product.deep + (source.numel() + lines * product.columns) * self._dtype.itemsize
        work = 2 * lines * product.columns * product.deep
        kind = "bf16" if lines <= MOST_LINES else "fp8"
        found: Row = {"e4m3 floor us": Floor(moved, work, kind).ms(card) * 1000}
        if lines <= MOST_LINES:
            found |= self._widened(source)
        return found | self._rounded(source)

    def _widened(self, source: Tensor) -> Row:
        product, lines = self._product, len(source)
        normed = product.normed and lines <= WITHIN
        plain = not normed and not product.gated
        residual, out = (torch.randn(lines, product.wide, device=source.device).to(source.dtype) for _ in range(2))

        def run(copy: int, how: Thin | None) -> None:
            self._products(
                source,
                self._matrices[copy],
                out,
                norm=self._norm if normed else None,
                eps=EPS,
                residual=residual if product.plain and lines <= WITHIN else None,
                gated=product.gated,
                how=how,
            )

        def truth(matrix: Tensor, kind: torch.dtype) -> Tensor:
            given = source.to(kind)
            if normed:
                given = functional.rms_norm(given, (product.deep,), self._norm.to(kind), EPS)
            made = given @ matrix.to(kind).t()
            if product.gated:
                gate, up = made.chunk(2, -1)
                made = functional.silu(gate) * up
            return made + residual.to(kind) if product.plain and lines <= WITHIN else made

        rounded = self._wide()
        exact = truth(rounded, torch.float32)
        torchs = largest_error(truth(rounded.to(source.dtype), source.dtype), exact)
        found: Row = {"widened": str(thin(lines, product.wide, product.deep, plain=plain, scaled=True)), "e4m3 holds": True}
        for how in (None, *(ways(product, lines) if self._tried else ())):
            try:
                run(0, how)
                error = largest_error(out, exact)
                us = self._us(lambda copy, how=how: run(copy, how))  # type: ignore[misc]
            except Exception as why:
                # a way may want more shared memory than there is
                print(f"{product.name}, e4m3: {how}: {type(why).__name__}", flush=True)
                continue
            holds = error <= max(1.5 * torchs, 1e-5)
            found["e4m3 holds"] = found["e4m3 holds"] and holds
            if how is None:
                found |= {"widened us": us, "widened error": error, "widened loss": largest_error(out, truth(self._weight, torch.float32))}
                found |= {"best widened us": us, "best widened": "served"}
            elif holds and us is not None and (found.get("best widened us") is None or us < found["best widened us"]):
                found |= {"best widened us": us, "best widened": str(how)}
        return found

    def _rounded(self, source: Tensor) -> Row:
        """Both manners of summing, and what rounding takes by itself."""
        codes, marks = torch.empty_like(source, dtype=FP8), source.new_empty(len(source), dtype=torch.float32)
        out = source.new_empty((len(source), self._product.columns))
        narrow_lines(source, codes, marks)
        rounded = widened(codes, marks, torch.float32)
        exact, truth = rounded @ self._wide().t(), source.float() @ self._weight.float().t()
        found: Row = {"rounding us": self._us(lambda _: narrow_lines(source, codes, marks))}
        for fast, name in ((False, "rounded"), (True, "rounded, fast sums")):
            try:
                rounded_product(codes, marks, self._matrices[0], out, fast=fast)
                found |= {f"{name} error": largest_error(out, exact), f"{name} loss": largest_error(out, truth)}
                found[f"{name} us"] = self._us(
                    lambda copy, fast=fast: rounded_product(codes, marks, self._matrices[copy], out, fast=fast)  # type: ignore[misc]
                )
            except RuntimeError as why:
                print(f"{self._product.name}, {name}, {len(source)} lines: {str(why).splitlines()[0]}", flush=True)
        return found

    def _wide(self) -> Tensor:
        matrix = self._matrices[0]
        assert matrix.scales is not None
        return widened(matrix.values, matrix.scales, torch.float32)

    def _us(self, call: Callable[[int], object]) -> float | None:
        return copied_us(self._device, call, len(self._matrices))
