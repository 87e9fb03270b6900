"""The engine's thread: control first, then appends, then one step for the most urgent ready slots of many sessions."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from stage_kit.engine import Engine, EngineLost, Label, SessionOver, StepFailed
from stage_kit.logs import describe, logger
from stage_kit.metrics import StageMetrics
from stage_kit.outbox import Outbox
from stage_kit.settings import Settings

if TYPE_CHECKING:
    from stage_kit.pending import Waiting
    from stage_kit.session import Session

IDLE_RETRY_S = 0.005
RECEIVE_S, RECEIVE_SHARE = 0.003, 0.25
"""Where sound is received within steps, too, those who are ready wait so long for the appends of others, or for this share of a step if it
is more: the rest is received while the device works."""
POLL_S = 0.0002
"""How often a step that waits asks whether its device is done."""


class Control(Enum):
    """What overtakes every append."""

    OPEN = "open"
    CANCEL = "cancel"
    CLOSE = "close"


class Runner(Protocol):
    """What runs an engine. All calls come from the event loop and return at once."""

    async def start(self) -> None:
        """Loads the engine; returns when it is ready."""

    def control(self, control: Control, session: Session) -> None:
        """Executed before any append that waits; open and close report to the session."""

    def appended(self, session: Session) -> None:
        """There are appends, or room for outputs, where there were none."""

    def age_ms(self) -> int:
        """Milliseconds since the loop last turned; 0 when it has nothing to do."""

    def stop(self) -> None:
        """No more turns."""

    def join(self, seconds: float) -> None:
        """Waits until the turn in progress is over, at most so long. From any thread."""


class EngineLoop:
    """Runs one Engine on one thread."""

    def __init__(self, engine: Engine, settings: Settings, metrics: StageMetrics, outbox: Outbox) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._outbox = outbox
        self._controls: deque[tuple[Control, Session]] = deque()
        self._sessions: dict[Session, None] = {}
        self._wake = threading.Event()
        self._idle = True
        self._turned = time.monotonic()
        self._turn = 0
        self._receipts = 0
        self._receives_within = False
        """In its last step."""
        self._step_s = 0.0
        """Its last step took so long."""
        self._stopping = False
        self._loaded: asyncio.Future[None] | None = None
        self.died: asyncio.Future[None] | None = None
        """Gets the exception that ended the thread, which is a fault of the kit, never of a session."""
        self._thread = threading.Thread(target=self._run, name=f"engine-{engine.card.stage}", daemon=True)
        self._log = logger(stage=engine.card.stage)
        engine.on_wait(self._wait)
        engine.on_together(outbox.together)

    async def start(self) -> None:
        """Starts the thread and waits for Engine.load. Raises what that raised."""
        loop = asyncio.get_running_loop()
        self._loaded, self.died = loop.create_future(), loop.create_future()
        self._thread.start()
        await self._loaded

    def control(self, control: Control, session: Session) -> None:
        """See Runner."""
        self._controls.append((control, session))
        self._rouse()

    def appended(self, session: Session) -> None:
        """See Runner."""
        self._rouse()

    def age_ms(self) -> int:
        """See Runner."""
        if self._idle and not self._wake.is_set() and self._thread.is_alive():
            return 0
        return max(0, int((time.monotonic() - self._turned) * 1000))

    def stop(self) -> None:
        """See Runner."""
        self._stopping = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """See Runner."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _rouse(self) -> None:
        if self._idle and not self._wake.is_set():
            # its age counts from here: how long it had nothing to do is no fault
            self._turned = time.monotonic()
        self._wake.set()

    def _run(self) -> None:
        try:
            self._engine.load()
        except BaseException as error:
            self._outbox.post(self._report_loaded, error)
            return
        self._outbox.post(self._report_loaded, None)
        try:
            self._turned, self._idle = time.monotonic(), False
            while not self._stopping:
                self._one_turn()
        except BaseException as error:
            self._outbox.post(self._report_death, error)

    def _report_loaded(self, error: BaseException | None) -> None:
        if self._loaded is None or self._loaded.done():
            return
        if error is None:
            self._loaded.set_result(None)
        else:
            self._loaded.set_exception(error if isinstance(error, Exception) else RuntimeError(describe(error)))

    def _report_death(self, error: BaseException) -> None:
        self._log.error("engine loop died", error=describe(error))
        if self.died is not None and not self.died.done():
            self.died.set_exception(error if isinstance(error, Exception) else RuntimeError(describe(error)))

    def _one_turn(self) -> None:
        # cleared before looking: whatever arrives from here on makes the next wait return at once
        self._wake.clear()
        self._turned = time.monotonic()
        self._turn += 1
        self._obey()
        more = self._receive()
        if not self._step() and self._rest() and not more and not self._controls:
            self._sleep()

    def _sleep(self) -> None:
        due = [at for at in map(self._due, list(self._sessions)) if at is not None]
        timeout = max(min(due) - time.monotonic(), IDLE_RETRY_S) if due else None
        self._idle = True
        self._wake.wait(timeout)
        self._turned, self._idle = time.monotonic(), False

    def _due(self, session: Session) -> float | None:
        try:
            return self._engine.due(session.slot) if session.slot.has_room() else None
        except Exception as error:
            self._end(session, error)
            return None

    def _obey(self) -> None:
        while self._controls:
            control, session = self._controls.popleft()
            if control is Control.OPEN:
                self._open(session)
            elif control is Control.CLOSE:
                self._close(session)
            elif session in self._sessions:
                self._cancel(session)

    def _open(self, session: Session) -> None:
        try:
            self._engine.open(session.slot)
        except Exception as error:
            self._survive(error)
            self._log.warning("open failed", session_id=session.session_id, error=describe(error))
            self._outbox.post(session.opened, error)
            return
        session.holds_engine = True
        self._sessions[session] = None
        self._outbox.post(session.opened, None)

    def _close(self, session: Session) -> None:
        self._sessions.pop(session, None)
        try:
            if session.holds_engine:
                self._engine.close(session.slot)
                session.holds_engine = False
        except Exception as error:
            self._survive(error)
            self._log.error("close failed", session_id=session.session_id, error=describe(error))
            self._outbox.post(session.closed, error)
            return
        self._outbox.post(session.closed, None)

    def _cancel(self, session: Session) -> None:
        try:
            self._engine.cancelled(session.slot)
        except Exception as error:
            # an engine that could not drop old work may mix it with new work
            self._end(session, error)

    def _receive(self) -> bool:
        """Appends of all sessions, or of those who waited longest for as long as it may take; True: there are more."""
        more, ends = False, math.inf
        waiting = [session for session in self._sessions if session.pending or session.pending.turned_back]
        if self._receives_within:
            ends = time.monotonic() + max(RECEIVE_S, RECEIVE_SHARE * self._step_s)
            waiting.sort(key=lambda each: each.received_at)
        for session in waiting:
            session.received_at = self._receipt()
            for _ in range(self._settings.receive_burst_count):
                if session not in self._sessions or not session.slot.has_room():
                    break
                item = session.pending.pop()
                if item is None:
                    break
                self._obey()
                if self._is_wanted(session, item):
                    self._take(session, item)
            pending = session.pending
            if pending.turned_back and pending.bytes <= self._settings.pending_append_bytes // 2:
                pending.turned_back = False
                self._outbox.post(session.has_space, None)
            more = more or bool(len(pending) and session.slot.has_room())
            if time.monotonic() > ends:
                return True
        return more

    def _receipt(self) -> int:
        self._receipts += 1
        return self._receipts

    def _wait(self, done: Callable[[], bool]) -> None:
        """See Engine.wait. What wakes the thread here is looked at again by the next turn, which follows every step."""
        received = self._receive_sounds()
        while not done():
            self._receives_within = True
            if not next(received):
                self._wake.wait(POLL_S)

    def _receive_sounds(self) -> Iterator[bool]:
        """Without end, a piece of sound a time, of one session after the other; False: nobody has any. The device's answer waits for one
        piece at most."""
        while True:
            self._wake.clear()
            found = False
            # whose turn did not come in the step before goes first
            for session in sorted((each for each in self._sessions if each.pending), key=lambda each: each.received_at):
                if self._receive_sound(session):
                    found = True
                    yield True
            if not found:
                yield False

    def _receive_sound(self, session: Session) -> bool:
        """In the middle of a step: what overtakes appends waits for its end, and so does whatever stands behind anything but sound."""
        if session not in self._sessions or not session.slot.has_room():
            return False
        item = session.pending.pop_if(session.intake.is_plain)
        if item is None:
            return False
        session.received_at = self._receipt()
        if self._is_wanted(session, item):
            self._take(session, item, within_step=True)
        return True

    def _is_wanted(self, session: Session, item: Waiting) -> bool:
        return session in self._sessions and not item.stale(session.slot.epoch, session.input_generation)

    def _take(self, session: Session, item: Waiting, *, within_step: bool = False) -> None:
        slot, label = session.slot, item.label
        self._metrics.append_wait.observe(time.monotonic() - item.arrived)
        slot.asked(label, item.arrived)
        try:
            # what the step works on is what its failure is charged to, and an update that came since the item was found to be plain waits
            if not within_step:
                slot.working = label
                self._make_known(session, item)
            for append in session.intake.take(item):
                self._engine.receive(slot, append)
        except Exception as error:
            self._fault(session, label, error)

    def _make_known(self, session: Session, item: Waiting) -> None:
        if session.intake.enters(item.append.input_generation):
            self._engine.cleared(session.slot)
        if session.intake.configure(item.append.config_generation):
            self._engine.configured(session.slot)

    def _step(self) -> bool:
        ready: list[tuple[bool, float, int, Session]] = []
        for session in list(self._sessions):
            if not session.slot.has_room():
                continue
            try:
                urgency = self._engine.ready(session.slot)
            except Exception as error:
                self._fault(session, session.slot.working, error)
                continue
            if urgency is not None:
                ready.append((session.passed_over < self._settings.fair_turns_count, urgency, session.served_at_turn, session))
        if not ready:
            return False
        ready.sort(key=lambda entry: entry[:3])
        batch = [entry[3] for entry in ready[: self._engine.card.batch]]
        for entry in ready[len(batch) :]:
            entry[3].passed_over += 1
        for session in batch:
            session.passed_over, session.served_at_turn = 0, self._turn
        self._metrics.batch.observe(len(batch))
        started, self._receives_within = time.perf_counter(), False
        self._run_batch(batch)
        self._step_s = time.perf_counter() - started
        self._metrics.step_seconds.observe(self._step_s)
        return True

    def _rest(self) -> bool:
        """False: it failed for one session, and others may still wait for it."""
        try:
            self._engine.rest()
        except StepFailed as error:
            self._survive(error)
            failed = [each for each in self._sessions if each.slot is error.slot]
            for session in failed:
                self._fault(session, session.slot.working, error)
            return not failed
        except Exception as error:
            self._survive(error)
            raise
        return True

    def _run_batch(self, batch: list[Session]) -> None:
        try:
            self._engine.step([session.slot for session in batch])
        except EngineLost:
            # of sound that was received within the step
            raise
        except Exception as error:
            self._survive(error)
            # an engine that looks ahead may tell of one that is not in this batch; who ended within the step is not here any more
            if isinstance(error, StepFailed) or len(batch) == 1:
                slot = error.slot if isinstance(error, StepFailed) else batch[0].slot
                for session in [each for each in self._sessions if each.slot is slot]:
                    self._fault(session, session.slot.working, error)
                return
            self._log.warning("a batch failed; its slots are stepped alone", slots=len(batch), error=describe(error))
            for session in batch:
                if session in self._sessions:
                    self._run_batch([session])
            return
        for session in batch:
            session.faults = 0

    def _survive(self, error: Exception) -> None:
        """Raises EngineLost if the engine cannot go on."""
        if self._engine.fatal(error):
            self._log.error("the engine lost its device", error=describe(error))
            raise EngineLost(describe(error)) from error

    def _fault(self, session: Session, label: Label, error: Exception) -> None:
        self._survive(error)
        self._log.error("work failed", session_id=session.session_id, response_id=label.response_id, error=describe(error))
        self._metrics.faults.inc()
        if isinstance(error, SessionOver):
            self._end(session, error)
            return
        session.faults += 1
        session.slot.fail(label, f"the engine failed ({type(error).__name__})")
        try:
            self._engine.failed(session.slot, label)
        except Exception as second:
            self._end(session, second)
            return
        if session.faults >= self._settings.step_failures_count:
            self._end(session, error)

    def _end(self, session: Session, error: Exception) -> None:
        self._survive(error)
        self._log.error("session ended by its engine", session_id=session.session_id, error=describe(error))
        self._sessions.pop(session, None)
        self._outbox.post(session.broke, error)
