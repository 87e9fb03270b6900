"""Both encoders with fused kernels between their matrix products. They need Triton, and CUDA or Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from triton import knobs

from minicpmo45.config import AudioConfig, VisionConfig
from thinker_svc.minicpmo45.audio_encoder import UNIT_FRAMES, AudioEncoder
from thinker_svc.minicpmo45.encoder_block import EncoderBlock, Norm
from thinker_svc.minicpmo45.vision_encoder import VisionEncoder
from torch_kit.kernels.layer_norm import residual_layer_norm
from torch_kit.kernels.slot_attention import SlotAttention

Attend = Callable[[EncoderBlock, Tensor], Tensor]
"""Queries, keys and values of a block [tokens, 3 x width] to what they attended to [tokens, width]."""


class FusedAudioEncoder(AudioEncoder):
    """As `AudioEncoder`; a unit reads each row's own history where it lies, whatever the span."""

    def __init__(self, weights: Mapping[str, Tensor], config: AudioConfig) -> None:
        """Raises CheckpointError, and ValueError: a device or a size of heads that the kernels do not serve."""
        super().__init__(weights, config)
        _check(self._positions)
        SlotAttention(1, UNIT_FRAMES, config.heads, config.d_model // config.heads, self._positions.device)

    def _attended(self, x: Tensor, cache: Tensor, slots: Tensor, cached: Tensor, span: int) -> Tensor:
        heads, head_dim = cache.shape[3], cache.shape[5]
        attention, layers = SlotAttention(len(slots), UNIT_FRAMES, heads, head_dim, x.device), iter(cache)
        return _through(self._blocks, self._norm, x, lambda _, joined: attention(joined, next(layers), slots, cached))


class FusedVisionEncoder(VisionEncoder):
    """As `VisionEncoder`, and attention is torch's there, too."""

    def __init__(self, weights: Mapping[str, Tensor], config: VisionConfig, longest: int) -> None:
        """Raises CheckpointError, and ValueError: a device that the kernels do not serve."""
        super().__init__(weights, config, longest)
        _check(self._positions)

    def _attended(self, x: Tensor, seen: Tensor | None) -> Tensor:
        images, patches, _ = x.shape

        def attend(block: EncoderBlock, joined: Tensor) -> Tensor:
            read = functional.scaled_dot_product_attention(*block.split(joined.view(images, patches, -1)), attn_mask=seen)
            return read.transpose(1, 2).flatten(2).flatten(0, 1)

        return _through(self._blocks, self._norm, x, attend)


def _through(blocks: Sequence[EncoderBlock], final: Norm, x: Tensor, attend: Attend) -> Tensor:
    """[rows, length, width] through all blocks and the final norm. Each norm is made where the sum before it is."""
    states = x.flatten(0, 1).contiguous()
    residual, normed = torch.empty_like(states), torch.empty_like(states)

    def add(states: Tensor, norm: Norm, *, first: bool = False) -> None:
        residual_layer_norm(states, residual, norm.weight, norm.bias, normed, norm.eps, first=first)

    add(states, blocks[0].attention_norm, first=True)
    for block, norm in zip(blocks, (*(each.attention_norm for each in blocks[1:]), final), strict=True):
        add(block.out(attend(block, block.joined(normed))), block.mlp_norm)
        add(block.down(_widened(block, normed)), norm)
    return normed.view_as(x)


def _widened(block: EncoderBlock, x: Tensor) -> Tensor:
    """gelu(up(x)); cuBLAS has the tanh form alone, as the end of a product."""
    if block.gelu == "tanh" and x.is_cuda and block.up.bias is not None:
        return torch._addmm_activation(block.up.bias, x, block.up.weight.t(), use_gelu=True)
    return functional.gelu(block.up(x), approximate=block.gelu)


def _check(weight: Tensor) -> None:
    if weight.device.type != "cuda" and not knobs.runtime.interpret:
        raise ValueError(f"weights: on {weight.device.type}, not on CUDA")
