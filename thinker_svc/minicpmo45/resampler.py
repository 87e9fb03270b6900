"""The resampler: 64 learned queries read the states of an image of any size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from minicpmo45.config import VisionConfig
from thinker_svc.minicpmo45.encoder_block import Dense, Norm, tensor
from thinker_svc.minicpmo45.vision_encoder import PatchBatch

_EPS = 1e-6


def sinusoids(longest: int, width: int) -> Tensor:
    """fp32 [longest, width]: sines, then cosines, of position x 10000^(-2 i / width), i below width / 2."""
    rates = 10_000.0 ** -(torch.arange(width // 2, dtype=torch.float32) / (width / 2))
    angles = torch.arange(longest, dtype=torch.float32)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), 1)


class Resampler:
    """States of the vision encoder to embeddings of the language model. Weights: `resampler.*`.

    Keys are the normed projected states plus their place (half of the width for the column, half for the row), values are without place;
    one attention of `resampler_heads` heads; a norm; then x @ proj.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: VisionConfig, longest: int) -> None:
        query = tensor(weights, "resampler.query")
        self._heads = config.resampler_heads
        self._project = Dense.load(weights, "resampler.kv_proj")
        self._norm = Norm.load(weights, "resampler.ln_kv", _EPS)
        self._post = Norm.load(weights, "resampler.ln_post", _EPS)
        joined = tensor(weights, "resampler.attn.in_proj_weight"), tensor(weights, "resampler.attn.in_proj_bias")
        queries, self._keys, self._values = (Dense(*parts) for parts in zip(*(each.chunk(3) for each in joined), strict=True))
        # The queries never change, so they are normed and projected once.
        self._queries = self._split(queries(Norm.load(weights, "resampler.ln_q", _EPS)(query))[None])
        self._out = Dense.load(weights, "resampler.attn.out_proj")
        self._proj = tensor(weights, "resampler.proj")
        self._sinusoids = sinusoids(longest, query.shape[1] // 2).to(query)

    def __call__(self, batch: PatchBatch, states: Tensor) -> Tensor:
        """states: [images, longest, vision width], finite at padding. Returns [images, queries, hidden]."""
        x = self._norm(self._project(states))
        row, column = batch.places()
        place = torch.cat((self._sinusoids[column], self._sinusoids[row]), 2)
        keys, values = self._split(self._keys(x + place)), self._split(self._values(x))
        queries = self._queries.expand(len(x), -1, -1, -1)
        read = F.scaled_dot_product_attention(queries, keys, values, attn_mask=batch.seen)
        return self._post(self._out(read.transpose(1, 2).flatten(2))) @ self._proj

    def _split(self, x: Tensor) -> Tensor:
        """[rows, length, width] to [rows, heads, length, width / heads]."""
        rows, length, width = x.shape
        return x.reshape(rows, length, self._heads, width // self._heads).transpose(1, 2)
