"""Where Triton's kernels are tested: on a GPU, else in Triton's interpreter, which must be chosen before a kernel is read."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from tests.support.interpreter import mend_interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
mend_interpreter()

TOLERANCE = 1e-5


def randn(*shape: int, seed: int = 0) -> Tensor:
    """fp32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def near(found: Tensor, truth: Tensor) -> bool:
    """Equal to 1e-5 of values of order 1; no NaN."""
    return bool((found - truth).abs().max() < TOLERANCE * max(1.0, float(truth.abs().max())))
