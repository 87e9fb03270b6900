"""The talker's network: condition rows and codes in, logits over codes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import TalkerConfig
from talker_svc.minicpmo45.condition import Condition
from talker_svc.minicpmo45.thoughts import Words
from torch_kit.attention import Attention
from torch_kit.decoder import Decoder, DecoderConfig, WeightError
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch

_PREFIX = "tts.model."


@dataclass(frozen=True, slots=True)
class Input:
    """What one session feeds in a step: a code, a unit's condition, or both in this order."""

    code: bool
    words: Words | None

    @property
    def count(self) -> int:
        """Tokens."""
        return int(self.code) + (len(self.words.token_ids) + 1 if self.words is not None else 0)


class TalkerModel:
    """Llama over codes, with the embeddings and the head round it. Weights as `minicpmo45.weights.talker_weights` gives them."""

    def __init__(self, weights: Mapping[str, Tensor], config: TalkerConfig, pool: PagePool, attention: Attention | None = None) -> None:
        """Raises WeightError."""
        for name, shape in _shapes(config).items():
            if name not in weights:
                raise WeightError(name, "missing")
            if tuple(weights[name].shape) != shape:
                raise WeightError(name, f"shape {tuple(weights[name].shape)}, not {shape}")
        self.config = config
        self.condition = Condition(weights, config)
        self.decoder = Decoder(
            {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items() if name.startswith(_PREFIX)},
            decoder_config(config),
            pool,
            attention,
        )
        self._codes = weights["tts.emb_code.0.weight"]
        self._head = weights["tts.head_code.0.weight"]

    def embed(self, inputs: Sequence[Input], codes: Tensor) -> Tensor:
        """[tokens, hidden_size] of a step, row after row; `codes` int64: those of the inputs that feed one, in order."""
        code_at: list[int] = []
        text_at: list[int] = []
        bos_at: list[int] = []
        at = 0
        for each in inputs:
            if each.code:
                code_at.append(at)
            if each.words is not None:
                first = at + each.code
                text_at.extend(range(first, first + len(each.words.token_ids)))
                bos_at.append(at + each.count - 1)
            at += each.count
        dtype, device = self._codes.dtype, self._codes.device
        out = torch.empty((at, self.config.hidden_size), dtype=dtype, device=device)
        if code_at:
            out[torch.tensor(code_at, device=device)] = functional.embedding(codes, self._codes)
        if bos_at:
            out[torch.tensor(bos_at, device=device)] = self.condition.audio_bos
        if text_at:
            units = [each.words for each in inputs if each.words is not None]
            ids = torch.tensor([token for unit in units for token in unit.token_ids], device=device)
            hidden = torch.cat([unit.hidden.to(dtype) for unit in units]).to(device)
            out[torch.tensor(text_at, device=device)] = self.condition(ids, hidden)
        return out

    def continued(self, codes: Tensor, batch: RaggedBatch) -> Tensor:
        """fp32 [N, codes] of a batch of one token a row, each an int64 code [N]."""
        hidden = self.decoder.forward(functional.embedding(codes.clamp(min=0), self._codes), batch)
        return functional.linear(hidden, self._head).float()

    def logits(self, embeddings: Tensor, batch: RaggedBatch) -> Tensor:
        """fp32 [S, codes] for the batch's sampled tokens; `embeddings` [N, hidden_size]."""
        hidden = self.decoder.forward(embeddings, batch)
        return functional.linear(hidden[batch.sampled], self._head).float()


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
