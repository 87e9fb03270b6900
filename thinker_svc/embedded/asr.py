"""Stage `asr`: what the user said, recognised early and answered once for each item."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Card, Engine, InvalidConfig, Label, Slot
from thinker_svc.embedded.asr_audio import RATE
from thinker_svc.embedded.asr_recognizer import Recognizer
from thinker_svc.embedded.asr_session import Commit, Session, Work
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.asr_task import Purpose, Task

_LANGUAGE = "en"

_log = structlog.get_logger(__name__)


class AsrConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stage configuration. `language` is a BCP 47 tag or empty; this recognizer hears English only."""

    language: str = ""
    prompt: str = ""
    """Taken and not used: the model cannot be primed."""
    partials: bool = True


class AsrEngine(Engine):
    """Moonshine tiny for all sessions, one decode a step: commits first, then pauses, then partials."""

    def __init__(self, settings: AsrSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or AsrSettings()
        self._clock = clock
        self._partials_from = 0.0
        """Monotonic second before which no session gets a partial."""
        self.card = Card(
            stage="asr",
            engine="moonshine-tiny",
            model="moonshine-tiny-en",
            reads=("audio", "decision", "control"),
            makes=("transcript",),
            slots=self._settings.slots,
            batch=1,
            input_rate=RATE,
            capabilities=("partials",),
        )

    def load(self) -> None:
        """Raises ModelMissing."""
        self._recognizer = Recognizer(self._settings)
        self._recognizer.warm_up()

    def validate(self, config: dict[str, Any]) -> AsrConfig:
        try:
            parsed = msgspec.convert(config, AsrConfig)
        except msgspec.ValidationError as error:
            found = re.search(r"unknown field `([^`]*)`|`\$\.([^`]*)`", str(error))
            raise InvalidConfig(next(filter(None, found.groups()), "") if found else "", str(error)) from None
        if parsed.language.lower().split("-")[0] not in ("", _LANGUAGE):
            raise InvalidConfig("language", "this recognizer hears English only")
        return parsed

    def open(self, slot: Slot) -> None:
        slot.state = Session(self._settings, self._recognizer, slot.config.partials)

    def configured(self, slot: Slot) -> None:
        _session(slot).partials = slot.config.partials

    def receive(self, slot: Slot, append: Append) -> None:
        session, now = _session(slot), self._clock()
        session.label = append.label
        if append.samples is not None:
            if not session.take(append.samples, append.start_ms, append.end_ms, now):
                _log.warning("asr.audio_dropped", session_id=slot.session_id, hold_most_ms=self._settings.hold_most_ms)
            return
        kind = append.payload.WhichOneof("value") if append.payload is not None else None
        if append.payload is not None and kind == "decision":
            session.decided(append.payload.decision, append.label)
        elif append.payload is not None and kind == "control":
            self._control(session, append.payload.control, append.label, now)

    def cleared(self, slot: Slot) -> None:
        """Control(CLEAR) raises the input generation, so this is where it takes effect, once."""
        _session(slot).clear()

    def cancelled(self, slot: Slot) -> None:
        """A barge-in touches no input."""

    def ready(self, slot: Slot) -> float | None:
        now = self._clock()
        purpose = _session(slot).urgency(now)
        return None if purpose is None or (purpose is Purpose.PARTIAL and now < self._partials_from) else float(purpose)

    def due(self, slot: Slot) -> float | None:
        session, now = _session(slot), self._clock()
        if (deadline := session.deadline()) is not None:
            return deadline
        return self._partials_from if session.urgency(now) is Purpose.PARTIAL else None

    def step(self, slots: list[Slot]) -> None:
        for slot in slots:
            work = _session(slot).work(self._clock())
            if work is not None:
                self._advance(slot, work)

    def _control(self, session: Session, control: stage_pb2.Control, label: Label, now: float) -> None:
        if control.kind == stage_pb2.Control.KIND_COMMIT:
            session.commit(control, label, now)
        elif control.kind == stage_pb2.Control.KIND_END:
            session.end()

    def _advance(self, slot: Slot, work: Work) -> None:
        session = _session(slot)
        try:
            work.task.advance(self._recognizer)
        except Exception as error:  # a failed early decode must not end the item, which is decoded anew
            self._failed(slot, work, error)
            return
        if not work.task.done:
            return
        if work.purpose is Purpose.COMMIT:
            self._emit(slot, work.task, session.commits.popleft())
            return
        if work.purpose is Purpose.SETTLE:
            session.settle(work.task)
            return
        if work.purpose is Purpose.PARTIAL:
            self._partials_from = self._clock() + work.task.compute_ms / 1000 * (1 / self._settings.partial_share - 1)
        if session.fresh_text(work.task) and session.partials:
            self._emit(slot, work.task)

    def _failed(self, slot: Slot, work: Work, error: Exception) -> None:
        _log.error("asr.decode_failed", session_id=slot.session_id, purpose=work.purpose.name, error=type(error).__name__)
        session = _session(slot)
        if work.purpose is Purpose.COMMIT:
            commit = session.commits.popleft()
            slot.fail(commit.label, "the recognizer failed")
        elif work.purpose is Purpose.SETTLE:
            session.settle(work.task)
        else:
            session.drop(work.task)

    def _emit(self, slot: Slot, task: Task, commit: Commit | None = None) -> None:
        transcript = stage_pb2.Transcript(
            item_id=commit.item_id if commit else "",
            text=task.text,
            final=commit is not None,
            audio_start_ms=commit.start_ms if commit else task.start_ms,
            audio_end_ms=commit.end_ms if commit else task.end_ms,
            language=_LANGUAGE,
            compute_ms=round(task.compute_ms),
        )
        slot.emit(stage_pb2.Payload(transcript=transcript), commit.label if commit else task.label)


def _session(slot: Slot) -> Session:
    session = slot.state
    assert isinstance(session, Session)
    return session
