"""Which errors leave a process without its device."""

from __future__ import annotations

import torch

_PASSING = ("out of memory",)


def device_lost(error: BaseException | None) -> bool:
    """True for an error after which every later call of this process on its device fails, too: an illegal access, a failed launch, an
    uncorrectable memory error, a fault of another client under MPS. Causes are looked at; want of memory passes."""
    while error is not None:
        if isinstance(error, torch.AcceleratorError) and not any(each in str(error) for each in _PASSING):
            return True
        error = error.__cause__ or error.__context__
    return False
