"""Stage `talker`: reads a turn's thoughts unit by unit, answers its speech codes."""

from __future__ import annotations

from typing import Any

import torch
from parley_stage.v1 import stage_pb2

from minicpmo45.config import CODE_RATE, UNIT_MS, read_config
from minicpmo45.slots import planned
from minicpmo45.weights import talker_weights
from stage_kit import Append, Card, Engine, Label, Slot, StepFailed
from stage_kit.logs import logger
from talker_svc.minicpmo45.burst import Burst, Job
from talker_svc.minicpmo45.model import Kernels, TalkerModel
from talker_svc.minicpmo45.sampler import NOT_FINITE, CodeSampler, Manner
from talker_svc.minicpmo45.session import Session
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings, SessionConfig, session_config
from talker_svc.minicpmo45.shapes import PlainShapes, Shapes, TiledShapes
from talker_svc.minicpmo45.speaker import Speaker
from talker_svc.minicpmo45.thoughts import BadThought, Words, words
from talker_svc.minicpmo45.turn import Piece, Turn
from torch_kit.draws import session_seed
from torch_kit.faults import device_lost
from torch_kit.graphs import Graphs
from torch_kit.memory import taken
from torch_kit.page_table import PageTable
from torch_kit.pages import PAGE, PagePool, pages_for

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
log = logger()


