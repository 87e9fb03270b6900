"""Stage `turn`: when the user speaks, pauses, and is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import structlog
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Card, Engine, InvalidConfig, Slot
from vad_svc.config import TurnConfig, parse
from vad_svc.detector import Verdict
from vad_svc.session import Session
from vad_svc.settings import TurnSettings
from vad_svc.silero import FRAME, RATE, Silero, SileroState
from vad_svc.smart_turn import Scorer, SmartTurn

_KINDS = {
    "speech_started": stage_pb2.Decision.KIND_SPEECH_STARTED,
    "pause": stage_pb2.Decision.KIND_PAUSE,
    "speech_resumed": stage_pb2.Decision.KIND_SPEECH_RESUMED,
    "speech_stopped": stage_pb2.Decision.KIND_SPEECH_STOPPED,
}
_POLL_S = 0.005
"""A session that waits for its score is asked again after this: the kit has no other way to be woken."""

_log = structlog.get_logger(__name__)


class TurnEngine(Engine):
    """Silero for all sessions in one batch on the engine's thread; Smart Turn on a thread of its own.

    A score never changes what is decided by coming late: a session whose next frame could end the turn waits for it, and only that session.
    """

    def __init__(self, settings: TurnSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or TurnSettings()
        self._clock = clock
        self.card = Card(
            stage="turn",
            engine="silero-smart-turn",
            model="silero-vad-v6 smart-turn-v3.2" if self._settings.semantic else "silero-vad-v6",
            reads=("audio",),
            makes=("decision",),
            slots=self._settings.slots,
            batch=self._settings.slots,
            input_rate=RATE,
            capabilities=("server_vad", "semantic_vad") if self._settings.semantic else ("server_vad",),
        )

    def load(self) -> None:
        """Raises ModelMissing, ModelMismatch."""
        root = self._settings.models
        self._silero = Silero(root)
        self._silero.probabilities([SileroState()], [np.zeros(FRAME, np.float32)])
        self._scorer = Scorer(SmartTurn(root)) if self._settings.semantic else None
        if self._scorer is not None:
            self._scorer.submit(np.zeros(RATE, np.float32)).result()

    def validate(self, config: dict[str, Any]) -> TurnConfig:
        parsed = parse(config, self._settings)
        if parsed.mode == "semantic_vad" and not self._settings.semantic:
            raise InvalidConfig("mode", "semantic_vad is not offered here")
        return parsed

    def open(self, slot: Slot) -> None:
        slot.state = Session(self._settings, slot.config)

    def close(self, slot: Slot) -> None:
        _session(slot).drop_score()

    def configured(self, slot: Slot) -> None:
        _session(slot).change(slot.config)

    def receive(self, slot: Slot, append: Append) -> None:
        if append.samples is None:
            return
        session = _session(slot)
        session.label = append.label
        session.heard_at = self._clock()
        if not session.take(append.samples, append.start_ms):
            _log.warning("turn.audio_dropped", session_id=slot.session_id, max_pending_s=self._settings.max_pending_s)
        session.settle()

    def cleared(self, slot: Slot) -> None:
        _session(slot).clear()

    def cancelled(self, slot: Slot) -> None:
        """A barge-in touches no input."""

    def ready(self, slot: Slot) -> float | None:
        session = _session(slot)
        if session.has_frame and session.detector.active:
            return None if session.stalled and not self._score_settled(session) else 0.0
        return 0.0 if session.detector.open and self._clock() >= self._times_out_at(session) else None

    def due(self, slot: Slot) -> float | None:
        session = _session(slot)
        if session.stalled:
            return self._clock() + _POLL_S
        return self._times_out_at(session) if session.detector.open else None

    def step(self, slots: list[Slot]) -> None:
        """Up to frames_per_step frames of each slot, in batches; then what the wall clock ends."""
        for _ in range(self._settings.frames_per_step):
            ready = [slot for slot in slots if self._may_hear(slot)]
            if not ready:
                break
            self._hear(ready)
        for slot in slots:
            session = _session(slot)
            if not session.has_frame and session.detector.open and self._clock() >= self._times_out_at(session):
                session.drop_score()
                self._tell(slot, session.detector.time_out(session.received))

    def _may_hear(self, slot: Slot) -> bool:
        session = _session(slot)
        session.settle()
        if not session.has_frame:
            return False
        if session.score is not None and self._score_settled(session):
            self._collect(slot, session)
        return not session.stalled

    def _hear(self, slots: list[Slot]) -> None:
        sessions = [_session(slot) for slot in slots]
        probabilities = self._silero.probabilities([session.silero for session in sessions], [session.frame() for session in sessions])
        for slot, session, probability in zip(slots, sessions, probabilities, strict=True):
            session.passed()
            self._tell(slot, session.detector.frame(probability, session.next - FRAME, session.next))
            if session.score is not None and not session.detector.awaits_score:
                session.drop_score()
            if session.detector.wants_score and self._scorer is not None:
                session.detector.asked()
                session.score = self._scorer.submit(session.turn_audio())
                session.score_deadline = self._clock() + self._settings.score_wall_ms / 1000

    def _score_settled(self, session: Session) -> bool:
        return session.score is not None and (session.score.done() or self._clock() >= session.score_deadline)

    def _collect(self, slot: Slot, session: Session) -> None:
        score, session.score = session.score, None
        if score is None or not score.done():
            if score is not None:
                score.cancel()
            _log.warning("turn.score_late", session_id=slot.session_id, score_wall_ms=self._settings.score_wall_ms)
            session.detector.scored(None)
        elif (error := score.exception()) is not None:
            _log.warning("turn.score_failed", session_id=slot.session_id, error=type(error).__name__)
            session.detector.fallback_only = True
            session.detector.scored(None)
        else:
            session.detector.scored(score.result())

    def _times_out_at(self, session: Session) -> float:
        silence_ms = session.detector.required_ms() * self._settings.timeout_factor + self._settings.timeout_wall_ms
        return session.heard_at + silence_ms / 1000

    def _tell(self, slot: Slot, verdicts: list[Verdict]) -> None:
        session = _session(slot)
        for verdict in verdicts:
            slot.decide(
                _KINDS[verdict.kind],
                session.timeline.ms(verdict.at),
                decided_at_ms=session.timeline.ms(verdict.decided_at),
                label=session.label,
                score=verdict.score,
                reason=verdict.reason,
            )


def _session(slot: Slot) -> Session:
    session = slot.state
    assert isinstance(session, Session)
    return session
