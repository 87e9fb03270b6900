"""Codes to mel frames by flow matching: Euler steps on a cosine grid from fixed noise, with classifier-free guidance, batched over
sessions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import Literal, Self

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import FlowConfig
from vocoder_svc.minicpmo45.arena import Arena
from vocoder_svc.minicpmo45.attention import Keys
from vocoder_svc.minicpmo45.conformer import Conformer, ConformerContext
from vocoder_svc.minicpmo45.dit import Dit
from vocoder_svc.minicpmo45.layers import Weights, linear

Kernels = Literal["plain", "fused"]
"""Torch's operations, or Triton's kernels around torch's products."""
NOISE_FRAMES = 30_000
"""600 s; a chunk takes the frames from its offset on, which trimming keeps small."""


class FlowContext(msgspec.Struct, frozen=True):
    """What the convolutions of a batch's rows remember."""

    conformer: ConformerContext
    dit: Tensor
    """[steps, depth, B, 2, 2 * width, 2]."""


class FlowBatch(msgspec.Struct, frozen=True):
    """Rows in any phases. N is the most codes of a chunk, M = 2 N its frames."""

    codes: Tensor
    """int64 [B, N + lookahead]; what lies beyond a row's codes does not matter."""
    fresh: Tensor
    """int64 [B]: codes that become sound now, 1 to N."""
    final: Tensor
    """bool [B]: no look-ahead follows the fresh codes."""
    speaker: Tensor
    """[B, mels], from `Flow.speaker`."""
    offset: Tensor
    """int64 [B]: where in the noise a row's frames begin."""
    token: Keys
    mel: Keys
    dit: Keys
    prompt: Tensor | None = None
    """[B, M, mels] while a voice is set up; None: nothing is given."""


def time_grid(steps: int) -> Tensor:
    """fp32 [steps + 1]: t_i = 1 - cos(pi / 2 * i / steps)."""
    return 1 - torch.cos(torch.linspace(0, 1, steps + 1) * 0.5 * torch.pi)


def noise(config: FlowConfig, seed: int) -> Tensor:
    """fp32 [mels, 30000], normal, on the CPU; drawn once and used by all sessions."""
    return torch.randn(config.mels, NOISE_FRAMES, generator=torch.Generator().manual_seed(seed))


class Flow:
    """The networks of `flow.pt`. `steps`: Euler steps, 3 to 10; prompts and sessions have keys for each. All state is the caller's."""

    def __init__(
        self,
        weights: Weights,
        config: FlowConfig,
        steps: int,
        max_frames: int,
        noise: Tensor,
        kernels: Kernels = "plain",
        *,
        tf32: bool = False,
        chained: bool = False,
    ) -> None:
        """`weights` with checkpoint names, one dtype and device; `max_frames`: most frames a row attends to; noise fp32 [mels, frames].

        Fused kernels need Triton, and keys that have spans; `tf32`: they round products of fp32 to TF32; `chained`: each starts up while
        the one before it ends, which Hopper GPUs do.
        """
        self.config = config
        self.steps = steps
        like = weights["encoder_proj.weight"]
        self._grid = [float(t) for t in time_grid(steps)]
        self._weights = {name: weights[name] for name in ("spk_embed_affine_layer.weight", "spk_embed_affine_layer.bias")}
        times = time_grid(steps)[:-1].to(like.device)
        self._launches: Callable[[], AbstractContextManager[None]] = nullcontext
        self._conformer: Conformer
        self._dit: Dit
        if kernels == "plain":
            self._conformer, self._dit = Conformer(weights, config, max_frames), Dit(weights, config, times)
        else:
            # Triton is not everywhere
            from vocoder_svc.minicpmo45.fused_conformer import FusedConformer
            from vocoder_svc.minicpmo45.fused_dit import FusedDit
            from vocoder_svc.minicpmo45.kernels.chain import chained as launches

            self._conformer = FusedConformer(weights, config, max_frames, tf32=tf32)
            self._dit = FusedDit(weights, config, times, tf32=tf32)
            self._launches = partial(launches, chained)
        self._noise = noise.to(like.device, torch.float32).T.contiguous()

    @torch.inference_mode()
    def __call__(self, batch: FlowBatch, context: FlowContext, arena: Arena) -> tuple[Tensor, FlowContext]:
        """(mel fp32 [B, M, mels], context after it). Row b has 2 * fresh[b] frames; new keys are in the arena, at `write` of the batch."""
        with self._launches():
            return self._chunk(batch, context, arena)

    def _chunk(self, batch: FlowBatch, context: FlowContext, arena: Arena) -> tuple[Tensor, FlowContext]:
        frames = 2 * batch.fresh
        mu, conformer = self._conformer(batch.codes, batch.fresh, batch.final, context.conformer, batch.token, batch.mel, arena)
        guide = self._dit.guide(mu, batch.speaker, batch.prompt)
        x = self._noise[batch.offset[:, None] + torch.arange(mu.shape[1], device=mu.device)]
        after = []
        for step in range(self.steps):
            speed, memory = self._dit(step, x, guide, frames, context.dit[step], batch.dit, arena)
            x = self._dit.advance(x, speed, self._grid[step + 1] - self._grid[step])
            after.append(memory)
        return x, FlowContext(conformer, torch.stack(after))

    @torch.inference_mode()
    def speaker(self, embedding: Tensor) -> Tensor:
        """fp32 [192] of CAM++ to [mels]: normalised, projected."""
        weight = self._weights["spk_embed_affine_layer.weight"]
        return linear(self._weights, "spk_embed_affine_layer", functional.normalize(embedding, dim=0).to(weight))

    def start(self, rows: int) -> FlowContext:
        """The context before anything was said."""
        return FlowContext(self._conformer.start(rows), self._dit.start(rows, self.steps))

    def excerpt(self) -> Self:
        """One step through the first blocks of each kind: whatever the whole flow launches, it launches, too."""
        short = copy(self)
        short.steps = 1
        # the first has no residual yet, the second has
        short._conformer, short._dit = self._conformer.excerpt(2), self._dit.excerpt(2)
        return short


def context_bytes(config: FlowConfig, steps: int, element: int) -> int:
    """Bytes of one row's FlowContext."""
    return element * (6 * config.hidden_size + steps * config.dit_depth * 8 * config.dit_hidden)
