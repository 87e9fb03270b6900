"""Speaks in bursts: each session's next codes, drawn behind each other on the device, fed by one upload and read once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from talker_svc.minicpmo45.burst import Burst, Job
from talker_svc.minicpmo45.inputs import Input, Tokens
from talker_svc.minicpmo45.model import TalkerModel
from talker_svc.minicpmo45.sampler import NO_RULE, RULE_FIELDS, CodeSampler
from talker_svc.minicpmo45.shapes import Shapes
from torch_kit.bursts import pack_steps
from torch_kit.graphs import Graphs
from torch_kit.page_table import Appended
from torch_kit.ragged import BUCKETS, RaggedBatch
from torch_kit.staging import Staging

_Graph = tuple[Hashable, Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]
"""Key, function and blank inputs of a graph."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps that feed a code each."""

    like: RaggedBatch
    lines: Tensor
    """int32 [steps, ...] on the host: what `like` takes, then the rows of the sampler [N]."""


class Speaker:
    """One burst draws up to `burst` codes for every job, the first of them behind its unit's condition if one is to begin.

    Units begin in the first step, together with the codes of all others: so weights are read once for both, nobody waits for a forward
    that is not his, and a unit of 25 codes is five bursts of 5. Codes do not depend on `burst`, nor on who else speaks.

    A burst may be launched before the one before has landed: of sessions in mid-unit, as if none ended, and of others. A session that ended
    is stopped on the device, repeats what it drew, and its places are given back when the burst in which it ended lands.
    """

    def __init__(self, model: TalkerModel, sampler: CodeSampler, shapes: Shapes, graphs: Graphs, *, spare: int, burst: int) -> None:
        """`spare`: a row of the sampler that no session has, for padding."""
        self.graphs = graphs
        self.burst = burst
        self._model, self._sampler, self._shapes = model, sampler, shapes
        self._spare = spare
        self._device = sampler.last.device
        self._staging = Staging(self._device)

    def launch(self, jobs: Sequence[Job]) -> Burst:
        """Gives the device what is next. At most one other burst may not have landed. An exception leaves everything as it was."""
        before = [job.table.position for job in jobs]
        self._staging.begin()
        self._sampler.keep()
        try:
            burst = self._launched(jobs, before)
        except Exception:
            for job, position in zip(jobs, before, strict=True):
                job.table.rewind(job.table.position - position)
            self._sampler.restore()
            self._staging.undo()
            raise
        return burst

    def speak(self, jobs: Sequence[Job]) -> list[list[int] | None]:
        """A burst, launched and landed: see `Burst.codes`."""
        return self.launch(jobs).codes()

    def _launched(self, jobs: Sequence[Job], before: list[int]) -> Burst:
        drawn, firsts, counts = [], [1] * len(jobs), [min(self.burst, job.turn.left) for job in jobs]
        opens = any(job.turn.unit is None for job in jobs)
        if opens:
            placed = [job.turn.place(job.table) for job in jobs]
            firsts = [each.count for each in placed]
            # it runs while the other steps are packed; its codes lie where graphs that were captured before have their scratch
            codes = self._opened(jobs, placed)
            drawn.append(codes.clone() if self.graphs.on else codes)
        going = [index for index, count in enumerate(counts) if count > opens]
        steps, size = 0, 0
        if going:
            ahead = self._ahead([jobs[index] for index in going], [counts[index] - opens for index in going])
            steps, size = len(ahead.lines), ahead.like.size
            drawn += self._stepped(ahead)
        read = self._read(drawn)
        landing = self._staging.end()
        units = [job.turn.asks(count) for job, count in zip(jobs, counts, strict=True)]
        first = len(read) - steps * size
        opened, stepped = read[: min(first, len(jobs))], read[first:].reshape(steps, size)
        return Burst(jobs, units, before, firsts, np.array(counts), opened, stepped, going, landing, self._model.config.end_code)

    def _read(self, drawn: Sequence[Tensor]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """int64, one behind the other; there once the burst has landed."""
        out = self._staging.take("codes", (sum(each.numel() for each in drawn),), torch.int64)
        place = 0
        for each in drawn:
            out[place : place + each.numel()].view(each.shape).copy_(each, non_blocking=True)
            place += each.numel()
        return out.numpy()

    def _opened(self, jobs: Sequence[Job], placed: Sequence[Appended]) -> Tensor:
        """Codes [R] of the step in which units begin; who is in mid-unit feeds a code beside them."""
        batch = self._shapes.mixed(placed)
        begins = [job.turn.unit is None for job in jobs]
        inputs = [Input(job.turn.feeds_code, job.turn.waiting[0] if new else None) for job, new in zip(jobs, begins, strict=True)]
        tokens = Tokens.of(inputs, batch.size)
        size, height = batch.size, batch.pages.shape[0]
        numbers = self._staging.take("numbers", (2 * size + height * (1 + RULE_FIELDS),), torch.int64)
        filled = numbers.numpy()
        filled[:size], filled[size : 2 * size] = tokens.ids, tokens.hidden_at
        rows, rules = filled[2 * size : 2 * size + height], filled[2 * size + height :].reshape(height, RULE_FIELDS)
        rows[: len(jobs)], rows[len(jobs) :] = [job.row for job in jobs], self._spare
        rules[: len(jobs)] = [job.turn.rule().fields if new else NO_RULE for job, new in zip(jobs, begins, strict=True)]
        rules[len(jobs) :] = 0
        replays = self.graphs.on and self._shapes.replays(batch)
        hidden = self._hidden(tokens, self._lines if replays else None)
        packed = batch.packed
        if packed.device.type == "cpu":
            packed = self._staging.take("packed", tuple(packed.shape), packed.dtype).copy_(packed)
        return self._call(self._opening(batch, hidden), (packed, numbers), replays=replays)

    def _hidden(self, tokens: Tokens, held: Tensor | None) -> Tensor:
        """[T, llm_dim] on the device, at least one line; in `held`, if given."""
        lines, dim = max(tokens.lines, 1), self._model.config.llm_dim
        staged = self._staging.take("hidden", (lines, dim), self._model.dtype)
        if tokens.hidden:
            torch.cat(tokens.hidden, out=staged)
        else:
            staged.zero_()
        if held is None:
            return staged.to(self._device, non_blocking=True)
        held[:lines].copy_(staged, non_blocking=True)
        return held

    @cached_property
    def _lines(self) -> Tensor:
        """Graphs of openings read it where it lies: no batch of theirs has more text tokens."""
        return torch.zeros((BUCKETS[-1], self._model.config.llm_dim), dtype=self._model.dtype, device=self._device)

    def _ahead(self, jobs: Sequence[Job], counts: Sequence[int]) -> _Steps:
        """Places so many codes ahead, none beyond its unit, and packs all steps."""
        placed = [job.table.append(count) for job, count in zip(jobs, counts, strict=True)]
        like = self._shapes.single(len(jobs), max(job.table.page_count for job in jobs), padded=self.graphs.on)
        steps, length = max(counts), len(like.packed)
        lines = self._staging.take("lines", (steps, length + like.size), torch.int32)
        filled = lines.numpy()
        pack_steps(placed, like, out=filled[:, :length])
        rows = filled[:, length:]
        rows[:, len(jobs) :] = self._spare
        fed = np.arange(steps)[:, None] < np.array(counts)
        rows[:, : len(jobs)] = np.where(fed, [job.row for job in jobs], self._spare)
        return _Steps(like, lines)

    def _stepped(self, steps: _Steps) -> list[Tensor]:
        """Codes [steps, N] in as few graphs as there are; each is fed by what the last one left."""
        drawn, place = [], 0
        while place < len(steps.lines):
            count = next(count for count in self._counts() if count <= len(steps.lines) - place)
            codes = self._call(self._going_on(steps.like, count), (steps.lines[place : place + count],), replays=True)
            place += count
            # the next graph may be this one again
            drawn.append(codes if place == len(steps.lines) or not self.graphs.on else codes.clone())
        return drawn

    def _counts(self) -> Sequence[int]:
        """Steps for which there are graphs: a burst, one behind an opening, and a single one of which all others are made."""
        return sorted({self.burst, max(self.burst - 1, 1), 1}, reverse=True) if self._shapes.joins else (1,)

    def _opening(self, batch: RaggedBatch, hidden: Tensor) -> _Graph:
        """Of numbers int64: ids [N], lines of hidden states [N], rows of the sampler [R], rules [R, RULE_FIELDS]; over `hidden`."""
        size, height = batch.size, batch.pages.shape[0]

        def run(packed: Tensor, numbers: Tensor) -> Tensor:
            over = batch.over(packed)
            ids, hidden_at, rows, rules = numbers.split_with_sizes([size, size, height, height * RULE_FIELDS])
            self._sampler.begin(rows, rules.view(height, RULE_FIELDS))
            embeddings = self._model.embed(ids, hidden[:size], hidden_at, self._sampler.last[rows[over.rows]])
            return self._sampler.sample(rows[: len(over.sampled)], self._model.logits(embeddings, over))

        def blank() -> tuple[Tensor, ...]:
            numbers = torch.zeros(2 * size + height * (1 + RULE_FIELDS), dtype=torch.int64, device=self._device)
            numbers[2 * size : 2 * size + height] = self._spare
            return torch.zeros(len(batch.packed), dtype=torch.int32, device=self._device), numbers

        return ("opening", *batch.shape), run, blank

    def _going_on(self, like: RaggedBatch, count: int) -> _Graph:
        """Of the lines of so many steps."""

        def run(lines: Tensor) -> Tensor:
            rows = lines[:, len(like.packed) :].long()
            fed = self._model.fed(self._sampler.last[rows[0]])
            drawn = []
            for line, row in zip(lines[:, : len(like.packed)].unbind(), rows.unbind(), strict=True):
                codes, fed = self._sampler.sample_next(row, self._model.continued(fed, like.over(line)), self._model.codes)
                drawn.append(codes)
            return torch.stack(drawn)

        def blank() -> tuple[Tensor, ...]:
            line = torch.cat((torch.zeros_like(like.packed), torch.full_like(like.positions, self._spare)))
            return (line.repeat(count, 1),)

        return ("codes", like.size, like.pages.shape[1], count), run, blank

    def _call(self, graph: _Graph, given: tuple[Tensor, ...], *, replays: bool) -> Tensor:
        """`given` on the host or the device."""
        key, run, blank = graph
        if replays and self.graphs.on:
            return self.graphs(key, run, given, blank)
        return run(*(each.to(self._device, non_blocking=True) for each in given))

    def prepare(self) -> None:
        """Captures the graphs of all shapes that are known to come."""
        if not self.graphs.on:
            return
        for like in self._shapes.singles_to_prepare():
            for count in self._counts():
                self.graphs.prepare(*self._going_on(like, count))
        for batch in self._shapes.mixed_to_prepare():
            self.graphs.prepare(*self._opening(batch, self._lines))
