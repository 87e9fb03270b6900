"""What sessions keep between chunks of a turn, slot by slot; what a voice keeps is shared and only pointed at."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import msgspec
import torch
from torch import Tensor

from vocoder_svc.minicpmo45.arena import SCRATCH, Arena
from vocoder_svc.minicpmo45.conformer import ConformerContext
from vocoder_svc.minicpmo45.flow import Flow, FlowBatch, FlowContext
from vocoder_svc.minicpmo45.retention import Attention, Retention, Span, whole


class Prompt(msgspec.Struct, frozen=True):
    """A voice, set up: its keys lie in the arena, once for all sessions; its contexts are what a turn begins with."""

    span: Span
    speaker: Tensor
    """[mels]."""
    context: FlowContext
    """One row."""


class Piece(msgspec.Struct, frozen=True):
    """A chunk of one turn: `fresh` codes that become sound now, and behind them the look-ahead (none in the `final` one)."""

    codes: tuple[int, ...]
    fresh: int
    final: bool


class FlowCaches:
    """Contexts [slots, ...] and rings of the sessions. A step reads them; only `commit` changes what the next one sees."""

    def __init__(self, flow: Flow, arena: Arena, retention: Retention, slots: int) -> None:
        self._flow = flow
        self._arena = arena
        self._retention = retention
        self._rings = [Span(SCRATCH + slot * retention.ring_frames, retention.ring_frames) for slot in range(slots)]
        self._context = flow.start(slots)
        self._begun = [False] * slots
        self._speakers = torch.zeros(slots, flow.config.mels, dtype=self._context.dit.dtype, device=self._context.dit.device)

    def begin(self, slot: int, prompt: Prompt) -> None:
        """A turn begins with the voice's own caches."""
        self._begun[slot] = True
        self._speakers[slot] = prompt.speaker
        self._retention.begin(slot, prompt.span, self._rings[slot])
        self._context.conformer.lookahead[slot] = prompt.context.conformer.lookahead[0]
        self._context.conformer.upsample[slot] = prompt.context.conformer.upsample[0]
        self._context.dit[:, :, slot] = prompt.context.dit[:, :, 0]

    def run(self, slots: Sequence[int], pieces: Sequence[Piece], chunk: int) -> tuple[Tensor, FlowContext]:
        """The next piece of each slot: (mel fp32 [B, 2 * chunk, mels], the contexts to commit). Slots are distinct and have begun."""
        attention = self._retention.plan(slots, [piece.fresh for piece in pieces], chunk)
        return self.forward(torch.tensor(self.rows(slots, pieces, chunk)).to(self._context.dit.device), attention)

    def rows(self, slots: Sequence[int], pieces: Sequence[Piece], chunk: int) -> list[list[int]]:
        """What `forward` needs to know of each slot: itself, its fresh codes, whether they are the last, all codes with padding."""
        if not all(self._begun[slot] for slot in slots):
            raise RuntimeError("the slot has no turn")
        size = chunk + self._flow.config.lookahead
        return [
            [slot, piece.fresh, piece.final, *piece.codes, *[0] * (size - len(piece.codes))]
            for slot, piece in zip(slots, pieces, strict=True)
        ]

    def forward(self, rows: Tensor, attention: Attention) -> tuple[Tensor, FlowContext]:
        """See `run`; `rows` int64 [B, 3 + chunk + lookahead]."""
        context, where = self._context, rows[:, 0]
        batch = FlowBatch(
            codes=rows[:, 3:],
            fresh=rows[:, 1],
            final=rows[:, 2] > 0,
            speaker=self._speakers[where],
            offset=attention.offset,
            token=attention.token,
            mel=attention.mel,
            dit=attention.dit,
        )
        conformer = ConformerContext(context.conformer.lookahead[where], context.conformer.upsample[where])
        return self._flow(batch, FlowContext(conformer, context.dit[:, :, where]), self._arena)

    def commit(self, slots: Sequence[int], pieces: Sequence[Piece], rows: Sequence[int], after: FlowContext) -> None:
        """Keeps what `run` made of `rows` (indices into the batch): slots and pieces are those of these rows."""
        device = after.dit.device
        where, source = torch.tensor(list(slots), device=device), torch.tensor(list(rows), device=device)
        self._context.conformer.lookahead[where] = after.conformer.lookahead[source]
        self._context.conformer.upsample[where] = after.conformer.upsample[source]
        self._context.dit[:, :, where] = after.dit[:, :, source]
        self._retention.commit(slots, [piece.fresh for piece in pieces])

    def set_up(self, span: Span, codes: Tensor, ahead: Tensor, mel: Tensor, embedding: Tensor) -> Prompt:
        """Runs a voice's prompt into the arena at `span`: codes int64 [n], look-ahead int64 [3], mel fp32 [2 n, mels], embedding fp32
        [192].

        Raises NotFinite.
        """
        made, prompt = self.run_prompt(span, codes, ahead, mel, embedding)
        if not bool(torch.isfinite(made).all()):
            raise NotFinite("the voice's caches")
        return prompt

    def run_prompt(self, span: Span, codes: Tensor, ahead: Tensor, mel: Tensor, embedding: Tensor) -> tuple[Tensor, Prompt]:
        """As `set_up`, unasked: what the flow made, fp32 [1, 2 n, mels], shows whether all is finite."""
        device, count = self._context.dit.device, codes.shape[0]
        attention = whole(span, device)
        speaker = self._flow.speaker(embedding.to(device))
        batch = FlowBatch(
            codes=torch.cat((codes, ahead)).to(device)[None],
            fresh=torch.tensor([count], device=device),
            final=torch.tensor([False], device=device),
            speaker=speaker[None],
            offset=attention.offset,
            token=attention.token,
            mel=attention.mel,
            dit=attention.dit,
            prompt=mel.to(speaker)[None],
        )
        made, context = self._flow(batch, self._flow.start(1), self._arena)
        return made, Prompt(span, speaker, context)

    def excerpt(self) -> Self:
        """Of an excerpt of the flow (see there)."""
        short = copy(self)
        short._flow = self._flow.excerpt()
        return short


class NotFinite(ArithmeticError):
    """NaN or infinity came out of the network; the message names what is lost."""
