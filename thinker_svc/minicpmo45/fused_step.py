"""A whole step as one function of few shapes: embeddings, the fused forward, the decisions. From a graph where there are graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import ge
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinker_svc.minicpmo45.decider import FIELDS, deciding_tokens
from thinker_svc.minicpmo45.row import Deciding, Decisions, Row, token_ids
from thinker_svc.minicpmo45.sampler import Manner
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.graphs import Graphs
from torch_kit.ragged import BUCKETS, RaggedBatch, bucket, pack
from torch_kit.staging import Landing, Staging
from torch_kit.tiles import Tiling

if TYPE_CHECKING:
    from stage_kit import Wait

Decide = Callable[[Tensor, Tensor, Manner], Tensor]
"""As `Decider.decide`, logits included."""


_HOST = torch.device("cpu")


class Shape(NamedTuple):
    """What a graph is keyed by. One that is at least as large in all but tokens, of which it has as many, serves as well."""

    tokens: int
    tiles: int
    deciding: int
    """Rows that decide, padded to a bucket."""
    drafts: int
    """Of them, those that may have a draft; padded, too."""
    manner: Manner
    """NARROW or WIDE: what draws serves those who draw nothing."""

    def holds(self, other: Shape) -> bool:
        """It serves what `other` serves."""
        return self[:1] + self[4:] == other[:1] + other[4:] and all(map(ge, self[1:4], other[1:4]))


class FusedStep:
    """`embedding` [vocabulary, hidden]. `padding`: the numbers of a deciding row that nobody reads.

    A graph reads everything that changes from the device: the packed batch, ids and numbers in one upload, and embeddings of sound and
    pictures from one buffer, in which an id -1 - n means row n. A batch beyond the largest bucket runs without a graph. The answer is on
    its way to the host as soon as the graph is done. A shape without a graph takes the smallest that holds it, so that few are captured in
    mid-service, when all wait for it.
    """

    def __init__(self, decoder: FusedDecoder, embedding: Tensor, decide: Decide, padding: Sequence[int], tiling: Tiling) -> None:
        self._decoder = decoder
        self._embedding = embedding
        self._decide = decide
        self._padding = tuple(padding)
        self._tiling = tiling
        self._staging = Staging(embedding.device)
        self._captured: set[Shape] = set()
        self._serving: dict[Shape, Shape] = {}
        """By which captured shape one is served."""
        self._given = torch.zeros(BUCKETS[-1], embedding.shape[1], dtype=embedding.dtype, device=embedding.device)

    def __call__(
        self,
        rows: Sequence[Row],
        manner: Callable[[Iterable[int]], Manner],
        graphs: Graphs,
        waiting: Wait,
    ) -> list[Decisions]:
        """Each row's decisions. `manner`: of the slots that decide. `waiting` is called while the device works, and told how to ask whether
        it is done."""
        self._staging.begin()
        try:
            deciding, packed, drafts, landing = self._launched(rows, manner, graphs)
            if not deciding.rows:
                return [()] * len(rows)
            waiting(landing.over)
            landing.wait()
            return deciding.answers(len(rows), packed.numpy(), drafts)
        except Exception:
            self._staging.undo()
            raise

    def _launched(
        self, rows: Sequence[Row], manner: Callable[[Iterable[int]], Manner], graphs: Graphs
    ) -> tuple[Deciding, Tensor, int, Landing]:
        """The rows that decide, where their decisions land, from which line on those behind drafts do, and when."""
        deciding = Deciding.of(rows)
        upload, shape = self._upload(rows, deciding, manner, replayed=graphs.on)
        run = self._function(shape, self._gather(rows, shape.tokens))
        # what may fail comes before the decisions, which cannot be taken back
        packed = self._staging.take("answer", (shape.deciding + shape.drafts, 4), torch.int64)
        if graphs.on and shape.tokens <= BUCKETS[-1]:
            answer = graphs(shape, run, (upload,), lambda: (self._blank(shape),))
            self._captured.add(shape)
        else:
            answer = run(upload.to(self._embedding.device, non_blocking=True))
        packed.copy_(answer, non_blocking=True)
        return deciding, packed, shape.deciding, self._staging.end()

    def prepare(self, graphs: Graphs, shape: Shape) -> None:
        """Captures the graph of a shape."""
        graphs.prepare(shape, self._function(shape, self._given), lambda: (self._blank(shape),))
        self._captured.add(shape)
        self._serving.clear()

    def shapes(self, sessions: int, rows: int, manner: Manner, *, draft: bool) -> set[Shape]:
        """What serves every step of up to `sessions`: the shapes of steps in which some feed a decided token and the others a unit of
        `rows` tokens, and for each number of tokens one that holds all, prefixes and pictures too."""
        found: set[Shape] = set()
        for units in range(sessions + 1):
            for steps in range(not units, sessions - units + 1):
                size = bucket(units * (rows + draft) + steps)
                padding = size - units * (rows + draft) - steps
                tiles = units * -(-(rows + draft) // self._tiling.tile) + steps + -(-padding // self._tiling.tile)
                drafts = bucket(units) if units and draft else 0
                found.add(Shape(size, self._tiling.level(size, tiles), bucket(units + steps), drafts, manner))
        whole = (self._whole(size, sessions, manner, draft=draft) for size in BUCKETS)
        found |= {shape for shape in whole if not any(each.holds(shape) for each in found)}
        return {shape for shape in found if shape.tokens <= BUCKETS[-1]}

    def _whole(self, size: int, sessions: int, manner: Manner, *, draft: bool) -> Shape:
        """Holds whatever up to `sessions` feed in so many tokens: each row and the padding may end in a tile that is not full."""
        tiles = min(size // self._tiling.tile + sessions + 1, size)
        drafts = bucket(min(sessions, size // 2)) if draft and size > 1 else 0
        return Shape(size, self._tiling.level(size, tiles), bucket(min(sessions, size)), drafts, manner)

    def _function(self, shape: Shape, given: Tensor) -> Callable[[Tensor], Tensor]:
        def run(upload: Tensor) -> Tensor:
            like = RaggedBatch.blank_tiled(shape.tokens, shape.tiles, self._tiling, _HOST)
            length = len(like.packed)
            ids, rest = upload[_aligned(length) :].view(torch.int64).split_with_sizes([shape.tokens, FIELDS * shape.deciding])
            states = torch.where((ids >= 0)[:, None], self._embedding[ids.clamp(min=0)], given[(-1 - ids).clamp(min=0)])
            hidden = self._decoder.forward(states, like.over(upload[:length]))
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
            torch.cat(parts, out=self._given[: sum(part.shape[0] for part in parts)])
        return self._given

    def _upload(
        self, rows: Sequence[Row], deciding: Deciding, manner: Callable[[Iterable[int]], Manner], *, replayed: bool
    ) -> tuple[Tensor, Shape]:
        """int32 on the host: the packed batch, then, aligned, int64 [tokens + FIELDS * deciding] ids and numbers of deciding rows."""
        chosen, drafts = deciding.rows, deciding.drafts
        wanted = max(manner([rows[index].slot for index in chosen]), Manner.NARROW) if chosen else Manner.NARROW
        shape = Shape(0, 0, bucket(len(chosen)) if chosen else 0, bucket(drafts) if drafts else 0, wanted)
        whole: list[Tensor] = []

        def level(tokens: int, tiles: int) -> int:
            nonlocal shape
            shape = shape._replace(tokens=tokens, tiles=tiles)
            if replayed:
                shape = self._served(shape)
            return shape.tiles

        def room(length: int) -> Tensor:
            numbers = 2 * (shape.tokens + FIELDS * shape.deciding)
            whole.append(self._staging.take("upload", (_aligned(length) + numbers,), torch.int32))
            return whole[0][:length]

        packed, _ = pack([row.appended for row in rows], self._tiling, room, level)
        self._fill(whole[0][_aligned(len(packed)) :].numpy().view(np.int64), rows, deciding, shape.tokens)
        return whole[0], shape

    def _served(self, shape: Shape) -> Shape:
        """The shape of the graph that is to run it: its own, if there is one or none that holds it."""
        if shape not in self._serving:
            holding = [each for each in self._captured if each.holds(shape)]
            # rows cost more than places for tiles
            self._serving[shape] = min(holding, key=lambda each: (each.deciding + each.drafts, each.tiles), default=shape)
        return self._serving[shape]

    def _fill(self, out: NDArray[np.int64], rows: Sequence[Row], deciding: Deciding, tokens: int) -> None:
        ids, places = token_ids(rows)
        ids[places] = -1 - np.arange(len(places))
        out[: len(ids)], out[len(ids) : tokens] = ids, 0
        numbers = out[tokens:].reshape(-1, FIELDS)
        numbers[: len(deciding.rows)], numbers[len(deciding.rows) :] = deciding.numbers, self._padding

    def _blank(self, shape: Shape) -> Tensor:
        packed = RaggedBatch.blank_tiled(shape.tokens, shape.tiles, self._tiling, _HOST).packed
        numbers = torch.tensor([0] * shape.tokens + list(self._padding) * shape.deciding, dtype=torch.int64)
        space = packed.new_zeros(_aligned(len(packed)) - len(packed))
        return torch.cat([packed, space, numbers.view(torch.int32)]).to(self._embedding.device)


def _aligned(length: int) -> int:
    """Where int64 may begin behind so many int32, at 16 bytes."""
    return -(-length // 4) * 4
