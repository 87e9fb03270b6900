"""A forward in fp64 that is told, for each pair of tokens, whether one sees the other and how far away it appears."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_kit.decoder import DecoderConfig


@torch.no_grad()
def pairwise(model: Any, config: DecoderConfig, inputs: Tensor, distance: Tensor, mask: Tensor) -> Tensor:
    """Final hidden states [n, hidden] of transformers' weights; `distance` and `mask` are [n, n], query by key."""
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    half = config.head_dim // 2
    angles = distance.double()[..., None] * config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones_like(angles), angles)
    states, count, group = inputs.double(), len(inputs), config.heads // config.kv_heads
    for index in range(config.layers):
        layer = {name.removeprefix(f"layers.{index}."): tensor for name, tensor in weights.items() if name.startswith(f"layers.{index}.")}
        normed = _norm(states, layer["input_layernorm.weight"], config.rms_eps)
        query, key, value = (
            (normed @ layer[f"self_attn.{name}_proj.weight"].T).view(count, -1, config.head_dim) for name in ("q", "k", "v")
        )
        if config.qk_norm:
            query = _norm(query, layer["self_attn.q_norm.weight"], config.rms_eps)
            key = _norm(key, layer["self_attn.k_norm.weight"], config.rms_eps)
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        # (R(p) q) . (R(k) key) = Re(q conj(key) e^(i (p - k)))
        pairs = torch.einsum("qhd,khd->qkhd", _complex(query), _complex(key).conj())
        scores = (pairs * turn[:, :, None]).real.sum(-1) * config.head_dim**-0.5
        shares = scores.masked_fill(~mask[..., None], -torch.inf).softmax(1)
        states = states + torch.einsum("qkh,khd->qhd", shares, value).flatten(1) @ layer["self_attn.o_proj.weight"].T
        normed = _norm(states, layer["post_attention_layernorm.weight"], config.rms_eps)
        gate, up = (normed @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        states = states + (gate * gate.sigmoid() * up) @ layer["mlp.down_proj.weight"].T
    return _norm(states, weights["norm.weight"], config.rms_eps)


def _complex(states: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return torch.complex(first.contiguous(), second.contiguous())


def _norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    return states / (states.square().mean(-1, keepdim=True) + eps).sqrt() * weight
