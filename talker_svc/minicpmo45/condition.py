"""What the talker is told of a unit's words."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from minicpmo45.config import TalkerConfig


class Condition:
    """Rows that precede a unit's codes: one a text token (`<|turn_eos|>` included), then audio_bos, which stands alone if there is no text.

    c_i = emb_text(x_i) + h_i' / |h_i'|, with h_i' = linear2(relu(linear1(h_i))) of the thinker's final-normed hidden state of the forward
    that was fed x_i (reference/minicpmo45.md 2.2).
    """

    def __init__(self, weights: Mapping[str, Tensor], config: TalkerConfig) -> None:
        self._text = weights["tts.emb_text.weight"]
        self._first = (weights["tts.projector_semantic.linear1.weight"], weights["tts.projector_semantic.linear1.bias"])
        self._second = (weights["tts.projector_semantic.linear2.weight"], weights["tts.projector_semantic.linear2.bias"])
        self.audio_bos = self._text[config.audio_bos]
        """[hidden_size]"""

    def project(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] of hidden states [T, llm_dim]: h' / |h'|. The quotient is computed in fp32."""
        inner = functional.relu(functional.linear(hidden.to(self._text.dtype), *self._first))
        return functional.normalize(functional.linear(inner, *self._second).float(), dim=-1).to(self._text.dtype)

    def __call__(self, token_ids: Tensor, projected: Tensor) -> Tensor:
        """[n, hidden_size] of int64 ids [n] and what `project` made of their hidden states [n, hidden_size], of any sessions."""
        return functional.embedding(token_ids, self._text) + projected
