"""A burst: each session's next codes, drawn behind each other on the device, fed by one upload and read once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talker_svc.minicpmo45.inputs import Input, Tokens
from talker_svc.minicpmo45.model import TalkerModel
from talker_svc.minicpmo45.sampler import NO_RULE, NOT_FINITE, RULE_FIELDS, CodeSampler
from talker_svc.minicpmo45.shapes import Shapes
from talker_svc.minicpmo45.turn import Turn
from torch_kit.bursts import pack_steps
from torch_kit.graphs import Graphs
from torch_kit.page_table import Appended, PageTable
from torch_kit.ragged import RaggedBatch

_Graph = tuple[Hashable, Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]
"""Key, function and blank inputs of a graph."""


@dataclass(frozen=True, slots=True)
class Job:
    """A session that speaks."""

    row: int
    """Of the sampler."""
    table: PageTable
    turn: Turn


@dataclass(frozen=True, slots=True)
class _Opening:
    """The step in which units begin; who is in mid-unit feeds a code beside them."""

    batch: RaggedBatch
    numbers: Tensor
    """int64 on the device: see `Speaker._opening`."""
    hidden: Tensor
    """[T, llm_dim] on the device."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps that feed a code each."""

    like: RaggedBatch
    lines: Tensor
    """int32 [steps, ...] on the device: what `like` takes, then the rows of the sampler [N]."""


