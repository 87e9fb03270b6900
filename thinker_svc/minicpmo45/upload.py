"""Host memory from which a device is fed without anybody waiting."""

from __future__ import annotations

import torch
from torch import Tensor


def staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Unwritten host memory, page-locked where `device` is CUDA, so that `to(device, non_blocking=True)` returns at once.

    It may be dropped then: torch gives page-locked memory out again only when the copy is done.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
