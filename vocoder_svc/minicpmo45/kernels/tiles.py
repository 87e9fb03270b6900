"""How each kernel is cut into programs: a small table by shape, as measured on an H200. Launchers take another cut, so that a bench can
try."""

from __future__ import annotations

import msgspec
import triton


class RowTile(msgspec.Struct, frozen=True):
    """Of kernels that work on whole rows."""

    rows: int
    warps: int


class ProductTile(msgspec.Struct, frozen=True):
    """Of a product [T, K] x [K, N]: the part of T and of N that a program makes, and of K that it takes at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 1
    """Programs that share one K; what reads the result adds them up."""


CUBLAS = ProductTile(0, 0, 0, 0, 0)
"""The product is torch's own."""


class AttentionTile(msgspec.Struct, frozen=True):
    """Queries of a program, and keys that it takes at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


def interpreted() -> bool:
    """Kernels run in Triton's interpreter, which takes time for each program and little for what it computes."""
    return bool(triton.knobs.runtime.interpret)


def row_tile(tokens: int) -> RowTile:
    return RowTile(512, 1) if interpreted() else RowTile(1, 4)


def product_tile(tokens: int, outputs: int, inputs: int, element: int, *, tf32: bool, cublas: bool, split: bool) -> ProductTile:
    """`element`: bytes of an operand; `cublas`: torch's own product would do as well; `split`: the result may come in parts."""
    if interpreted():
        return CUBLAS if cublas and not split else ProductTile(512, 256, 128, 1, 1, 2 if split else 1)
    if tokens <= 256:
        return _few(tokens, outputs, inputs, element, split=split)
    depth = 128 // element
    if tokens <= 2048:
        return CUBLAS if cublas and element == 2 else ProductTile(64, 64, depth, 4, 4)
    if element == 2:
        return CUBLAS if cublas else ProductTile(128, 256, depth, 8, 3)
    if tf32:
        return ProductTile(128, 128 if max(outputs, inputs) <= 512 else 256, depth, 8, 3)
    return ProductTile(64, 64, depth, 4, 4) if outputs <= 512 else ProductTile(64, 128, depth, 4, 4)


def _few(tokens: int, outputs: int, inputs: int, element: int, *, split: bool) -> ProductTile:
    """Few tokens: a program waits for memory at each step through K, so that K is shared until all multiprocessors have work."""
    depth = 256 // element
    if outputs > 1024:
        return ProductTile(64, 64, 64, 4, 4) if element == 2 else ProductTile(32, 64, 32, 4, 5)
    if not split:
        return ProductTile(16, 32, depth, 4, 4)
    depth = 128 // element
    return ProductTile(64, 64, depth, 4, 4, parts=max(1, min(8, inputs // depth)))


def attention_tile(pairs: int, frames: int, element: int, *, tf32: bool = False) -> AttentionTile:
    """`pairs`: sequences times heads; `frames`: queries of each."""
    if interpreted():
        return AttentionTile(max(16, triton.next_power_of_2(frames)), 512, 1, 1)
    if pairs < 128:
        # keys are waited for once or twice
        return AttentionTile(16, 512 if element == 2 else 256 if tf32 else 128, 8, 1)
    if element == 2:
        return AttentionTile(64, 64, 4, 3)
    return AttentionTile(64, 32, 4, 3)
