"""Stage `thinker`: hears, sees, decides and writes; all sessions that have something to do go through the networks together."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import torch
from parley_stage.v1 import stage_pb2

from minicpmo45.config import SAMPLE_RATE_IN, UNIT_MS, read_config
from minicpmo45.memory_plan import SCALE_BYTES, PlanError, session_pages
from minicpmo45.slots import planned
from minicpmo45.weights import Change, thinker_weights
from stage_kit import Append, Card, Engine, InvalidConfig, Label, SessionOver, Slot
from stage_kit.logs import logger
from thinker_svc.minicpmo45.camera import refuse
from thinker_svc.minicpmo45.configuration import SessionConfig, frozen_changes, session_config
from thinker_svc.minicpmo45.model import PREFIX, ThinkerModel, decoder_config
from thinker_svc.minicpmo45.perception import Perception
from thinker_svc.minicpmo45.prefixes import Prefixes
from thinker_svc.minicpmo45.row import Row
from thinker_svc.minicpmo45.sampler import Sampling
from thinker_svc.minicpmo45.script import Script
from thinker_svc.minicpmo45.session import Overflow, Session
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from thinker_svc.minicpmo45.speaking import finish_unit
from thinker_svc.minicpmo45.stepper import Stepper
from thinker_svc.minicpmo45.template import AUDIO_ROWS, audio_rows, prefix_tail
from thinker_svc.minicpmo45.unit import UnitRules
from thinker_svc.minicpmo45.vocabulary import Vocabulary
from thinker_svc.minicpmo45.voice import named_voices
from thinker_svc.minicpmo45.yielding import yield_card
from torch_kit.decoder_weights import join, matrix_names, narrow
from torch_kit.draws import session_seed
from torch_kit.faults import device_lost
from torch_kit.fp8 import FP8
from torch_kit.memory import taken
from torch_kit.page_table import PageTable
from torch_kit.pages import PAGE, PagePool
from torch_kit.tiles import Tiling

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": FP8}
_FP8_SINCE = (8, 9)
"""Compute capability from which on kernels can round to e4m3."""
_ERROR = stage_pb2.StageError
log = logger()


class MiniCpmThinkerEngine(Engine):
    """One step feeds the next tokens of every session that has some: prefixes, units, decided tokens, in one forward."""

    def __init__(self, settings: MiniCpmThinkerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads sizes, vocabulary and the named voices. Raises CheckpointError and PlanError."""
        self._clock = clock
        if settings.device != "cpu":
            yield_card()
        self._config = read_config(settings.checkpoint)
        settings, self._plan = planned("thinker", settings, self._config)
        self._settings = settings
        self._vocabulary = Vocabulary.read(settings.checkpoint, self._config.llm.vocab_size)
        self._named = named_voices(settings.checkpoint, settings.voices, settings.voice_s)
        self._device = torch.device(settings.device)
        on_cpu = self._device.type == "cpu"
        self._dtype = _DTYPES["float32" if settings.dtype == "auto" and on_cpu else settings.dtype.replace("auto", "bfloat16")]
        self._kv_dtype = self._dtype if settings.kv_dtype == "auto" else _DTYPES[settings.kv_dtype]
        for name in ("kv_dtype", "weights_dtype"):
            if getattr(settings, name) == "fp8":
                _check_fp8(name, settings.kernels, self._device)
        self._reserve = session_pages(settings.window_tokens)
        llm = self._config.llm
        vector = llm.head_dim * self._kv_dtype.itemsize + (SCALE_BYTES if self._kv_dtype == FP8 else 0)
        session = self._reserve * PAGE * llm.layers * 2 * llm.kv_heads * vector
        self.card = Card(
            stage="thinker",
            engine="minicpmo45",
            model="minicpm-o-4.5",
            reads=("audio", "image"),
            makes=("decision", "text", "thought", "unit_note"),
            slots=settings.slots,
            batch=settings.slots,
            input_rate=SAMPLE_RATE_IN,
            unit_ms=UNIT_MS,
            kv_bytes=settings.slots * session,
            kv_bytes_per_session=session,
            capabilities=("frames", "continuation", "early_close", "recap", "unit_log"),
        )
        self._rows = list(range(settings.slots - 1, -1, -1))
        self._complete: dict[Session, None] = {}
        """Sessions with a unit that came since the step before."""
        self._prefixes = Prefixes()
        self._threads = ThreadPoolExecutor(settings.picture_threads, thread_name_prefix="pictures")
        self._pool: PagePool
        self._model: ThinkerModel
        self._perception: Perception
        self._stepper: Stepper

    def load(self) -> None:
        """Reads the weights and takes the memory of all sessions. Raises CheckpointError, WeightError, BadScript, and ValueError:
        the kernels do not serve the device."""
        settings, config = self._settings, self._config
        log.info("memory plan", **self._plan)
        weights = thinker_weights(settings.checkpoint, self._device, self._dtype, self._narrow())
        join(weights, decoder_config(config.llm), PREFIX)
        if self._device.type == "cuda":
            # what was joined goes back to the card before the sessions' memory is taken, for the plan counts weights once
            torch.cuda.empty_cache()
        script = None
        if settings.script is not None:
            script = Script.read(settings.script, self._vocabulary.tokens, self._vocabulary.size, self._device)
        self._pool = PagePool(
            layers=config.llm.layers,
            kv_heads=config.llm.kv_heads,
            head_dim=config.llm.head_dim,
            pages=settings.slots * self._reserve + 1,
            dtype=self._kv_dtype,
            device=self._device,
        )
        tiling = Tiling(pages=self._reserve, rows=settings.slots) if settings.kernels == "fused" else None
        self._model = ThinkerModel(
            weights, config.llm, self._vocabulary, self._pool, settings.slots, script, plain=settings.plain, tiling=tiling
        )
        self._perception = Perception(weights, config, settings.slots, plain=settings.plain, kernels=settings.kernels)
        queries = config.vision.queries
        self._stepper = Stepper(self._model, self._perception, self._prefixes, queries, self._clock, draft=settings.draft)
        self._warm_up()

    def _narrow(self) -> Change | None:
        """What the weights' type makes of a tensor that was read."""
        if self._settings.weights_dtype == "auto":
            return None
        names = matrix_names(decoder_config(self._config.llm), PREFIX)
        return lambda name, tensor: narrow(name, tensor) if name in names else {name: tensor}

    def validate(self, config: dict[str, Any]) -> SessionConfig:
        """See `session_config`; a prefix that takes more than half of the window is refused. Raises InvalidConfig."""
        found = session_config(config, self._named, self._settings.voice_s, self._settings.window_tokens, self._vocabulary.size)
        voice = 0 if found.voice is None else len(found.voice.samples()) * 10 // SAMPLE_RATE_IN + 1
        recap = min(found.window.previous_tokens, len(self._vocabulary.encode(found.previous)))
        rest = prefix_tail(self._vocabulary, [0] * recap, voice=voice > 0).rows
        if len(self._vocabulary.encode(found.instructions)) + voice + rest > self._settings.window_tokens // 2:
            raise InvalidConfig("instructions", f"with voice and recap more than {self._settings.window_tokens // 2} tokens")
        return found

    def open(self, slot: Slot) -> None:
        """Sets the session's pages aside. Raises PoolExhausted, which is a MemoryError."""
        table = PageTable(self._pool, self._reserve)
        row = self._rows.pop()
        config: SessionConfig = slot.config
        slot.state = Session(row, table, self._reserve, config, self._vocabulary, self._settings.unit_frames, self._clock())
        _session(slot).epoch = slot.epoch
        self._perception.open(row)
        self._model.forget(row)
        self._tune(slot, config)

    def close(self, slot: Slot) -> None:
        """Frees pages and row."""
        session = _session(slot)
        session.table.release()
        self._complete.pop(session, None)
        self._prefixes.tidy()
        self._perception.close(session.row)
        self._rows.append(session.row)

    def configured(self, slot: Slot) -> None:
        """The next token is drawn in the new manner. Instructions, voice and recap: see FROZEN; until the first unit the prefix is made
        anew."""
        session = _session(slot)
        config: SessionConfig = slot.config
        changes = frozen_changes(session.config, config)
        held = [name for name in changes if session.begun or (name == "unit_log" and session.gather.begun)]
        if held:
            config = msgspec.structs.replace(config, **{name: getattr(session.config, name) for name in held})
            slot.fail(Label(slot.epoch), f"{held[0]} holds from the first unit on", code=_ERROR.CODE_FAILED_PRECONDITION, param=held[0])
        session.config = config
        if changes and not session.begun:
            session.table.release()
            session.shared = None
            self._prefixes.tidy()
            session.table = PageTable(self._pool, self._reserve)
            session.begin_prefix()
        self._tune(slot, config)

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes sound, a frame or a control in."""
        session = _session(slot)
        if append.samples is not None:
            self._hear(slot, session, append)
            return
        kind = append.payload.WhichOneof("value") if append.payload is not None else None
        if kind == "image":
            session.camera.receive(slot, append, session.shown, self._threads, self._config.vision, session.config.max_slices)
        elif kind == "control" and append.payload is not None:
            self._obey(slot, session, append, append.payload.control)

    def cleared(self, slot: Slot) -> None:
        """Forgets sound and frames that no unit has."""
        _session(slot).clear()

    def cancelled(self, slot: Slot) -> None:
        """The turn in progress ends inside the model, and nothing more of it is emitted; the next unit listens."""
        session = _session(slot)
        if session.epoch < slot.epoch:
            session.epoch = slot.epoch
            unit = session.break_off()
            if unit is not None:
                finish_unit(slot, session, unit)

    def failed(self, slot: Slot, label: Label) -> None:
        """Nothing to drop: a step that failed left the session as it was."""

    def fatal(self, error: Exception) -> bool:
        """See `device_lost`."""
        return device_lost(error)

    def kv_pages(self) -> tuple[int, int] | None:
        """See Engine."""
        pool: PagePool | None = getattr(self, "_pool", None)
        return None if pool is None else (pool.held, pool.pages - 1)

    def ready(self, slot: Slot) -> float | None:
        """Monotonic second by which its next tokens should be fed."""
        session = _session(slot)
        if session.camera.frames:
            session.camera.settle(slot)
        return session.urgency(self._clock())

    def step(self, slots: list[Slot]) -> None:
        """Feeds the next tokens of all these sessions. Raises SessionOver for one that cannot go on, after the work of all others."""
        for slot in slots:
            self.cancelled(slot)
        sound = [slot for slot in slots if _session(slot).failure is None]
        # these take part themselves, or wait for something else
        self._complete.clear()
        self._stepper.step(sound, self._completed)
        for slot in slots:
            failure = _session(slot).failure
            if isinstance(failure, Overflow):
                raise SessionOver(slot, str(failure), code=_ERROR.CODE_LIMIT_EXCEEDED, param="window_tokens") from failure
            if failure is not None:
                raise SessionOver(slot, str(failure)) from failure

    def _completed(self, done: Callable[[], bool]) -> list[Session]:
        """Sessions that got a unit while the device worked."""
        self.wait(done)
        return list(self._complete)

    def _warm_up(self) -> None:
        """A unit of silence and a token."""
        tokens, table = self._vocabulary.tokens, PageTable(self._pool, self._reserve)
        self._model.tune(0, Sampling(), UnitRules(), 0)
        silence = torch.zeros(AUDIO_ROWS, self._config.llm.hidden_size, dtype=self._dtype, device=self._device)
        self._model.step([Row(0, table.append(AUDIO_ROWS), audio_rows().ids, (silence,), 0, opens=False)])
        self._model.step([Row(0, table.append(1), np.array([tokens.speak], np.int64), unit=0)])
        table.release()
        pages = session_pages(min(self._settings.warm_tokens, self._settings.window_tokens))
        self._model.warm_up(self._settings.slots, pages, draft=self._settings.draft)
        self._perception.warm_up()
        log.info("memory taken", stage=self.card.stage, planned_bytes=self._plan.get("stage_bytes"), **taken(self._device))

    def _tune(self, slot: Slot, config: SessionConfig) -> None:
        seed = session_seed(slot.session_id) if config.seed is None else config.seed
        self._model.tune(_session(slot).row, config.sampling, config.rules, seed)

    def _hear(self, slot: Slot, session: Session, append: Append) -> None:
        samples = append.samples
        assert samples is not None
        if not np.isfinite(samples).all():
            refuse(slot, append, "audio", "holds NaN or infinity; heard as silence")
            samples = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
        session.gather.push(samples, append.start_ms, append.end_ms, append.arrived or self._clock())
        if session.gather.waiting:
            self._complete[session] = None
        if session.gather.held_ms(session.config.listen_until_ms) > self._settings.input_s * 1000:
            session.gather.clear()
            why = f"more than {self._settings.input_s:g} s of sound wait"
            raise SessionOver(slot, why, code=_ERROR.CODE_LIMIT_EXCEEDED, param="input_s")

    def _obey(self, slot: Slot, session: Session, append: Append, control: stage_pb2.Control) -> None:
        """Closes the open unit with silence, if real sound did not complete the unit that ends by `start_ms` first, and all before it are
        decided: to go on with the turn that is in progress, or early, where none is. Passes over silence behind a unit that was closed
        early."""
        gather, turn = session.gather, session.turn_label
        decided = session.undecided is None and not gather.waiting and not gather.replays
        open_still = decided and control.start_ms >= gather.start_ms + UNIT_MS
        if control.kind == stage_pb2.Control.KIND_CONTINUE:
            if open_still and turn is not None and (append.label.epoch, append.label.turn) == (slot.epoch, turn.turn):
                gather.silence(append.arrived or self._clock())
        elif control.kind == stage_pb2.Control.KIND_CLOSE_UNIT:
            if open_still and turn is None:
                gather.close(append.arrived or self._clock())
        elif control.kind == stage_pb2.Control.KIND_SKIP_SILENCE:
            gather.skip(control.start_ms, control.end_ms)


def _check_fp8(name: str, kernels: str, device: torch.device) -> None:
    """Raises PlanError that names the setting: our kernels do not round to fp8 on this card; torch does on any."""
    if kernels == "fused" and device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_SINCE:
        have, want = (".".join(map(str, pair)) for pair in (torch.cuda.get_device_capability(device), _FP8_SINCE))
        raise PlanError(name, f"fp8 with fused kernels needs compute capability {want}, {device} has {have}")


def _session(slot: Slot) -> Session:
    state: Session = slot.state
    return state
