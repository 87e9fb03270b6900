"""The talker's network: condition rows and codes in, logits over codes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import TalkerConfig
from talker_svc.minicpmo45.condition import Condition
from talker_svc.minicpmo45.inputs import CODE
from torch_kit.decoder import Decoder, DecoderConfig, WeightError
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch

_PREFIX = "tts.model."


Kernels = Literal["plain", "fused"]


class Forward(Protocol):
    """What `Decoder` and `FusedDecoder` have in common."""

    pool: PagePool

    def forward(self, embeddings: Tensor, batch: RaggedBatch) -> Tensor:
        """Hidden states [N, hidden_size]."""


class TalkerModel:
    """Llama over codes, with the embeddings and the head round it. Weights as `minicpmo45.weights.talker_weights` gives them."""

    def __init__(self, weights: Mapping[str, Tensor], config: TalkerConfig, pool: PagePool, kernels: Kernels = "plain") -> None:
        """`kernels`: which decoder; the fused one takes tiled batches alone. Raises WeightError, and ValueError as FusedDecoder."""
        for name, shape in _shapes(config).items():
            if name not in weights:
                raise WeightError(name, "missing")
            if tuple(weights[name].shape) != shape:
                raise WeightError(name, f"shape {tuple(weights[name].shape)}, not {shape}")
        self.config = config
        self.condition = Condition(weights, config)
        llama = {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items() if name.startswith(_PREFIX)}
        self.decoder = _decoder(kernels, llama, decoder_config(config), pool)
        self._codes = weights["tts.emb_code.0.weight"]
        self._head = weights["tts.head_code.0.weight"]

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and hidden states."""
        return self._codes.dtype

    @property
    def codes(self) -> Tensor:
        """[codes, hidden_size]: what a code feeds."""
        return self._codes

    def embed(self, ids: Tensor, hidden: Tensor, hidden_at: Tensor, codes: Tensor) -> Tensor:
        """[N, hidden_size] of the tokens of a step, whatever they are: no shape depends on it.

        `ids` int64 [N]: a text token, CODE or AUDIO_BOS; `hidden` [T, llm_dim], at least a line, and `hidden_at` int64 [N], the line of a
        text token; `codes` int64 [N], read for CODE.
        """
        text = self.condition(ids.clamp(min=0), self.condition.project(hidden)[hidden_at])
        kind = ids[:, None]
        return torch.where(kind >= 0, text, torch.where(kind == CODE, self.fed(codes), self.condition.audio_bos))

    def fed(self, codes: Tensor) -> Tensor:
        """[N, hidden_size] of int64 codes [N]; NOT_FINITE as code 0."""
        return functional.embedding(codes.clamp(min=0), self._codes)

    def continued(self, embeddings: Tensor, batch: RaggedBatch) -> Tensor:
        """[N, codes] of a batch of one token a row; `embeddings` [N, hidden_size]."""
        return functional.linear(self.decoder.forward(embeddings, batch), self._head)

    def logits(self, embeddings: Tensor, batch: RaggedBatch) -> Tensor:
        """[S, codes] for the batch's sampled tokens; `embeddings` [N, hidden_size]."""
        hidden = self.decoder.forward(embeddings, batch)
        return functional.linear(hidden[batch.sampled], self._head)


def decoder_config(config: TalkerConfig) -> DecoderConfig:
    """The decoder's sizes."""
    return DecoderConfig(
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        rms_eps=config.rms_eps,
        rope_theta=config.rope_theta,
        qk_norm=False,
    )


def _decoder(kernels: Kernels, weights: Mapping[str, Tensor], config: DecoderConfig, pool: PagePool) -> Forward:
    if kernels == "fused":
        # needs Triton, which only machines with CUDA have
        from torch_kit.fused_decoder import FusedDecoder

        return FusedDecoder(weights, config, pool)
    return Decoder(weights, config, pool)


def _shapes(config: TalkerConfig) -> dict[str, tuple[int, ...]]:
    """Tensors round the decoder."""
    width = config.hidden_size
    return {
        "tts.emb_text.weight": (config.text_tokens, width),
        "tts.emb_code.0.weight": (config.codes, width),
        "tts.head_code.0.weight": (config.codes, width),
        "tts.projector_semantic.linear1.weight": (width, config.llm_dim),
        "tts.projector_semantic.linear1.bias": (width,),
        "tts.projector_semantic.linear2.weight": (width, width),
        "tts.projector_semantic.linear2.bias": (width,),
    }
