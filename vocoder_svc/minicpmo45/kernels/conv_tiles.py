"""How the convolutions of HiFT are cut into programs: a small table by shape, made for an H200. Launchers take another cut, so that a bench
can try."""

from __future__ import annotations

import msgspec
import triton

from vocoder_svc.minicpmo45.kernels.tiles import interpreted

PROGRAMS = 264
"""Two for each multiprocessor."""


class ConvTile(msgspec.Struct, frozen=True):
    """Places in time and output columns of a program, and input channels that it takes at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def group_of(channels: int) -> int:
    """Outputs that one row of a residual convolution's product makes: narrow stages read their operands too often for what they compute."""
    return 2 if channels <= 64 else 1


def conv_tile(rows: int, columns: int, inputs: int, element: int) -> ConvTile:
    """`rows`: of all sessions and blocks; `columns`, `inputs`: of the product; `element`: bytes of an operand."""
    broad = max(16, triton.next_power_of_2(columns))
    depth = min(128 // element, max(16, triton.next_power_of_2(inputs)))
    if interpreted():
        # places beyond the end cost there, too
        return ConvTile(max(512, min(2048, triton.next_power_of_2(rows) // 8)), broad, max(16, triton.next_power_of_2(inputs)), 1, 1)
    for tall, wide, warps, stages in ((128, 128, 8, 3), (64, 128, 4, 4), (64, 64, 4, 4), (32, 64, 4, 5)):
        if wide <= max(64, broad) and triton.cdiv(rows, tall) * triton.cdiv(columns, wide) >= PROGRAMS:
            return ConvTile(tall, min(wide, broad), depth, warps, stages)
    return ConvTile(32, min(32, broad), depth, 4, 5)