class MiniCpmTalkerEngine(Engine):
    """One step draws the next codes of every session that speaks: see Speaker."""

    def __init__(self, settings: MiniCpmTalkerSettings) -> None:
        """Reads the sizes. Raises CheckpointError and PlanError."""
        whole = read_config(settings.checkpoint)
        settings, self._plan = planned("talker", settings, whole)
        self._settings = settings
        self._config = whole.talker
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
        self._sampler: CodeSampler
        self._speaker: Speaker
        self._pool: PagePool
        self._rows: list[int] = []
        self._flying: tuple[Burst, list[Slot]] | None = None
        """What has not landed yet, and whom it is for."""

    def load(self) -> None:
        """Reads the weights, takes the memory of all sessions, speaks once. Raises CheckpointError and WeightError."""
        config, settings = self._config, self._settings
        log.info("memory plan", **self._plan)
        weights = talker_weights(settings.checkpoint, self._device, self._dtype)
        self._pool = PagePool(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            pages=settings.slots * self._pages + 1,
            dtype=self._dtype,
            device=self._device,
        )
        # behind the sessions one row for padding, which nobody reads
        self._sampler = _sampler_of(settings.kernels)(
            settings.slots + 1, codes=config.codes, min_piece=settings.min_piece_codes, device=self._device
        )
        self._sampler.tune(settings.slots, Manner())
        self._speaker = Speaker(
            TalkerModel(weights, config, self._pool, settings.kernels),
            self._sampler,
            self._shapes(),
            Graphs(self._device, plain=settings.plain),
            spare=settings.slots,
            burst=settings.codes_per_step,
        )
        self._rows = list(range(settings.slots - 1, -1, -1))
        self._warm_up()

    def validate(self, config: dict[str, Any]) -> SessionConfig:
        """See `session_config`. Raises InvalidConfig."""
        return session_config(config)

    def open(self, slot: Slot) -> None:
        """Sets the session's pages aside. Raises PoolExhausted, which is a MemoryError."""
        table = PageTable(self._pool, self._pages)
        slot.state = Session(self._rows.pop(), table)
        try:
            self.configured(slot)
        except Exception:
            self.close(slot)
            raise

    def close(self, slot: Slot) -> None:
        """Frees the pages and the row."""
        session: Session = slot.state
        for turn in session.turns.values():
            turn.dropped = True
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

    def fatal(self, error: Exception) -> bool:
        """See `device_lost`."""
        return device_lost(error)

    def kv_pages(self) -> tuple[int, int] | None:
        """See Engine."""
        pool: PagePool | None = getattr(self, "_pool", None)
        return None if pool is None else (pool.held, pool.pages - 1)

    def ready(self, slot: Slot) -> float | None:
        """The first unit of a turn is the most urgent."""
        turn = _session(slot).turn
        if turn is None or not turn.busy:
            return None
        return 0.0 if turn.opening else 1.0

    @torch.inference_mode()
    def step(self, slots: list[Slot]) -> None:
        """The next codes of each slot, up to the end of its unit; where it looks ahead, those that the last step gave the device."""
        speaking: list[tuple[Slot, Job]] = []
        for slot in slots:
            session = _session(slot)
            turn = session.turn
            if turn is None:
                continue
            slot.working = turn.label
            if turn.over:
                self._send(slot, turn, Piece([], last=True))
            elif turn.speaks:
                speaking.append((slot, Job(session.row, session.table, turn)))
        launched = (self._speaker.launch([job for _, job in speaking]), [slot for slot, _ in speaking]) if speaking else None
        flying, self._flying = (self._flying, launched) if self._settings.looks_ahead else (launched, None)
        if flying is not None:
            self._land(*flying)

    def _land(self, burst: Burst, slots: list[Slot]) -> None:
        failure: Exception | None = None
        for slot, job, codes in zip(slots, burst.jobs, burst.codes(), strict=True):
            if codes is None:
                continue
            try:
                self._take(slot, job.turn, codes)
            except Exception as error:
                # the others' codes were drawn, too, and will not be drawn again; one failure can be raised, and all are told
                slot.working, failure = job.turn.label, StepFailed(slot, str(error))
                failure.__cause__ = error
                slot.fail(job.turn.label, f"the talker failed ({type(error).__name__})")
                self.failed(slot, job.turn.label)
        if failure is not None:
            raise failure

    def _take(self, slot: Slot, turn: Turn, codes: list[int]) -> None:
        """What was drawn for a slot; its last code may be NOT_FINITE."""
        finite = codes[:-1] if codes[-1] == NOT_FINITE else codes
        for piece in turn.drew(finite, self._config.end_code) if finite else ():
            self._send(slot, turn, piece)
        if len(finite) < len(codes):
            slot.fail(turn.label, "the talker's logits are not finite")
            self.failed(slot, turn.label)

    def _send(self, slot: Slot, turn: Turn, piece: Piece) -> None:
        finish = None
        if piece.last:
            reason = stage_pb2.Finish.REASON_LENGTH if piece.cut_short else stage_pb2.Finish.REASON_STOP
            finish = stage_pb2.Finish(reason=reason, input_tokens=turn.tokens, output_tokens=turn.codes)
            self._drop(_session(slot), turn.label, ignore=False)
        payload = stage_pb2.Payload(codes=stage_pb2.Codes(codes=piece.codes, rate_hz=CODE_RATE)) if piece.codes else None
        slot.emit(payload, turn.label, last=piece.last, finish=finish)

    def _drop(self, session: Session, label: Label, *, ignore: bool) -> None:
        turn = session.turn
        # its first unit may be on its way
        if turn is not None and turn.label == label:
            session.table.clear()
        turn = session.turns.pop(label, None)
        if turn is not None:
            turn.dropped = True
        if ignore:
            session.ignored.add(label)

    def _words(self, append: Append) -> Words | None:
        if append.payload is None or not append.payload.HasField("thought"):
            return None
        return words(append.payload.thought, self._config, self._settings.thought_tokens, self._dtype)

    def _shapes(self) -> Shapes:
        settings = self._settings
        if settings.kernels == "fused":
            return TiledShapes(settings.slots, self._pages, settings.thought_tokens + 2, self._device)
        return PlainShapes(settings.slots, self._pages, self._device)

    def _warm_up(self) -> None:
        """Speaks the first codes of a unit and some more; then the graphs of all sizes."""
        turn, table = Turn(Label(), self._settings), PageTable(self._pool, 2)
        turn.waiting.append(Words((0,), torch.zeros(1, self._config.llm_dim, dtype=self._dtype), turn_end=False))
        self._sampler.tune(0, Manner())
        for _ in range(2):
            codes = self._speaker.speak([Job(0, table, turn)])[0]
            if codes is None or codes[-1] == NOT_FINITE:
                break
            turn.drew(codes, self._config.end_code)
            if turn.unit is None:
                break
        table.release()
        self._speaker.prepare()
        log.info("memory taken", stage=self.card.stage, planned_bytes=self._plan.get("stage_bytes"), **taken(self._device))


def _sampler_of(kernels: Kernels) -> type[CodeSampler]:
    if kernels == "fused":
        # needs Triton, which only machines with CUDA have
        from talker_svc.minicpmo45.fused_sampler import FusedCodeSampler

        return FusedCodeSampler
    return CodeSampler


def _session(slot: Slot) -> Session:
    session: Session = slot.state
    return session
