"""The encoders' kernels, one by one, beside the same in torch and the least that must be read and computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.native.decoder_cases import Case
from benchmarks.native.floors import Floor
from minicpmo45.config import AudioConfig, VisionConfig
from thinker_svc.minicpmo45.audio_encoder import UNIT_FRAMES
from torch_kit.kernels.layer_norm import residual_layer_norm
from torch_kit.kernels.slot_attention import Launch, SlotAttention, launch

CACHE_BYTES = 400e6
"""What the copies of a cache take at least: several times the L2."""
BACKENDS = ("flash", "cudnn", "efficient")
EPS = 1e-5


def hearing(config: AudioConfig, sessions: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Of a unit of so many sessions, caches of all ages."""
    yield _slots(config, sessions, dtype, device)
    yield _norm("residual, norm of frames", sessions * UNIT_FRAMES, config.d_model, dtype, device)


def seeing(config: VisionConfig, images: int, patches: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Of so many images side by side, none padded."""
    yield _norm("residual, norm of patches", images * patches, config.hidden_size, dtype, device)
    yield _images(config, images, patches, dtype, device)
    if device.type == "cuda":
        yield _gelu(config, images * patches, dtype, device)


def _slots(config: AudioConfig, sessions: int, dtype: torch.dtype, device: torch.device) -> Case:
    heads, positions, width = config.heads, config.max_positions, config.d_model
    head_dim, span = width // heads, positions - UNIT_FRAMES
    ages = [row * 350 % span // UNIT_FRAMES * UNIT_FRAMES for row in range(1, sessions + 1)]
    element, keys = dtype.itemsize, 2 * width * (sum(ages) + sessions * UNIT_FRAMES)
    copies = min(max(math.ceil(CACHE_BYTES / (keys * element)), 1), 24) if device.type == "cuda" else 1
    cache = torch.randn((copies, sessions, 2, heads, positions, head_dim), dtype=dtype, device=device)
    joined = torch.randn((sessions * UNIT_FRAMES, 3 * width), device=device).to(dtype)
    slots, cached = torch.arange(sessions, device=device), torch.tensor(ages, device=device)
    known = (torch.arange(positions, device=device) < cached[:, None] + UNIT_FRAMES)[:, None, None]
    at = cached[:, None] + torch.arange(UNIT_FRAMES, device=device)

    def fused(copy: int, how: Launch | None) -> Tensor:
        return SlotAttention(sessions, UNIT_FRAMES, heads, head_dim, device, how)(joined, cache[copy], slots, cached)

    def plain(copy: int, kind: torch.dtype) -> Tensor:
        # the same writes as the kernel's, so that they may go into the same cache
        layer = cache[copy] if kind == dtype else cache[copy].to(kind)
        query, key, value = joined.to(kind).view(sessions, UNIT_FRAMES, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        layer[slots[:, None], 0, :, at] = key.transpose(1, 2)
        layer[slots[:, None], 1, :, at] = value.transpose(1, 2)
        history = torch.where(known[:, :, :, :, None], layer.index_select(0, slots), 0.0)
        read = functional.scaled_dot_product_attention(query, history[:, 0], history[:, 1], attn_mask=known)
        return read.transpose(1, 2).reshape(len(joined), width)

    served = launch(sessions * heads).splits
    ways = [
        Launch(splits, block, warps, stages)
        for splits in sorted({max(served // 2, 1), served, served * 2})
        for block in (64, 128)
        for warps, stages in ((4, 2), (4, 3), (8, 2), (8, 3))
    ]
    floor = Floor((keys + joined.numel() + joined.numel() // 3) * element, 2.0 * keys * UNIT_FRAMES)
    return Case("slot attention", fused, plain, floor, copies, ways)


def _norm(name: str, lines: int, width: int, dtype: torch.dtype, device: torch.device) -> Case:
    # nothing is added, so that the sum does not grow with every run; the work is the same
    residual = torch.randn((lines, width), device=device).to(dtype)
    states, out = torch.zeros_like(residual), torch.empty_like(residual)
    weight, bias = (torch.randn(width, device=device).to(dtype) for _ in range(2))

    def fused(_: int, lines: Any) -> Tensor:
        residual_layer_norm(states, residual, weight, bias, out, EPS, lines=lines or 0)
        return out

    def plain(_: int, kind: torch.dtype) -> Tensor:
        return functional.layer_norm(states.to(kind) + residual.to(kind), (width,), weight.to(kind), bias.to(kind), EPS)

    return Case(name, fused, plain, Floor(4 * lines * width * dtype.itemsize, 0), ways=(1, 2, 4, 8))


def _images(config: VisionConfig, images: int, patches: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Torch's attention without a mask, by its choice of kernel and by each; beside it, the masked one."""
    heads, width = config.heads, config.hidden_size
    joined = torch.randn((images, patches, 3, heads, width // heads), device=device).to(dtype)
    seen = torch.ones((images, 1, 1, patches), dtype=torch.bool, device=device)

    def attended(kind: torch.dtype, mask: Tensor | None) -> Tensor:
        query, key, value = joined.to(kind).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).reshape(-1, width)

    def fused(_: int, backend: str | None) -> Tensor:
        chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
        with nullcontext() if backend is None else sdpa_kernel(chosen[backend]):
            return attended(dtype, None)

    floor = Floor(4 * joined.numel() // 3 * dtype.itemsize, 4.0 * images * patches**2 * width)
    return Case("attention of patches, no mask", fused, lambda _, kind: attended(kind, seen), floor, ways=BACKENDS)


def _gelu(config: VisionConfig, lines: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The product that widens, with GELU (tanh) at its end."""
    width, wide = config.hidden_size, config.intermediate_size
    x = torch.randn((lines, width), device=device).to(dtype)
    weight, bias = (torch.randn((wide, width), device=device) / math.sqrt(width)).to(dtype), torch.randn(wide, device=device).to(dtype)

    def fused(_: int, __: Any) -> Tensor:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)

    def plain(_: int, kind: torch.dtype) -> Tensor:
        return functional.gelu(functional.linear(x.to(kind), weight.to(kind), bias.to(kind)), approximate="tanh")

    return Case("up, gelu", fused, plain, Floor((lines * (width + wide) + wide * width) * dtype.itemsize, 2.0 * lines * width * wide))
