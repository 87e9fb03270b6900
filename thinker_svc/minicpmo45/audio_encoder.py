"""The Whisper encoder over a cache of keys and values, and the projection that makes ten embeddings of a second."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from minicpmo45.config import AudioConfig
from thinker_svc.minicpmo45.encoder_block import BlockNames, Dense, EncoderBlock, Norm, tensor

UNIT_FRAMES = 50
"""Encoder frames of a unit that stay."""
_CONTEXT = 1
"""Encoder frames on either side of a unit that gave context to the convolutions only."""
_NAMES = BlockNames("self_attn_layer_norm", "final_layer_norm", "fc1", "fc2")
_EPS = 1e-5


def place(cached: int, max_positions: int) -> int:
    """Where a unit's frames go in a cache that holds `cached` frames: behind them, or at 0 when they would reach the end of the position
    table.

    The unit counts with its context frames, as in the reference; the released sizes start anew after 1450 frames.
    """
    return 0 if cached + UNIT_FRAMES + 2 * _CONTEXT >= max_positions else cached


class AudioEncoder:
    """Mel features to embeddings of the language model's width. Weights: `apm.*` and `audio_projection_layer.*`.

    Two convolutions (the second halves the rate to 50 a second), learned positions, pre-norm blocks, a final norm; then Linear, ReLU, mean
    over 5 frames, Linear. The mean commutes with the last linear layer, so it is taken before it.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: AudioConfig) -> None:
        self.config = config
        self._conv1 = _flat(Dense.load(weights, "apm.conv1"))
        self._conv2 = _flat(Dense.load(weights, "apm.conv2"))
        self._positions = tensor(weights, "apm.embed_positions.weight")
        self._blocks = [EncoderBlock(weights, f"apm.layers.{layer}", _NAMES, config.heads, _EPS, "none") for layer in range(config.layers)]
        self._norm = Norm.load(weights, "apm.layer_norm", _EPS)
        self._inner = Dense.load(weights, "audio_projection_layer.linear1")
        self._outer = Dense.load(weights, "audio_projection_layer.linear2")

    def cache(self, slots: int) -> Tensor:
        """An empty cache: [layers, slots, 2, heads, max_positions, head_dim], keys before values, in the dtype of the weights."""
        config = self.config
        shape = (config.layers, slots, 2, config.heads, config.max_positions, config.d_model // config.heads)
        return self._positions.new_zeros(shape)

    def unit(self, cache: Tensor, slots: Tensor, cached: Tensor, first: Tensor, mel: Tensor, span: int) -> Tensor:
        """Embeddings of one unit of each row: [rows, 10, hidden]. Its keys and values are written into the cache at `cached`.

        slots, cached: int64 [rows], the frames that count in each slot's cache (`place`). first: bool [rows], units without left context.
        mel: fp32 [rows, 104, mels]. span: cache positions that are read, at least the largest `cached` + 50. Frames see each other and all
        that is cached. What lies behind a row's frames may hold anything.
        """
        own = torch.arange(UNIT_FRAMES, device=cached.device)
        x = self._convolve(mel, first) + self._positions[cached[:, None] + own]
        return self._project(self._attended(x, cache, slots, cached, span))

    def _attended(self, x: Tensor, cache: Tensor, slots: Tensor, cached: Tensor, span: int) -> Tensor:
        """All blocks and the final norm: [rows, 50, d_model]."""
        at = cached[:, None] + torch.arange(UNIT_FRAMES, device=cached.device)
        known = (torch.arange(span, device=cached.device) < cached[:, None] + UNIT_FRAMES)[:, None, None]
        for layer, block in zip(cache, self._blocks, strict=True):
            queries, keys, values = block.project(x)
            layer[slots[:, None], 0, :, at] = keys.transpose(1, 2)
            layer[slots[:, None], 1, :, at] = values.transpose(1, 2)
            # Zeroed, since what is masked must be finite: 0 x NaN is NaN.
            history = torch.where(known[:, :, :, :, None], layer[:, :, :, :span].index_select(0, slots), 0.0)
            x = block.finish(x, F.scaled_dot_product_attention(queries, history[:, 0], history[:, 1], attn_mask=known))
        return self._norm(x)

    def whole(self, mel: Tensor) -> Tensor:
        """Embeddings of a recording of at most 30 s: fp32 [frames, mels] to [floor(ceil(frames / 2) / 5), hidden].

        No cache: frames see their own second and all before it.
        """
        x = self._conv(self._conv(mel[None].to(self._positions.dtype), self._conv1, 1), self._conv2, 2)
        length = x.shape[1]
        x = x + self._positions[:length]
        second = torch.arange(length, device=x.device) // UNIT_FRAMES
        seen = second[None, :] <= second[:, None]
        for block in self._blocks:
            x = block.finish(x, F.scaled_dot_product_attention(*block.project(x), attn_mask=seen))
        pool = self.config.pool
        return self._project(self._norm(x)[:, : length // pool * pool])[0]

    def _convolve(self, mel: Tensor, first: Tensor) -> Tensor:
        """[rows, 104, mels] to the 50 frames [rows, 50, d_model] that stay."""
        # A first unit begins at frame 2: before it both convolutions see the zeros of their padding.
        absent = (torch.arange(mel.shape[1], device=mel.device) < 2 * _CONTEXT) & first[:, None]
        x = torch.where(absent[:, :, None], 0.0, mel).to(self._positions.dtype)
        x = torch.where(absent[:, :, None], 0.0, self._conv(x, self._conv1, 1))
        return self._conv(x, self._conv2, 2)[:, _CONTEXT:-_CONTEXT]

    @staticmethod
    def _conv(x: Tensor, conv: Dense, stride: int) -> Tensor:
        """GELU of a convolution of 3 frames, zero-padded by one on either side, as one matrix product: [rows, length, channels]."""
        return F.gelu(conv(F.pad(x, (0, 0, 1, 1)).unfold(1, 3, stride).flatten(2)))

    def _project(self, x: Tensor) -> Tensor:
        """[rows, length, d_model] to [rows, length / 5, hidden]."""
        return self._outer(_pooled(torch.relu(self._inner(x)), self.config.pool))


def _flat(conv: Dense) -> Dense:
    """A convolution's weight [out, in, width] as a matrix [out, in x width]."""
    return Dense(conv.weight.flatten(1), conv.bias)


def _pooled(x: Tensor, frames: int) -> Tensor:
    """Means over each `frames` of [rows, length, width], length a multiple of it."""
    rows, length, width = x.shape
    return x.view(rows, length // frames, frames, width).mean(2)
