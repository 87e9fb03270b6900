"""How each kernel is cut into programs: a small table by shape, made for an H200. Launchers take another cut, so that a bench can try."""

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


class AttentionTile(msgspec.Struct, frozen=True):
    """Queries of a program, and keys that it takes at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


class SnakeTile(msgspec.Struct, frozen=True):
    """Channels of a program, and samples of each."""

    rows: int
    columns: int
    warps: int


def interpreted() -> bool:
    """Kernels run in Triton's interpreter, which takes time for each program and not for what it computes."""
    return bool(triton.knobs.runtime.interpret)


def row_tile(tokens: int) -> RowTile:
    if interpreted():
        return RowTile(512, 1)
    return RowTile(1, 4) if tokens <= 1024 else RowTile(4, 4)


def product_tile(tokens: int, outputs: int, element: int) -> ProductTile:
    """`element`: bytes of an operand."""
    if interpreted():
        return ProductTile(512, 256, 128, 1, 1)
    depth = 128 // element
    if tokens <= 256:
        return ProductTile(32, 32 if outputs <= 1024 else 64, depth, 4, 5)
    if tokens <= 2048:
        return ProductTile(64, 64, depth, 4, 4)
    return ProductTile(128, 128, depth, 8, 3 if element == 4 else 4)


def attention_tile(pairs: int, frames: int, element: int) -> AttentionTile:
    """`pairs`: sequences times heads; `frames`: queries of each."""
    if interpreted():
        return AttentionTile(max(16, triton.next_power_of_2(frames)), 512, 1, 1)
    if pairs < 128:
        return AttentionTile(16, 64, 4, 3)
    return AttentionTile(64, 64 if element == 2 else 32, 4, 2)


def snake_tile(samples: int) -> SnakeTile:
    if interpreted():
        return SnakeTile(64, 1024, 1)
    return SnakeTile(1, 1024, 4) if samples > 1024 else SnakeTile(2, 512, 4)
