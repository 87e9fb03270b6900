"""The DiT of `dit.py` in eleven kernels a block: the residual sum is fp32, norms, gates, contexts and attention are fused."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import FlowConfig
from vocoder_svc.minicpmo45.arena import Arena
from vocoder_svc.minicpmo45.attention import Keys
from vocoder_svc.minicpmo45.dit import CONV_EPS, ESTIMATOR, NORM_EPS, QK_EPS, Dit, modulations
from vocoder_svc.minicpmo45.kernels.attention import HeadNorms, attend
from vocoder_svc.minicpmo45.kernels.euler import euler
from vocoder_svc.minicpmo45.kernels.norm import norm
from vocoder_svc.minicpmo45.kernels.product import product
from vocoder_svc.minicpmo45.kernels.unfold import Memory, joined_mish, joined_norm, unfolded_weight
from vocoder_svc.minicpmo45.layers import Weights, section


class FusedDit(Dit):
    """Same weights, arena and contexts as `Dit`, whose docstrings hold. Keys must have spans. What depends on the time alone is fp32.

    `tf32`: products of fp32 weights are made in TF32.
    """

    def __init__(self, weights: Weights, config: FlowConfig, times: Tensor, *, tf32: bool = False) -> None:
        super().__init__(weights, config, times)
        self._tf32 = tf32
        self._blocks = [_joined(block) for block in self._blocks]
        # the frames in progress are fp32, their few channels cost nothing
        self._mels_in = self._input[:, : config.mels].float().contiguous()
        blocks, final = modulations(section(weights, ESTIMATOR), config.dit_depth, times.float())
        blocks[:, :, 1::3] += 1
        final[:, 1] += 1
        self._modulation, self._final_modulation = blocks, final

    def __call__(
        self, step: int, x: Tensor, guide: Tensor, fresh: Tensor, context: Tensor, keys: Keys, arena: Arena
    ) -> tuple[Tensor, Tensor]:
        """Raises ValueError for keys without spans."""
        spans = keys.spans
        if spans is None:
            raise ValueError("keys: no spans")
        rows, frames, mels = x.shape
        dtype, width, tf32 = guide.dtype, guide.shape[3], self._tf32
        context = context.contiguous()
        after = torch.empty_like(context)
        residual, shared, gate = guide.view(-1, width), frames, None
        branch = functional.linear(x, self._mels_in).view(-1, width)
        h = torch.empty_like(residual, dtype=torch.float32)
        for index, block in enumerate(self._blocks):
            m = self._modulation[step, index].unbind(0)
            y = norm(residual, m[1], m[0], NORM_EPS, dtype, branch=branch, gate=gate, kept=h, shared_frames=shared)
            residual, shared = h, 0
            qkv = product(y, block["qkv.weight"], block["qkv.bias"], tf32=tf32)
            y = attend(qkv, arena.dit[step, index], spans, frames, norms=HeadNorms(block["head_norms"], QK_EPS), tf32=tf32)
            branch = product(y, block["attn.proj.weight"], block["attn.proj.bias"], tf32=tf32, split=True)
            before, between = (Memory(context[index], after[index], fresh, part) for part in range(2))
            y = joined_norm(h, branch, m[2], m[7], m[6], NORM_EPS, dtype, before, frames)
            inner = product(y, block["first.weight"], block["conv.block.1.bias"], tf32=tf32, frames=frames, split=True)
            y = joined_mish(inner, block["conv.block.3.weight"], block["conv.block.3.bias"], CONV_EPS, dtype, between, frames)
            branch = product(y, block["second.weight"], block["conv.block.6.bias"], tf32=tf32, frames=frames, split=True)
            y = norm(h, m[4], m[3], NORM_EPS, dtype, branch=branch, gate=m[8], kept=h)
            inner = product(y, block["mlp.fc1.weight"], block["mlp.fc1.bias"], activation="gelu", tf32=tf32)
            branch, gate = product(inner, block["mlp.fc2.weight"], block["mlp.fc2.bias"], tf32=tf32, split=True), m[5]
        shift, scale = self._final_modulation[step]
        y = norm(h, scale, shift, NORM_EPS, dtype, branch=branch, gate=gate)
        speed = product(y, self._final["linear.weight"], self._final["linear.bias"], tf32=tf32, dtype=torch.float32)
        return speed.view(rows, 2, frames, mels), after

    def advance(self, x: Tensor, speed: Tensor, by: float) -> Tensor:
        return euler(x, speed, by, self._config.cfg_rate)


def _joined(block: Weights) -> dict[str, Tensor]:
    """The block's weights as the products read them."""
    names = [name for name in block if name.startswith(("attn.proj.", "mlp.", "conv.block.3."))]
    convs = {name: f"conv.block.{n}" for name, n in (("first", 1), ("second", 6))}
    return {
        **{name: block[name] for name in names},
        "head_norms": torch.stack([block[f"attn.{name}_norm.{part}"] for name in "qk" for part in ("weight", "bias")]),
        **{f"qkv.{part}": torch.cat([block[f"attn.to_{name}.{part}"] for name in "qkv"]) for part in ("weight", "bias")},
        **{f"{name}.weight": unfolded_weight(block[f"{stored}.weight"]) for name, stored in convs.items()},
        **{f"{stored}.bias": block[f"{stored}.bias"] for stored in convs.values()},
    }
