"""The DiT: speed of the flow at one Euler step, with and without guidance at once, streaming through its attention and convolutions."""

from __future__ import annotations

import math
from copy import copy
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import FlowConfig
from vocoder_svc.minicpmo45.arena import Arena
from vocoder_svc.minicpmo45.attention import Keys, attend, load, store
from vocoder_svc.minicpmo45.layers import Weights, layer_norm, linear, newest, section, split_last

NORM_EPS = 1e-6
QK_EPS = 1e-5
CONV_EPS = 1e-5
CONV_CONTEXT = 2
TIME_CHANNELS = 256
TIME_SCALE = 1000.0

ESTIMATOR = "decoder.estimator."


class Dit:
    """Attention, convolution, MLP, each behind a modulated norm and a gate. There are no positions: the order of keys does not matter.

    What the norms are modulated by depends on the time alone and is computed for the `times` at load. Rows are [B, 2, ...]: 0 guided by mu,
    speaker and prompt, 1 by nothing.
    """

    def __init__(self, weights: Weights, config: FlowConfig, times: Tensor) -> None:
        self._config = config
        own = section(weights, ESTIMATOR)
        self._blocks = [section(own, f"blocks.{n}.") for n in range(config.dit_depth)]
        self._final = section(own, "final_layer.")
        self._input, self._input_bias = own["in_proj.weight"], own["in_proj.bias"]
        self._modulation, self._final_modulation = modulations(own, config.dit_depth, times.to(self._input))

    def guide(self, mu: Tensor, speaker: Tensor, prompt: Tensor | None) -> Tensor:
        """The part of in_proj that holds for all steps: mu [B, M, mels], speaker [B, mels], prompt mels [B, M, mels] or None, to [B, 2, M,
        width]."""
        mels = mu.shape[2]
        _, of_mu, of_speaker, of_prompt = torch.split(self._input, mels, 1)
        guided = functional.linear(mu, of_mu) + functional.linear(speaker, of_speaker)[:, None]
        if prompt is not None:
            guided = guided + functional.linear(prompt, of_prompt)
        return torch.stack((guided, torch.zeros_like(guided)), 1) + self._input_bias

    def __call__(
        self, step: int, x: Tensor, guide: Tensor, fresh: Tensor, context: Tensor, keys: Keys, arena: Arena
    ) -> tuple[Tensor, Tensor]:
        """x fp32 [B, M, mels], fresh int64 [B] frames of it, context [depth, B, 2, 2 * width, 2], to (speed [B, 2, M, mels], the context
        after it)."""
        h = functional.linear(x.to(guide), self._input[:, : x.shape[2]])[:, None] + guide
        after = []
        for index, block in enumerate(self._blocks):
            shift = self._modulation[step, index]
            h = h + shift[2] * self._attention(block, _modulate(h, shift[0], shift[1]), keys, arena.dit[step, index])
            convolved, memory = self._convolution(block, _modulate(h, shift[6], shift[7]), fresh, context[index])
            h = h + shift[8] * convolved
            after.append(memory)
            inner = functional.gelu(linear(block, "mlp.fc1", _modulate(h, shift[3], shift[4])), approximate="tanh")
            h = h + shift[5] * linear(block, "mlp.fc2", inner)
        shift, scale = self._final_modulation[step]
        return linear(self._final, "linear", _modulate(h, shift, scale)), torch.stack(after)

    def advance(self, x: Tensor, speed: Tensor, by: float) -> Tensor:
        """x fp32 [B, M, mels] moved by so much time, at a speed beyond the guided one, away from the other (arXiv 2207.12598, eq. 6)."""
        strength = self._config.cfg_rate
        guided, free = speed.float().unbind(1)
        return x + by * ((1 + strength) * guided - strength * free)

    def start(self, rows: int, steps: int) -> Tensor:
        """[steps, depth, rows, 2, 2 * width, 2]: what the convolutions remember before anything was said."""
        return self._input.new_zeros(steps, self._config.dit_depth, rows, 2, 2 * self._config.dit_hidden, CONV_CONTEXT)

    def excerpt(self, blocks: int) -> Self:
        """Itself with so many blocks at most."""
        short = copy(self)
        short._blocks = self._blocks[:blocks]
        return short

    def _attention(self, block: Weights, x: Tensor, keys: Keys, arena: Tensor) -> Tensor:
        heads = self._config.dit_heads
        query, key, value = (split_last(linear(block, f"attn.to_{name}", x), heads).transpose(2, 3) for name in "qkv")
        query, key = layer_norm(block, "attn.q_norm", query, QK_EPS), layer_norm(block, "attn.k_norm", key, QK_EPS)
        store(arena, keys, key, value)
        out = attend(query, *load(arena, keys), keys)
        return linear(block, "attn.proj", out.transpose(2, 3).flatten(3))

    def _convolution(self, block: Weights, x: Tensor, fresh: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Two causal convolutions of width 3; `context` [B, 2, 2 * width, 2] holds the two newest frames before each."""
        width = x.shape[3]
        lengths = fresh.repeat_interleave(2)
        before, between = (part.flatten(0, 1) for part in torch.split(context, width, 2))
        first = x.flatten(0, 1).transpose(1, 2)
        inner = functional.conv1d(torch.cat((before, first), 2), block["conv.block.1.weight"], block["conv.block.1.bias"])
        inner = functional.mish(layer_norm(block, "conv.block.3", inner.transpose(1, 2), CONV_EPS)).transpose(1, 2)
        out = functional.conv1d(torch.cat((between, inner), 2), block["conv.block.6.weight"], block["conv.block.6.bias"])
        memory = torch.cat((newest(before, first, lengths), newest(between, inner, lengths)), 1)
        return out.transpose(1, 2).reshape(x.shape), memory.reshape(context.shape)


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift


def modulations(weights: Weights, depth: int, times: Tensor) -> tuple[Tensor, Tensor]:
    """([steps, depth, 9, width]: shift, scale and gate of attention, MLP and convolution; [steps, 2, width]: shift and scale of the end),
    in the dtype of `times`."""
    blocks = [f"blocks.{n}.adaLN_modulation.1" for n in range(depth)]
    names = ("t_embedder.mlp.0", "t_embedder.mlp.2", *blocks, "final_layer.adaLN_modulation.1")
    own = {f"{name}.{part}": weights[f"{name}.{part}"].to(times) for name in names for part in ("weight", "bias")}
    time = functional.silu(_time_embedding(own, times))
    return torch.stack([split_last(linear(own, name, time), 9) for name in blocks], 1), split_last(linear(own, names[-1], time), 2)


def _time_embedding(weights: Weights, times: Tensor) -> Tensor:
    """[steps, width]: cosines and sines of 1000 t at 128 rates, through a two-layer MLP."""
    half = TIME_CHANNELS // 2
    rates = torch.exp(-math.log(10_000.0) * torch.arange(half, device=times.device, dtype=torch.float32) / half).to(times)
    angles = (times * TIME_SCALE)[:, None] * rates
    return linear(
        weights, "t_embedder.mlp.2", functional.silu(linear(weights, "t_embedder.mlp.0", torch.cat((angles.cos(), angles.sin()), 1)))
    )
