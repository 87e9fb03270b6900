"""HiFT of `hift.py` with two kernels for each residual convolution: what it reads, and itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vocoder_svc.minicpmo45.hift import SNAKE_EPS, Hift
from vocoder_svc.minicpmo45.kernels.snake import snake
from vocoder_svc.minicpmo45.layers import Weights


class FusedHift(Hift):
    """Same weights and results as `Hift`, whose docstrings hold."""

    def _block(self, block: Weights, x: Tensor, lengths: Tensor) -> Tensor:
        total, branch, bias = x.contiguous(), None, None
        for index, dilation in enumerate(self.config.resblock_dilations):
            first, second = block[f"convs1.{index}.weight"], block[f"convs2.{index}.weight"]
            # the other blocks read x, so that the first sum goes elsewhere
            kept = torch.empty_like(total) if index == 1 else total
            alpha, sides = block[f"activations1.{index}.alpha"], self._sides(first, dilation)
            read = snake(total, alpha, lengths, *sides, SNAKE_EPS, bias=bias, branch=branch, kept=kept)
            total, inner = kept, functional.conv1d(read, first, dilation=dilation)
            alpha, sides = block[f"activations2.{index}.alpha"], self._sides(second, 1)
            read = snake(inner, alpha, lengths, *sides, SNAKE_EPS, bias=block[f"convs1.{index}.bias"])
            branch, bias = functional.conv1d(read, second), block[f"convs2.{index}.bias"]
        return total if branch is None or bias is None else total + branch + bias[:, None]

    def _sides(self, weight: Tensor, dilation: int) -> tuple[int, int]:
        """Frames of context at the left and at the right."""
        reach = (weight.shape[2] - 1) * dilation
        ahead = 0 if self.config.causal else reach // 2
        return reach - ahead, ahead
