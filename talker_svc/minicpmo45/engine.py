"""Stage `talker`: reads a turn's thoughts unit by unit, answers its speech codes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from parley_stage.v1 import stage_pb2
from torch import Tensor

from minicpmo45.config import CODE_RATE, UNIT_MS, read_config
from minicpmo45.weights import talker_weights
from stage_kit import Append, Card, Engine, Label, Slot
from talker_svc.minicpmo45.model import Input, TalkerModel
from talker_svc.minicpmo45.sampler import NOT_FINITE, CodeSampler, Manner, UnitRule
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings, SessionConfig, session_config
from talker_svc.minicpmo45.thoughts import BadThought, Words, words
from talker_svc.minicpmo45.turn import Piece, Turn
from torch_kit.draws import session_seed
from torch_kit.graphs import Graphs
from torch_kit.page_table import Appended, PageTable
from torch_kit.pages import PAGE, PagePool, pages_for
from torch_kit.ragged import BUCKETS, WIDTHS, RaggedBatch, bucket, width

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(slots=True)
class Session:
    """What the engine holds of a slot."""

    row: int
    """Of the sampler."""
    table: PageTable
    turns: dict[Label, Turn] = field(default_factory=dict)
    """In order; only the first may have begun, and the table is its."""
    ignored: set[Label] = field(default_factory=set)
    """Turns that failed here while more of them was to come."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row of a step."""

    slot: Slot
    session: Session
    turn: Turn