class Speaker:
    """One call draws up to `burst` codes for every job, the first of them behind its unit's condition if one is to begin.

    Units begin in the first step, together with the codes of all others: so weights are read once for both, nobody waits for a forward
    that is not his, and a unit of 25 codes is five calls of 5. Codes do not depend on `burst`, nor on who else speaks.
    """

    def __init__(self, model: TalkerModel, sampler: CodeSampler, shapes: Shapes, graphs: Graphs, *, spare: int, burst: int) -> None:
        """`spare`: a row of the sampler that no session has, for padding."""
        self.graphs = graphs
        self.burst = burst
        self._model, self._sampler, self._shapes = model, sampler, shapes
        self._spare = spare
        self._device = sampler.last.device

    def speak(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Each job's codes, at least one: the last may be the end code or NOT_FINITE, and none comes after these.

        The tables hold then what was fed before a code that is finite. An exception leaves everything as it was.
        """
        before = [job.table.position for job in jobs]
        self._sampler.keep()
        try:
            firsts, counts, drawn = self._run(jobs)
        except Exception:
            for job, position in zip(jobs, before, strict=True):
                job.table.rewind(job.table.position - position)
            self._sampler.restore()
            raise
        codes = self._told(drawn, counts)
        for job, position, first, each in zip(jobs, before, firsts, codes, strict=True):
            finite = len(each) - (each[-1] == NOT_FINITE)
            kept = position + (first + finite - 1 if finite else 0)
            job.table.rewind(job.table.position - kept)
        return codes

    def _run(self, jobs: Sequence[Job]) -> tuple[list[int], NDArray[np.int_], NDArray[np.int64]]:
        """Tokens of each job's first input, codes drawn for each, and these [steps, jobs]."""
        opened, firsts, counts = None, [1] * len(jobs), np.zeros(len(jobs), dtype=np.int_)
        if any(job.turn.unit is None for job in jobs):
            placed = [job.turn.place(job.table) for job in jobs]
            # it runs while the other steps are packed
            opened, firsts = self._opened(self._open(jobs, placed))[: len(jobs)], [each.count for each in placed]
            counts += 1
        codes = [min(self.burst, job.turn.left) - int(count) for job, count in zip(jobs, counts, strict=True)]
        going = [index for index, count in enumerate(codes) if count > 0]
        counts += codes
        steps = self._ahead([jobs[index] for index in going], [codes[index] for index in going]) if going else None
        out = np.full((int(counts.max()), len(jobs)), NOT_FINITE, dtype=np.int64)
        read = self._drawn(opened, steps).cpu().numpy()
        if opened is not None:
            out[0] = read[: len(jobs)]
            read = read[len(jobs) :]
        if steps is not None:
            out[len(out) - len(steps.lines) :, going] = read.reshape(len(steps.lines), -1)[:, : len(going)]
        return firsts, counts, out

    def _drawn(self, opened: Tensor | None, steps: _Steps | None) -> Tensor:
        """int64: codes of the opening [jobs], then those of the steps [steps, N]. Nothing waits for the device."""
        first = 0 if opened is None else len(opened)
        size, lines = (0, ()) if steps is None else (steps.like.size, steps.lines)
        out = torch.empty(first + len(lines) * size, dtype=torch.int64, device=self._device)
        if opened is not None:
            out[:first] = opened
        if steps is not None:
            graph = self._going_on(steps.like)
            for line, codes in zip(lines, out[first:].view(-1, size), strict=True):
                codes.copy_(self._call(graph, (line,), replays=True))
        return out

    def _told(self, drawn: NDArray[np.int64], counts: NDArray[np.int_]) -> list[list[int]]:
        """Each job's codes up to the one that ended it. `drawn` [steps, jobs], of which `counts` [jobs] are a job's."""
        ends = ((drawn == self._model.config.end_code) | (drawn == NOT_FINITE)) & (np.arange(len(drawn))[:, None] < counts)
        used = np.where(ends.any(0), ends.argmax(0) + 1, counts)
        return [codes[:count] for codes, count in zip(drawn.T.tolist(), used.tolist(), strict=True)]

    def _open(self, jobs: Sequence[Job], placed: Sequence[Appended]) -> _Opening:
        batch = self._shapes.mixed(placed)
        begins = [job.turn.unit is None for job in jobs]
        inputs = [Input(job.turn.feeds_code, job.turn.waiting[0] if new else None) for job, new in zip(jobs, begins, strict=True)]
        tokens = Tokens.of(inputs, batch.size)
        padding = batch.pages.shape[0] - len(jobs)
        rows = [job.row for job in jobs] + [self._spare] * padding
        rules = [job.turn.rule().fields if new else NO_RULE for job, new in zip(jobs, begins, strict=True)] + [NO_RULE] * padding
        numbers = np.concatenate([tokens.ids, tokens.hidden_at, np.array(rows), np.array(rules).ravel()])
        return _Opening(batch, self._upload(torch.from_numpy(numbers)), self._hidden(tokens.hidden, batch))

    def _hidden(self, given: Tensor, batch: RaggedBatch) -> Tensor:
        """[T, llm_dim] on the device, at least one line; a line for every token of the batch where a graph asks for one shape."""
        lines = batch.size if self._replays(batch) else max(len(given), 1)
        out = torch.zeros((lines, self._model.config.llm_dim), dtype=self._model.dtype, device=self._device)
        if len(given):
            out[: len(given)] = self._upload(given.to(self._model.dtype))
        return out

    def _ahead(self, jobs: Sequence[Job], counts: Sequence[int]) -> _Steps:
        """Places so many codes ahead, none beyond its unit, and packs all steps."""
        placed = [job.table.append(count) for job, count in zip(jobs, counts, strict=True)]
        like = self._shapes.single(len(jobs), max(job.table.page_count for job in jobs), padded=self.graphs.on)
        packed = pack_steps(placed, like)
        rows = np.full((len(packed), like.size), self._spare, dtype=np.int32)
        fed = np.arange(len(packed))[:, None] < np.array(counts)
        rows[:, : len(jobs)] = np.where(fed, [job.row for job in jobs], self._spare)
        return _Steps(like, self._upload(torch.from_numpy(np.concatenate([packed, rows], axis=1))))

    def _opened(self, opening: _Opening) -> Tensor:
        batch = opening.batch
        given = (batch.packed, opening.numbers, opening.hidden)
        return self._call(self._opening(batch), given, replays=self._replays(batch))

    def _opening(self, batch: RaggedBatch) -> _Graph:
        """Of numbers int64: ids [N], lines of hidden states [N], rows of the sampler [R], rules [R, RULE_FIELDS]."""
        size, height = batch.size, batch.pages.shape[0]

        def run(packed: Tensor, numbers: Tensor, hidden: Tensor) -> Tensor:
            over = batch.over(packed)
            ids, hidden_at, rows, rules = numbers.split_with_sizes([size, size, height, height * RULE_FIELDS])
            self._sampler.begin(rows, rules.view(height, RULE_FIELDS))
            embeddings = self._model.embed(ids, hidden[hidden_at], self._sampler.last[rows[over.rows]])
            return self._sampler.sample(rows[: len(over.sampled)], self._model.logits(embeddings, over))

        def blank() -> tuple[Tensor, ...]:
            hidden = torch.zeros((size, self._model.config.llm_dim), dtype=self._model.dtype, device=self._device)
            numbers = torch.zeros(2 * size + height * (1 + RULE_FIELDS), dtype=torch.int64, device=self._device)
            numbers[2 * size : 2 * size + height] = self._spare
            return torch.zeros_like(batch.packed), numbers, hidden

        return ("opening", *batch.shape), run, blank

    def _going_on(self, like: RaggedBatch) -> _Graph:
        """Of one step's line."""

        def run(line: Tensor) -> Tensor:
            packed, rows = line.split_with_sizes([len(like.packed), like.size])
            rows = rows.long()
            return self._sampler.sample(rows, self._model.continued(self._sampler.last[rows], like.over(packed)))

        def blank() -> tuple[Tensor, ...]:
            return (torch.cat((torch.zeros_like(like.packed), torch.full_like(like.positions, self._spare))),)

        return ("code", like.size, like.pages.shape[1]), run, blank

    def _call(self, graph: _Graph, given: tuple[Tensor, ...], *, replays: bool) -> Tensor:
        key, run, blank = graph
        return self.graphs(key, run, given, blank) if replays and self.graphs.on else run(*given)

    def _replays(self, mixed: RaggedBatch) -> bool:
        return self.graphs.on and self._shapes.replays(mixed)

    def _upload(self, host: Tensor) -> Tensor:
        return host.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else host

    def prepare(self) -> None:
        """Captures the graphs of all shapes that are known to come."""
        if not self.graphs.on:
            return
        for like in self._shapes.singles_to_prepare():
            self.graphs.prepare(*self._going_on(like))
        for batch in self._shapes.mixed_to_prepare():
            self.graphs.prepare(*self._opening(batch))
