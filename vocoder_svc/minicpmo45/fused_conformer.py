"""The conformer of `conformer.py` in eight kernels a block: positions by one product, attention where the keys lie."""

from __future__ import annotations

import torch
from torch import Tensor

from minicpmo45.config import FlowConfig
from vocoder_svc.minicpmo45.attention import Keys
from vocoder_svc.minicpmo45.conformer import BLOCK_EPS, Conformer
from vocoder_svc.minicpmo45.kernels.attention import Distances, attend
from vocoder_svc.minicpmo45.kernels.norm import norm
from vocoder_svc.minicpmo45.kernels.product import product
from vocoder_svc.minicpmo45.layers import Weights


class FusedConformer(Conformer):
    """Same weights, arena and contexts as `Conformer`, whose docstrings hold. Keys must have spans.

    `tf32`: products of fp32 weights in its blocks are made in TF32.
    """

    def __init__(self, weights: Weights, config: FlowConfig, max_frames: int, *, tf32: bool = False) -> None:
        super().__init__(weights, config, max_frames)
        self._tf32 = tf32
        self._blocks = [_joined(block) for block in self._blocks]
        self._up_blocks = [_joined(block) for block in self._up_blocks]

    def _through(self, blocks: list[dict[str, Tensor]], tables: list[Tensor], x: Tensor, keys: Keys, arena: Tensor) -> Tensor:
        spans = keys.spans
        if spans is None:
            raise ValueError("keys: no spans")
        frames, width = x.shape[1], x.shape[2]
        heads, dtype, tf32 = self._config.heads, x.dtype, self._tf32
        h, branch = x.reshape(-1, width).float(), None
        for block, table, held in zip(blocks, tables, arena[: len(blocks)], strict=True):
            y = norm(h, block["norm_mha.weight"], block["norm_mha.bias"], BLOCK_EPS, dtype, branch=branch, kept=h)
            parts = product(y, block["parts.weight"], block["parts.bias"], tf32=tf32)
            with_v = parts[:, 3 * width :].view(-1, heads, width // heads).transpose(0, 1)
            # of all distances that the rows can have, the largest first; padded to a width, prompts seem longer than the longest one is
            most = (table.shape[1] - 1) // 2
            first = max(0, most - (spans.longest + spans.cells - 1))
            near = table[:, first : most + frames]
            distances = Distances(torch.bmm(with_v, near.transpose(1, 2)), most - first)
            y = attend(parts, held[:, None], spans, frames, distances=distances, tf32=tf32)
            branch = product(y, block["self_attn.linear_out.weight"], block["self_attn.linear_out.bias"], tf32=tf32, split=True)
            y = norm(h, block["norm_ff.weight"], block["norm_ff.bias"], BLOCK_EPS, dtype, branch=branch, kept=h)
            inner = product(y, block["feed_forward.w_1.weight"], block["feed_forward.w_1.bias"], activation="silu", tf32=tf32)
            branch = product(inner, block["feed_forward.w_2.weight"], block["feed_forward.w_2.bias"], tf32=tf32, split=True)
        if branch is not None:
            h += branch if branch.dim() == 2 else branch.sum(0)
        return h.to(dtype).view(x.shape)


def _joined(block: Weights) -> dict[str, Tensor]:
    """`parts`: queries with the bias u, keys, values, and queries with the bias v, in one product."""
    names = ("norm_mha", "norm_ff", "self_attn.linear_out", "feed_forward.w_1", "feed_forward.w_2")
    kept = {f"{name}.{part}": block[f"{name}.{part}"] for name in names for part in ("weight", "bias")}
    weight, bias = ({name: block[f"self_attn.linear_{name}.{part}"] for name in "qkv"} for part in ("weight", "bias"))
    with_u, with_v = (bias["q"] + block[f"self_attn.pos_bias_{name}"].flatten() for name in "uv")
    return {
        **kept,
        "parts.weight": torch.cat((weight["q"], weight["k"], weight["v"], weight["q"])),
        "parts.bias": torch.cat((with_u, bias["k"], bias["v"], with_v)),
    }