class MiniCpmTalkerEngine(Engine):
    """One step draws one code for every session that speaks: those that begin a unit forward its condition, the others one code."""

    def __init__(self, settings: MiniCpmTalkerSettings) -> None:
        """Reads the sizes. Raises CheckpointError."""
        self._settings = settings
        self._config = read_config(settings.checkpoint).talker
        self._device = torch.device(settings.device)
        on_cpu = self._device.type == "cpu"
        self._dtype = _DTYPES["float32" if settings.dtype == "auto" and on_cpu else settings.dtype.replace("auto", "bfloat16")]
        self._pages = pages_for(settings.positions)
        config = self._config
        page_bytes = config.layers * 2 * config.kv_heads * PAGE * config.head_dim * self._dtype.itemsize
        self.card = Card(
            stage="talker",
            engine="minicpmo45",
            model="minicpm-o-4.5-talker",
            reads=("thought",),
            makes=("codes",),
            slots=settings.slots,
            batch=settings.slots,
            unit_ms=UNIT_MS,
            kv_bytes=settings.slots * self._pages * page_bytes,
            kv_bytes_per_session=self._pages * page_bytes,
        )
        self._model: TalkerModel
        self._sampler: CodeSampler
        self._graphs: Graphs
        self._pool: PagePool
        self._rows: list[int] = []

    def load(self) -> None:
        """Reads the weights, takes the memory of all sessions, speaks once. Raises CheckpointError and WeightError."""
        config, settings = self._config, self._settings
        weights = talker_weights(settings.checkpoint, self._device, self._dtype)
        self._pool = PagePool(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            pages=settings.slots * self._pages + 1,
            dtype=self._dtype,
            device=self._device,
        )
        self._model = TalkerModel(weights, config, self._pool)
        self._graphs = Graphs(self._device, plain=settings.plain)
        # behind the sessions one row for padding, which nobody reads
        self._sampler = CodeSampler(settings.slots + 1, codes=config.codes, min_piece=settings.min_piece_codes, device=self._device)
        self._sampler.tune(settings.slots, Manner())
        self._rows = list(range(settings.slots - 1, -1, -1))
        self._warm_up()

    def validate(self, config: dict[str, Any]) -> SessionConfig:
        """See `session_config`. Raises InvalidConfig."""
        return session_config(config)

    def open(self, slot: Slot) -> None:
        """Sets the session's pages aside. Raises PoolExhausted, which is a MemoryError."""
        table = PageTable(self._pool, self._pages)
        slot.state = Session(self._rows.pop(), table)
        self.configured(slot)

    def close(self, slot: Slot) -> None:
        """Frees the pages and the row."""
        session: Session = slot.state
        session.table.release()
        self._rows.append(session.row)

    def configured(self, slot: Slot) -> None:
        """The next code is drawn in the new manner."""
        config: SessionConfig = slot.config
        seed = session_seed(slot.session_id) if config.seed is None else config.seed
        self._sampler.tune(slot.state.row, Manner(config.temperature, config.repetition_penalty, config.greedy, seed))

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes a unit in; with `last` the turn is complete. A unit of another turn completes the ones before."""
        session, label = _session(slot), append.label
        if label in session.ignored:
            if append.last:
                session.ignored.discard(label)
            return
        try:
            unit = self._words(append)
        except BadThought as error:
            slot.fail(label, str(error), code=stage_pb2.StageError.CODE_INVALID_ARGUMENT, param=error.param)
            self._drop(session, label, ignore=not append.last)
            return
        if label not in session.turns:
            for turn in session.turns.values():
                turn.complete = True
            session.turns[label] = Turn(label, self._settings)
        turn = session.turns[label]
        if unit is not None:
            turn.waiting.append(unit)
        turn.complete = turn.complete or append.last

    def cancelled(self, slot: Slot) -> None:
        """Forgets the turns of lower epochs."""
        session = _session(slot)
        for label in [label for label in session.turns if label.epoch < slot.epoch]:
            self._drop(session, label, ignore=False)
        session.ignored = {label for label in session.ignored if label.epoch >= slot.epoch}

    def failed(self, slot: Slot, label: Label) -> None:
        """Forgets the turn, and ignores what else comes of it."""
        session = _session(slot)
        turn = session.turns.get(label)
        self._drop(session, label, ignore=turn is None or not turn.complete)

    def ready(self, slot: Slot) -> float | None:
        """The first unit of a turn is the most urgent."""
        turn = _first(_session(slot))
        if turn is None or not turn.busy:
            return None
        return 0.0 if turn.opening else 1.0

    @torch.inference_mode()
    def step(self, slots: list[Slot]) -> None:
        """One code for each slot."""
        jobs: list[Job] = []
        for slot in slots:
            session = _session(slot)
            turn = _first(session)
            if turn is None:
                continue
            slot.working = turn.label
            if turn.over:
                self._send(Job(slot, session, turn), Piece([], last=True))
            elif turn.busy:
                jobs.append(Job(slot, session, turn))
        if jobs:
            self._speak(jobs)

    def _speak(self, jobs: list[Job]) -> None:
        placed: list[Appended] = []
        try:
            for job in jobs:
                placed.append(job.turn.place(job.session.table))
            goes_on = self._graphs.on and all(job.turn.unit is not None for job in jobs)
            codes = self._go_on(jobs, placed) if goes_on else self._draw(jobs, placed)
        except Exception:
            for job, appended in zip(jobs, placed, strict=False):
                job.session.table.rewind(appended.count)
            raise
        for job, appended, code in zip(jobs, placed, codes, strict=True):
            if code == NOT_FINITE:
                job.session.table.rewind(appended.count)  # a turn without a unit clears nothing
                job.slot.fail(job.turn.label, "the talker's logits are not finite")
                self.failed(job.slot, job.turn.label)
                continue
            job.turn.fed()
            for piece in job.turn.drew(code, self._config.end_code):
                self._send(job, piece)

    def _draw(self, jobs: list[Job], placed: list[Appended]) -> list[int]:
        """One code a job, or NOT_FINITE."""
        begin = [job for job in jobs if job.turn.unit is None]
        if begin:
            self._sampler.begin([job.session.row for job in begin], [job.turn.rule() for job in begin])
        inputs = [Input(job.turn.feeds_code, job.turn.waiting[0] if job.turn.unit is None else None) for job in jobs]
        feeding = [job.session.row for job, each in zip(jobs, inputs, strict=True) if each.code]
        embeddings = self._model.embed(inputs, self._sampler.last[self._upload(feeding)])
        batch, rows = RaggedBatch.of(placed), self._upload([job.session.row for job in jobs])
        codes: list[int] = self._sampler.sample(rows, self._model.logits(embeddings, batch)).tolist()
        return codes

    def _go_on(self, jobs: list[Job], placed: list[Appended]) -> list[int]:
        """As `_draw`, where every job feeds one code: the same kernels for all batches of a padded size, replayed from a graph."""
        batch = RaggedBatch.steps(placed)
        rows = self._upload([job.session.row for job in jobs] + [self._settings.slots] * (batch.size - len(jobs)))
        key, run, blank = self._going_on(batch)
        codes: list[int] = self._graphs(key, run, (batch.packed, rows), blank)[: len(jobs)].tolist()
        return codes

    def _going_on(self, batch: RaggedBatch) -> tuple[Hashable, Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]:
        """Key, function and blank inputs of a graph."""

        def run(packed: Tensor, rows: Tensor) -> Tensor:
            return self._sampler.sample(rows, self._model.continued(self._sampler.last[rows], batch.over(packed)))

        def blank() -> tuple[Tensor, ...]:
            return torch.zeros_like(batch.packed), self._upload([self._settings.slots] * batch.size)

        return (batch.size, batch.pages.shape[1]), run, blank

    def _upload(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device)

    def _send(self, job: Job, piece: Piece) -> None:
        turn, finish = job.turn, None
        if piece.last:
            reason = stage_pb2.Finish.REASON_LENGTH if piece.cut_short else stage_pb2.Finish.REASON_STOP
            finish = stage_pb2.Finish(reason=reason, input_tokens=turn.tokens, output_tokens=turn.codes)
            self._drop(job.session, turn.label, ignore=False)
        payload = stage_pb2.Payload(codes=stage_pb2.Codes(codes=piece.codes, rate_hz=CODE_RATE)) if piece.codes else None
        job.slot.emit(payload, turn.label, last=piece.last, finish=finish)

    def _drop(self, session: Session, label: Label, *, ignore: bool) -> None:
        turn = session.turns.pop(label, None)
        if turn is not None and turn.units:
            session.table.clear()
        if ignore:
            session.ignored.add(label)

    def _words(self, append: Append) -> Words | None:
        if append.payload is None or not append.payload.HasField("thought"):
            return None
        return words(append.payload.thought, self._config, self._settings.thought_tokens)

    def _warm_up(self) -> None:
        """Two steps of one session, a condition and a code; then the graphs of all sizes."""
        table = PageTable(self._pool, 1)
        nothing = Words((0,), torch.zeros(1, self._config.llm_dim), turn_end=False)
        row = self._upload([0])
        self._sampler.tune(0, Manner())
        self._sampler.begin([0], [UnitRule(0, 0, ending=False)])
        for each in (Input(code=False, words=nothing), Input(code=True, words=None)):
            embeddings = self._model.embed([each], self._sampler.last[row[: int(each.code)]])
            logits = self._model.logits(embeddings, RaggedBatch.of([table.append(each.count)]))
            self._sampler.sample(row, logits)
        table.release()
        if self._graphs.on:
            for size in (size for size in BUCKETS if size <= bucket(self._settings.slots)):
                for wide in (wide for wide in WIDTHS if wide <= width(self._pages)):
                    batch = RaggedBatch.blank(size, wide, gapped=False, device=self._device)
                    self._graphs.prepare(*self._going_on(batch))


def _session(slot: Slot) -> Session:
    session: Session = slot.state
    return session


def _first(session: Session) -> Turn | None:
    return next(iter(session.turns.values()), None)
