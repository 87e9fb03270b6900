"""The paged KV cache: one allocation, pages of 64 tokens, page 0 the sink of padded rows."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_kit.fp8 import FP8, narrowed

SINK = 0
"""The page that padding writes to and nothing reads."""
PAGE = 64


class PoolExhausted(MemoryError):
    """Fewer pages are free than were asked for. Nothing changed."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"kv pages: {wanted} wanted, {free} free")
        self.wanted = wanted
        self.free = free


class PagePool:
    """Keys and values of all sessions of a decoder, as `storage` [layers, pages, 2, kv_heads, page, head_dim].

    In float8_e4m3fn each vector has an fp32 scale beside it, in `scales` [layers, pages, 2, kv_heads, page]; else that is None.
    Sessions reserve their maximum before they begin (`reserve`), so that no append fails for want of pages. The pages themselves are handed
    out one by one. With `poison`, pages that nobody holds are NaN.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        pages: int,
        page: int = PAGE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> None:
        for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim), ("pages", pages - 1), ("page", page)):
            if value < 1:
                raise ValueError(f"{name}: too small")
        self.layers, self.kv_heads, self.head_dim = layers, kv_heads, head_dim
        self.pages, self.page = pages, page
        self.storage = torch.zeros((layers, pages, 2, kv_heads, page, head_dim), dtype=dtype, device=device)
        self.scales = torch.zeros(self.storage.shape[:-1], device=device) if dtype == FP8 else None
        self._poison = poison
        if poison:
            self.spoil(list(range(1, pages)))
        self._stock = list(range(pages - 1, SINK, -1))
        self._reserved = 0

    @property
    def device(self) -> torch.device:
        """Where the pages are."""
        return self.storage.device

    @property
    def dtype(self) -> torch.dtype:
        """Element type of keys and values."""
        return self.storage.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, scales included."""
        scale = 0 if self.scales is None else self.scales.element_size()
        return self.layers * 2 * self.kv_heads * self.page * (self.head_dim * self.storage.element_size() + scale)

    @property
    def bytes(self) -> int:
        """Bytes of the whole allocation, the sink included."""
        return self.pages * self.page_bytes

    @property
    def free(self) -> int:
        """Pages that can still be reserved."""
        return self.pages - 1 - self._reserved

    @property
    def held(self) -> int:
        """Pages handed out."""
        return self.pages - 1 - len(self._stock)

    def layer(self, index: int) -> Tensor:
        """Keys and values of a layer, a view [pages, 2, kv_heads, page, head_dim] with its own base pointer."""
        return self.storage[index]

    def scale(self, index: int) -> Tensor | None:
        """Scales of a layer's vectors, a view [pages, 2, kv_heads, page]; None: they have none."""
        return None if self.scales is None else self.scales[index]

    def write(self, index: int, pages: Tensor, offsets: Tensor, vectors: Tensor) -> None:
        """Keys and values [N, 2, kv_heads, head_dim] of a layer go to `offsets` [N] of `pages` [N], in the dtype of the pool."""
        scales = self.scale(index)
        if scales is not None:
            vectors, scales[pages, :, :, offsets] = narrowed(vectors)
        self.storage[index][pages, :, :, offsets] = vectors.to(self.dtype)

    def spoil(self, pages: list[int]) -> None:
        """Fills pages with NaN: whoever reads them shall be found out."""
        self.storage[:, pages] = torch.nan
        if self.scales is not None:
            self.scales[:, pages] = torch.nan

    def reserve(self, pages: int) -> None:
        """Sets pages aside. Raises PoolExhausted."""
        if pages > self.free:
            raise PoolExhausted(pages, self.free)
        self._reserved += pages

    def unreserve(self, pages: int) -> None:
        """Gives reserved pages up; they must have been put back."""
        self._reserved -= pages

    def take(self) -> int:
        """One page, under somebody's reservation."""
        return self._stock.pop()

    def put(self, pages: list[int]) -> None:
        """Pages that nobody reads any more."""
        if self._poison and pages:
            self.spoil(pages)
        self._stock.extend(pages)


def pages_for(tokens: int, page: int = PAGE, *, regions: int = 1) -> int:
    """Pages that hold `tokens` in the worst case: each region may begin in the middle of a page and end in the middle of another."""
    return -(-tokens // page) + regions
