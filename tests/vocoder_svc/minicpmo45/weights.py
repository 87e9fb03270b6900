"""Random weights of the tiny networks, made by name from NumPy's seeded generator: the same here and where the fixtures were made."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from minicpmo45.config import FlowConfig, HiftConfig, tiny
from minicpmo45.layout import flow_layout, hift_layout
from minicpmo45.token2wav import fold_weight_norm

FLOW = tiny().flow
HIFT = tiny().hift
CAUSAL = HiftConfig(channels=32, f0_channels=32, causal=True)


def drawn(name: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """fp32, spread so that activations stay near 1 and every tensor matters."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")
    values = np.random.default_rng(key).standard_normal(shape).astype(np.float32)
    mean, std = _spread(name, shape)
    return torch.from_numpy(mean + std * values)


def flow_weights(config: FlowConfig = FLOW) -> dict[str, Tensor]:
    """`flow.pt` as stored."""
    return {name: drawn(name, spec.shape) for name, spec in flow_layout(config).items()}


def hift_stored(config: HiftConfig = HIFT) -> dict[str, Tensor]:
    """`hift.pt` as stored, without the prefix."""
    return {name: drawn(name, spec.shape) for name, spec in hift_layout(config).items()}


def hift_weights(config: HiftConfig = HIFT) -> dict[str, Tensor]:
    """With weight norm folded."""
    return fold_weight_norm(hift_stored(config))


def _spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    leaf = name.rpartition(".")[2]
    inputs = max(1, math.prod(shape[1:]))
    if name.startswith("f0_predictor.classifier"):
        return (0.0, 150.0 / math.sqrt(inputs)) if leaf == "weight" else (120.0, 1.0)
    if leaf == "original0":
        return (0.4, 0.04) if "resblocks." in name else (1.0, 0.1)
    if leaf == "original1":
        return 0.0, 0.3
    if leaf == "alpha" or (leaf == "weight" and len(shape) == 1):
        return 1.0, 0.1
    if leaf == "bias":
        return 0.0, 0.1
    if "adaLN_modulation" in name:
        return 0.0, 0.5 / math.sqrt(inputs)
    return 0.0, 1.0 / math.sqrt(inputs)
