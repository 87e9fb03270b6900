"""What stage `asr` holds for one session: its audio, the open turn, early results, and commits in order."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Label
from thinker_svc.embedded.asr_audio import PER_MS, AudioRing, pieces, quietest_cut
from thinker_svc.embedded.asr_recognizer import Recognizer
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.asr_task import Part, Purpose, Task

_GUESSES = 4
_PIECES = 64


class Turn(msgspec.Struct):
    """Speech that the turn stage has called open. Times on the input timeline."""

    start_ms: int
    label: Label
    paused_ms: int | None = None
    """Where the voice ended, while the turn stage judges the silence."""
    guessed: bool = False
    """The early decode of this pause was begun."""
    partial_ms: int = 0
    """Where the last partial ended."""
    text: str = ""
    """What was last sent of it."""


class Commit(msgspec.Struct):
    """A span that became a user item; its task is there as soon as its audio is."""

    item_id: str
    start_ms: int
    end_ms: int
    label: Label
    deadline: float
    task: Task | None = None


class Settled(msgspec.Struct, frozen=True):
    """Text of audio that was let go."""

    start_ms: int
    end_ms: int
    text: str


class Work(msgspec.Struct, frozen=True):
    """The next decode of a session, and what it is for."""

    purpose: Purpose
    task: Task


class Session:
    """State of one session; the engine decodes what `work` names and gives it back to `finished`."""

    def __init__(self, settings: AsrSettings, recognizer: Recognizer, partials: bool) -> None:
        self._settings = settings
        self._recognizer = recognizer
        self.partials = partials
        self.turn: Turn | None = None
        self.commits: deque[Commit] = deque()
        self.label = Label()
        self._audio = AudioRing(settings.hold_most_ms)
        self._heard_ms = 0
        self._ended = False
        self._turns_seen = False
        self._guesses: deque[Task] = deque(maxlen=_GUESSES)
        self._settled: deque[Settled] = deque(maxlen=_PIECES)

    def take(self, samples: NDArray[np.float32], start_ms: int, end_ms: int, now: float) -> bool:
        """Audio from the client. False when the oldest audio had to be dropped."""
        kept = self._audio.append(samples, start_ms, now)
        self._heard_ms = end_ms
        self._guess()
        self._plan(now)
        judged_ms = self._audio.judged_ms(now - self._settings.judged_wall_ms / 1000)
        if self._turns_seen and self.turn is None and not self.commits:
            self._audio.forget(min(judged_ms, self._audio.end_ms - self._settings.hold_ms))
        return kept

    def decided(self, decision: stage_pb2.Decision, label: Label) -> None:
        """What the turn stage says of the audio."""
        self._turns_seen = True
        kinds = stage_pb2.Decision
        if decision.kind == kinds.KIND_SPEECH_STARTED:
            self.turn = Turn(decision.t_ms, label, partial_ms=decision.t_ms)
        elif self.turn is None:
            return
        elif decision.kind == kinds.KIND_PAUSE:
            self.turn.paused_ms, self.turn.guessed = decision.t_ms, False
            self._guess()
        elif decision.kind == kinds.KIND_SPEECH_RESUMED:
            self.turn.paused_ms = None
            if self._guesses and self._guesses[-1].start_ms == self.turn.start_ms:
                self._guesses.pop()
        elif decision.kind == kinds.KIND_SPEECH_STOPPED:
            self.turn = None

    def commit(self, control: stage_pb2.Control, label: Label, now: float) -> None:
        deadline = now + self._settings.commit_wait_wall_ms / 1000
        self.commits.append(Commit(control.item_id, control.start_ms, control.end_ms, label, deadline))
        self._plan(now)

    def clear(self) -> None:
        """Forgets all that is not committed; commits keep the audio that is theirs."""
        self._plan(None)
        self.turn = None
        self._guesses.clear()
        self._settled.clear()
        self._audio.clear()

    def end(self) -> None:
        """No more audio comes."""
        self._ended = True
        self._plan(None)

    def urgency(self, now: float) -> Purpose | None:
        """How urgent the next decode is; None when there is none."""
        self._plan(now)
        if self.commits and self.commits[0].task is not None:
            return Purpose.COMMIT
        if any(not guess.done for guess in self._guesses):
            return Purpose.GUESS
        if self._settles_before(now) is not None:
            return Purpose.SETTLE
        return Purpose.PARTIAL if self._partial_due() else None

    def deadline(self) -> float | None:
        """Monotonic second at which a commit stops waiting for audio."""
        return self.commits[0].deadline if self.commits and self.commits[0].task is None else None

    def work(self, now: float) -> Work | None:
        """The most urgent decode."""
        purpose = self.urgency(now)
        if purpose is Purpose.COMMIT and self.commits[0].task is not None:
            return Work(purpose, self.commits[0].task)
        if purpose is Purpose.GUESS:
            return Work(purpose, next(guess for guess in self._guesses if not guess.done))
        if purpose is Purpose.SETTLE and (most_ms := self._settles_before(now)) is not None:
            return Work(purpose, self._settling(most_ms))
        if purpose is Purpose.PARTIAL and self.turn is not None:
            end_ms = self._audio.end_ms
            self.turn.partial_ms = end_ms
            return Work(purpose, self._task(self.turn.start_ms, end_ms, self.turn.label))
        return None

    def settle(self, task: Task) -> None:
        """Keeps the text and lets the audio go."""
        self._settled.append(Settled(task.start_ms, task.end_ms, task.text))
        self._audio.forget(task.end_ms)

    def drop(self, task: Task) -> None:
        """An early decode failed: the commit will decode anew."""
        if task in self._guesses:
            self._guesses.remove(task)

    def fresh_text(self, task: Task) -> bool:
        """Whether the task's text is news about the open turn; remembers it."""
        turn = self.turn
        if turn is None or task.start_ms != turn.start_ms or task.text in ("", turn.text):
            return False
        turn.text = task.text
        return True

    def _guess(self) -> None:
        """Begins an early decode of the paused turn, once, as soon as its audio is there."""
        turn = self.turn
        if turn is None or turn.paused_ms is None or turn.guessed or not turn.start_ms < turn.paused_ms <= self._audio.end_ms:
            return
        turn.guessed = True
        self._guesses.append(self._task(turn.start_ms, turn.paused_ms, turn.label))

    def _partial_due(self) -> bool:
        turn = self.turn
        if (
            not self.partials
            or turn is None
            or turn.paused_ms is not None
            or self._audio.end_ms - turn.partial_ms < self._settings.partial_interval_ms
        ):
            return False
        return self._audio.end_ms - max(turn.start_ms, self._audio.start_ms) <= self._settings.piece_ms

    def _settles_before(self, now: float) -> int | None:
        """Where the next settled piece ends at the latest: before audio that the turn stage may still divide, and before a turn's start."""
        start_ms = self._audio.start_ms
        if self.commits or self._audio.end_ms - start_ms < self._settings.piece_ms or (self._turns_seen and self.turn is None):
            return None
        most_ms = min(start_ms + self._settings.piece_ms, self._audio.judged_ms(now - self._settings.judged_wall_ms / 1000))
        if self.turn is not None and start_ms < self.turn.start_ms:
            return self.turn.start_ms if self.turn.start_ms <= most_ms else None
        return most_ms if most_ms - start_ms > self._settings.piece_ms // 2 else None

    def _settling(self, most_ms: int) -> Task:
        start_ms = self._audio.start_ms
        samples = self._audio.copy(start_ms, most_ms)
        least = self._settings.piece_ms * PER_MS // 2
        if samples.size > least:
            samples = samples[: quietest_cut(samples, least, samples.size)]
        return Task(start_ms, start_ms + samples.size // PER_MS, [samples], self.label)

    def _plan(self, now: float | None) -> None:
        """Gives commits their audio, in order, as soon as it is there; at once when no more will come (now is None)."""
        for commit in self.commits:
            if commit.task is not None:
                continue
            if not (now is None or self._ended or self._heard_ms >= commit.end_ms or now >= commit.deadline):
                return
            commit.task = self._early(commit) or self._task(commit.start_ms, commit.end_ms, commit.label)
            self._consumed(commit.end_ms)

    def _early(self, commit: Commit) -> Task | None:
        """A decode begun at a pause, if it covers the commit and no voice follows it."""
        tolerance = self._settings.span_tolerance_ms
        for guess in reversed(self._guesses):
            if abs(guess.start_ms - commit.start_ms) > tolerance or guess.end_ms > commit.end_ms + tolerance:
                continue
            rest = self._audio.copy(guess.end_ms + tolerance, commit.end_ms)
            if rest.size == 0 or not self._recognizer.audible(rest):
                return guess
        return None

    def _consumed(self, end_ms: int) -> None:
        self._audio.forget(end_ms)
        while self._settled and self._settled[0].end_ms <= end_ms:
            self._settled.popleft()
        for guess in [guess for guess in self._guesses if guess.start_ms < end_ms]:
            self._guesses.remove(guess)
        if self.turn is not None and self.turn.start_ms < end_ms:
            # the client committed in mid-turn, and the turn stage forgets the turn with it
            self.turn = None

    def _task(self, start_ms: int, end_ms: int, label: Label) -> Task:
        known: list[Part] = []
        held_ms = start_ms
        for settled in self._settled:
            if 2 * (min(settled.end_ms, end_ms) - max(settled.start_ms, start_ms)) > settled.end_ms - settled.start_ms:
                known.append(settled.text)
                held_ms = max(held_ms, settled.end_ms)
        audio = pieces(self._audio.copy(held_ms, end_ms), self._settings.piece_ms * PER_MS)
        return Task(start_ms, end_ms, [*known, *(piece for piece in audio if piece.size)], label)
