"""In which shapes batches come: those of plain torch, and those of fused kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from torch_kit.page_table import Appended
from torch_kit.ragged import BUCKETS, WIDTHS, RaggedBatch, bucket, width
from torch_kit.tiles import Tiling


class Shapes(Protocol):
    """Batches for one kind of decoder. Blank ones are made once; they give a graph its shape."""

    joins: bool
    """They are few enough to have graphs of several steps."""

    def mixed(self, appended: Sequence[Appended]) -> RaggedBatch:
        """Conditions and codes; on the host or the device."""

    def single(self, rows: int, pages: int, *, padded: bool) -> RaggedBatch:
        """Blank, of one token a row, for so many rows and pages of a row. Not `padded`: as small as that if it may be."""

    def replays(self, mixed: RaggedBatch) -> bool:
        """Batches of this shape come often enough for a graph."""

    def mixed_to_prepare(self) -> Iterator[RaggedBatch]:
        """Blank batches of all shapes of `mixed` that replay."""

    def singles_to_prepare(self) -> Iterator[RaggedBatch]:
        """Of all shapes of `single`, padded."""


class PlainShapes:
    """For `Decoder`. How long the longest row is belongs to a shape, so that mixed ones are too many for graphs."""

    joins = False

    def __init__(self, slots: int, pages: int, device: torch.device) -> None:
        """`pages`: most of a session."""
        self._slots, self._pages, self._device = slots, pages, device
        self._blank: dict[tuple[int, int], RaggedBatch] = {}

    def mixed(self, appended: Sequence[Appended]) -> RaggedBatch:
        """See Shapes."""
        return RaggedBatch.of(appended)

    def single(self, rows: int, pages: int, *, padded: bool) -> RaggedBatch:
        """See Shapes."""
        key = (bucket(rows), width(pages)) if padded else (rows, pages)
        if key not in self._blank:
            self._blank[key] = RaggedBatch.blank(*key, gapped=False, device=self._device)
        return self._blank[key]

    def replays(self, mixed: RaggedBatch) -> bool:
        """See Shapes."""
        return False

    def mixed_to_prepare(self) -> Iterator[RaggedBatch]:
        """See Shapes."""
        return iter(())

    def singles_to_prepare(self) -> Iterator[RaggedBatch]:
        """See Shapes."""
        for size in (size for size in reversed(BUCKETS) if size <= bucket(self._slots)):
            for wide in (wide for wide in WIDTHS if wide <= width(self._pages)):
                yield self.single(size, wide, padded=True)


class TiledShapes:
    """For `FusedDecoder`: tokens and tiles name a shape."""

    joins = True

    def __init__(self, slots: int, pages: int, row_tokens: int, device: torch.device) -> None:
        """`pages`: most of a session; `row_tokens`: most tokens of a row of a mixed batch."""
        self._tiling, self._row_tokens, self._device = Tiling(pages, slots), row_tokens, device
        self._blank: dict[int, RaggedBatch] = {}

    def mixed(self, appended: Sequence[Appended]) -> RaggedBatch:
        """See Shapes."""
        # whoever uploads it does not wait for what the device does
        return RaggedBatch.tiled(appended, self._tiling, device=torch.device("cpu"))

    def single(self, rows: int, pages: int, *, padded: bool) -> RaggedBatch:
        """See Shapes."""
        size = bucket(rows)
        if size not in self._blank:
            self._blank[size] = RaggedBatch.blank_tiled(size, size, self._tiling, self._device)
        return self._blank[size]

    def replays(self, mixed: RaggedBatch) -> bool:
        """See Shapes."""
        return mixed.size <= BUCKETS[-1]

    def mixed_to_prepare(self) -> Iterator[RaggedBatch]:
        """See Shapes."""
        slots, tile = self._tiling.rows, self._tiling.tile
        for size in (size for size in reversed(BUCKETS) if size <= bucket(slots * self._row_tokens)):
            # a row's last tile may be short, and so may that of the padding
            most = self._tiling.level(size, min(size, slots + 1 + size // tile))
            for level in (level for level in self._tiling.levels(size) if level <= most):
                yield RaggedBatch.blank_tiled(size, level, self._tiling, self._device)

    def singles_to_prepare(self) -> Iterator[RaggedBatch]:
        """See Shapes."""
        for size in (size for size in reversed(BUCKETS) if size <= bucket(self._tiling.rows)):
            yield self.single(size, self._tiling.pages, padded=True)
