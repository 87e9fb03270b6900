"""A whole step as one function of few shapes: embeddings, the fused forward, the decisions. From a graph where there are graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from thinker_svc.minicpmo45.decider import FIELDS, deciding_tokens
from thinker_svc.minicpmo45.row import Deciding, Decisions, Row, token_ids
from thinker_svc.minicpmo45.sampler import Manner
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.graphs import Graphs
from torch_kit.ragged import BUCKETS, RaggedBatch, bucket
from torch_kit.tiles import Tiling

Decide = Callable[[Tensor, Tensor, Manner], Tensor]
"""As `Decider.decide`, logits included."""


class Shape(NamedTuple):
    """What a graph is keyed by."""

    tokens: int
    tiles: int
    deciding: int
    """Rows that decide, padded to a bucket."""
    drafts: int
    """Of them, those that may have a draft; padded, too."""
    manner: Manner


class FusedStep:
    """`embedding` [vocabulary, hidden]. `padding`: the numbers of a deciding row that nobody reads.

    A graph reads everything that changes from the device: the packed batch, ids and numbers in one list, and embeddings of sound and
    pictures from one buffer, in which an id -1 - n means row n. A batch beyond the largest bucket runs without a graph.
    """

    def __init__(self, decoder: FusedDecoder, embedding: Tensor, decide: Decide, padding: Sequence[int], tiling: Tiling) -> None:
        self._decoder = decoder
        self._embedding = embedding
        self._decide = decide
        self._padding = tuple(padding)
        self._tiling = tiling
        self._given = torch.zeros(BUCKETS[-1], embedding.shape[1], dtype=embedding.dtype, device=embedding.device)

    def __call__(self, rows: Sequence[Row], manner: Callable[[Iterable[int]], Manner], graphs: Graphs) -> list[Decisions]:
        """Each row's decisions. `manner`: of the slots that decide."""
        deciding = Deciding.of(rows)
        batch = RaggedBatch.tiled([row.appended for row in rows], self._tiling)
        shape = _shape(batch, deciding, manner([row.slot for row in rows if row.unit >= 0]) if deciding.rows else Manner.GREEDY)
        given = self._gather(rows, batch.size)
        numbers = self._numbers(rows, deciding, shape)
        run = self._function(batch, shape, given)
        if graphs.on and batch.size <= BUCKETS[-1]:
            packed = graphs(shape, run, (batch.packed, numbers), lambda: self._blank(shape))
        else:
            packed = run(batch.packed, numbers)
        if not deciding.rows:
            return [()] * len(rows)
        answers = packed.tolist()
        return deciding.answers(len(rows), answers[: len(deciding.rows)], answers[shape.deciding :][: deciding.drafts])

    def prepare(self, graphs: Graphs, shape: Shape) -> None:
        """Captures the graph of a shape."""
        batch = RaggedBatch.blank_tiled(shape.tokens, shape.tiles, self._tiling, self._embedding.device)
        graphs.prepare(shape, self._function(batch, shape, self._given), lambda: self._blank(shape))

    def shapes(self, sessions: int, rows: int, manner: Manner, *, draft: bool) -> set[Shape]:
        """In which steps of up to `sessions` come, of which some feed a decided token and the others a unit of `rows` tokens."""
        found: set[Shape] = set()
        for units in range(sessions + 1):
            for steps in range(not units, sessions - units + 1):
                size = bucket(units * (rows + draft) + steps)
                padding = size - units * (rows + draft) - steps
                tiles = units * -(-(rows + draft) // self._tiling.tile) + steps + -(-padding // self._tiling.tile)
                drafts = bucket(units) if units and draft else 0
                found.add(Shape(size, self._tiling.level(size, tiles), bucket(units + steps), drafts, manner))
        return {shape for shape in found if shape.tokens <= BUCKETS[-1]}

    def _function(self, batch: RaggedBatch, shape: Shape, given: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        def run(packed: Tensor, numbers: Tensor) -> Tensor:
            ids, rest = numbers.split_with_sizes([shape.tokens, FIELDS * shape.deciding])
            states = torch.where((ids >= 0)[:, None], self._embedding[ids.clamp(min=0)], given[(-1 - ids).clamp(min=0)])
            hidden = self._decoder.forward(states, batch.over(packed))
            if not shape.deciding:
                return ids.new_empty(0, 4)
            deciding = rest.view(shape.deciding, FIELDS)
            return self._decide(deciding, hidden[deciding_tokens(deciding, shape.drafts)], shape.manner)

        return run

    def _gather(self, rows: Sequence[Row], size: int) -> Tensor:
        """The buffer that ids mean, with the embeddings of the rows at its beginning."""
        parts = [part for row in rows for part in row.embeddings]
        if size > len(self._given):
            return torch.cat(parts).to(self._given.dtype) if parts else self._given
        if parts:
            joined = torch.cat(parts)
            self._given[: len(joined)] = joined
        return self._given

    def _numbers(self, rows: Sequence[Row], deciding: Deciding, shape: Shape) -> Tensor:
        """int64 [tokens + FIELDS * deciding]"""
        ids, places = token_ids(rows)
        ids[places] = range(-1, -1 - len(places), -1)
        lines = deciding.numbers + [self._padding] * (shape.deciding - len(deciding.numbers))
        flat = [*ids.tolist(), *[0] * (shape.tokens - len(ids)), *(number for line in lines for number in line)]
        return torch.tensor(flat, dtype=torch.int64).to(self._embedding.device)

    def _blank(self, shape: Shape) -> tuple[Tensor, ...]:
        device = self._embedding.device
        batch = RaggedBatch.blank_tiled(shape.tokens, shape.tiles, self._tiling, device)
        return batch.packed, torch.tensor([0] * shape.tokens + list(self._padding) * shape.deciding, dtype=torch.int64).to(device)


def _shape(batch: RaggedBatch, deciding: Deciding, manner: Manner) -> Shape:
    count, drafts = len(deciding.rows), deciding.drafts
    return Shape(*batch.shape, bucket(count) if count else 0, bucket(drafts) if drafts else 0, manner)
