"""Errors of the device that end a process, and those that pass."""

from __future__ import annotations

import pytest
import torch

from torch_kit.faults import device_lost


def test_a_fault_of_the_device_is_seen_behind_what_was_raised_for_it() -> None:
    try:
        try:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        except RuntimeError as fault:
            raise ValueError("the step failed") from fault
    except ValueError as error:
        assert device_lost(error) and device_lost(error.__cause__)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("shapes do not match"),
        ValueError("codes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_pass(error: Exception) -> None:
    assert not device_lost(error)
