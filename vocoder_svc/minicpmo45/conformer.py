"""The upsampling conformer: speech codes at 25 a second to the mean `mu` of 50 mel frames a second, chunk by chunk."""

from __future__ import annotations

import math
from copy import copy
from typing import Self

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import FlowConfig
from vocoder_svc.minicpmo45.arena import Arena
from vocoder_svc.minicpmo45.attention import Keys, attend_relative, load, store
from vocoder_svc.minicpmo45.layers import Weights, conv, layer_norm, linear, newest, section, split_last, within

BLOCK_EPS = 1e-12
EMBED_EPS = 1e-5
UP_CONTEXT = 4
LOOKAHEAD_CONTEXT = 2


class ConformerContext(msgspec.Struct, frozen=True):
    """What the two convolutions remember of a row: zeros before the first chunk."""

    lookahead: Tensor
    """[B, width, 2]: newest frames between the two convolutions of the look-ahead layer."""
    upsample: Tensor
    """[B, width, 4]: newest doubled frames before the upsampling convolution."""


class Conformer:
    """embed, look-ahead, `blocks` blocks, times 2, `up_blocks` blocks, norm, projection to mels.

    No batch shape depends on a row's phase: a row says how many codes are new (`fresh`) and whether look-ahead follows them (`final`: none,
    zeros).
    """

    def __init__(self, weights: Weights, config: FlowConfig, max_frames: int) -> None:
        self._config = config
        self._weights = {name: weights[name] for name in weights if name.startswith(("input_embedding", "encoder"))}
        self._blocks = [section(weights, f"encoder.encoders.{n}.") for n in range(config.blocks)]
        self._up_blocks = [section(weights, f"encoder.up_encoders.{n}.") for n in range(config.up_blocks)]
        device = weights["input_embedding.weight"].device
        self._tables = [self._table(block, max_frames // 2 + 1, device) for block in self._blocks]
        self._up_tables = [self._table(block, max_frames + 1, device) for block in self._up_blocks]

    def __call__(
        self, codes: Tensor, fresh: Tensor, final: Tensor, context: ConformerContext, token: Keys, mel: Keys, arena: Arena
    ) -> tuple[Tensor, ConformerContext]:
        """codes int64 [B, N + lookahead], fresh int64 [B] up to N, final bool [B], to (mu [B, 2 N, mels], the context after these codes).

        Of `mu` row b has 2 * fresh[b] frames. New keys are in the arena when it returns, the context is the caller's to keep.
        """
        w = self._weights
        ahead = self._config.lookahead
        known = torch.where(final, fresh, fresh + ahead)
        x = self._embed("encoder.embed", functional.embedding(codes.clamp(min=0), w["input_embedding.weight"]))
        x = torch.where(within(known, codes.shape[1])[:, :, None], x, 0.0)
        inner = functional.leaky_relu(conv(w, "encoder.pre_lookahead_layer.conv1", x.transpose(1, 2)))
        x = x[:, : inner.shape[2]] + conv(w, "encoder.pre_lookahead_layer.conv2", torch.cat((context.lookahead, inner), 2)).transpose(1, 2)
        x = self._through(self._blocks, self._tables, x, token, arena.token)
        doubled = x.transpose(1, 2).repeat_interleave(2, 2)
        after = ConformerContext(newest(context.lookahead, inner, fresh), newest(context.upsample, doubled, 2 * fresh))
        x = self._embed("encoder.up_embed", conv(w, "encoder.up_layer.conv", torch.cat((context.upsample, doubled), 2)).transpose(1, 2))
        x = self._through(self._up_blocks, self._up_tables, x, mel, arena.mel)
        return linear(w, "encoder_proj", layer_norm(w, "encoder.after_norm", x, EMBED_EPS)), after

    def start(self, rows: int) -> ConformerContext:
        """The context before anything was said."""
        like = self._weights["input_embedding.weight"]
        width = self._config.hidden_size
        return ConformerContext(like.new_zeros(rows, width, LOOKAHEAD_CONTEXT), like.new_zeros(rows, width, UP_CONTEXT))

    def excerpt(self, blocks: int) -> Self:
        """Itself with so many blocks of each rate at most."""
        short = copy(self)
        short._blocks, short._up_blocks = self._blocks[:blocks], self._up_blocks[:blocks]
        short._tables, short._up_tables = self._tables[:blocks], self._up_tables[:blocks]
        return short

    def _embed(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(self._weights, f"{name}.out.1", linear(self._weights, f"{name}.out.0", x), EMBED_EPS) * math.sqrt(
            self._config.hidden_size
        )

    def _through(self, blocks: list[dict[str, Tensor]], tables: list[Tensor], x: Tensor, keys: Keys, arena: Tensor) -> Tensor:
        """x [B, M, width] through all blocks of one rate; arena [blocks, K/V, heads, F, dim]."""
        for index, block in enumerate(blocks):
            x = self._block(block, tables[index], x, keys, arena[index])
        return x

    def _block(self, block: Weights, table: Tensor, x: Tensor, keys: Keys, arena: Tensor) -> Tensor:
        x = x + self._attention(block, table, layer_norm(block, "norm_mha", x, BLOCK_EPS), keys, arena)
        inner = functional.silu(linear(block, "feed_forward.w_1", layer_norm(block, "norm_ff", x, BLOCK_EPS)))
        return x + linear(block, "feed_forward.w_2", inner)

    def _attention(self, block: Weights, table: Tensor, x: Tensor, keys: Keys, arena: Tensor) -> Tensor:
        heads = self._config.heads
        query, key, value = (split_last(linear(block, f"self_attn.linear_{name}", x), heads).transpose(1, 2) for name in "qkv")
        store(arena, keys, key, value)
        key, value = load(arena, keys)
        bias_u, bias_v = block["self_attn.pos_bias_u"][:, None], block["self_attn.pos_bias_v"][:, None]
        out = attend_relative(query + bias_u, query + bias_v, key, value, table, keys)
        return linear(block, "self_attn.linear_out", out.transpose(1, 2).flatten(2))

    def _table(self, block: Weights, length: int, device: torch.device) -> Tensor:
        """[heads, 2 * length - 1, dim]: linear_pos of the sinusoids of length - 1 down to 1 - length, computed once."""
        weight = block["self_attn.linear_pos.weight"]
        width = weight.shape[1]
        distance = torch.arange(length - 1, -length, -1, dtype=torch.float32, device=device)[:, None]
        rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32, device=device) * -(math.log(10_000.0) / width))
        waves = torch.stack((torch.sin(distance * rate), torch.cos(distance * rate)), 2).flatten(1).to(weight.dtype)
        return split_last(waves @ weight.T, self._config.heads).transpose(0, 1).contiguous()
