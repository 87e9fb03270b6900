"""The sampler's fast path: one kernel a step."""

from __future__ import annotations

import torch
from torch import Tensor

from minicpmo45.config import CODE_RATE
from talker_svc.minicpmo45.kernels.code_draw import Drawing, draw_codes
from talker_svc.minicpmo45.sampler import DRAW, CodeSampler


class FusedCodeSampler(CodeSampler):
    """As `CodeSampler`, of which it has the state: the same codes of the same logits. Needs CUDA or Triton's interpreter."""

    def __init__(self, rows: int, *, codes: int, min_piece: int, device: torch.device | str = "cpu") -> None:
        super().__init__(rows, codes=codes, min_piece=min_piece, device=device)
        self._drawing = Drawing(
            state=self._state,
            rules=self._rules,
            seed=self._seed,
            greedy=self._greedy,
            temperature=self._temperature,
            factors=self._factors,
            width=codes,
            piece=CODE_RATE,
            min_piece=min_piece,
            draw=DRAW,
        )

    def sample(self, rows: Tensor, logits: Tensor, injected: Tensor | None = None) -> Tensor:
        """See CodeSampler; what is injected goes there."""
        if injected is not None:
            return super().sample(rows, logits, injected)
        codes = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        draw_codes(self._drawing, rows, logits, codes)
        return codes

    def sample_next(self, rows: Tensor, logits: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """See CodeSampler."""
        codes = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        embeddings = table.new_empty((len(rows), table.shape[1]))
        draw_codes(self._drawing, rows, logits, codes, table, embeddings)
        return codes, embeddings
