"""Stage `vocoder`: reads speech codes, answers sound; all sessions that have codes go through the networks together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from parley_stage.v1 import stage_pb2

from minicpmo45 import token2wav
from minicpmo45.config import CODE_RATE, SAMPLE_RATE_OUT, UNIT_MS, read_config
from minicpmo45.slots import planned
from minicpmo45.weights import flow_weights, hift_weights
from stage_kit import Append, Card, Engine, Label, Samples, Slot, StepFailed
from stage_kit.logs import logger
from torch_kit.faults import device_lost
from torch_kit.memory import taken
from vocoder_svc.minicpmo45.compiling import compile_kernels
from vocoder_svc.minicpmo45.configuration import Named, chosen_voice, named_voices
from vocoder_svc.minicpmo45.model import Sound, Vocoder, session_bytes
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings
from vocoder_svc.minicpmo45.stream import CHUNK, Stream, Turn
from vocoder_svc.minicpmo45.voice import SILENCE_CODE, BadVoice, Ear, Recording
from vocoder_svc.minicpmo45.voices import Voice, Voices, VoicesFull

EARLY_S = 0.08
"""A later piece is due so long before the sound made so far ends."""
PIECE_MS = 250
"""A unit's second is there at once: sent in fewer pieces the last is heard earlier."""
NOTHING = np.zeros(0, np.float32)
log = logger()


class BadCodes(ValueError):
    """The codes are none of this model, or too many wait."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param


@dataclass(slots=True)
class Session:
    """What the engine holds of a slot."""

    row: int
    """Of all slot-indexed tensors."""
    voice: Voice
    """Of the turn in progress, or of the next one."""
    next_voice: Voice | None = None
    """Configured in mid-turn."""
    stream: Stream = field(default_factory=Stream)
    heard_until: float = 0.0
    """Monotonic second at which the sound made so far ends, if it is heard as it is made."""
    failed: Label = field(default_factory=Label)
    """Of the turn that failed last."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row of a step."""

    slot: Slot
    session: Session
    turn: Turn


@dataclass(frozen=True, slots=True)
class Spoken:
    """Sound of a turn that is to be sent; `last`: there is no more."""

    slot: Slot
    session: Session
    turn: Turn
    samples: Samples
    last: bool


class MiniCpmVocoderEngine(Engine):
    """One step makes the next piece, up to a second, of every session that has one."""

    def __init__(self, settings: MiniCpmVocoderSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the sizes and the named voices. Raises CheckpointError and PlanError."""
        self._clock = clock
        causal = None if settings.generation == "checkpoint" else settings.generation == "causal"
        self._config = read_config(settings.checkpoint, causal)
        # the rings of the other trims are as long as a reference makes them
        settings, self._plan = planned("vocoder", settings, self._config, has_plan=settings.trim == "newest")
        self._settings = settings
        self._named: Named = named_voices(settings.checkpoint, settings.voices, settings.voice_s)
        self._vocoder: Vocoder
        self._voices: Voices
        self._rows = list(range(settings.slots - 1, -1, -1))
        self._spoken: deque[Spoken] = deque()
        self._failures: deque[StepFailed] = deque()
        """That the kit was not yet told of; their turns have ended."""
        session = session_bytes(settings, self._config.flow)
        self.card = Card(
            stage="vocoder",
            engine="minicpmo45",
            model="minicpm-o-4.5-token2wav",
            reads=("codes",),
            makes=("audio",),
            slots=settings.slots,
            batch=settings.batch,
            output_rate=SAMPLE_RATE_OUT,
            piece_ms=PIECE_MS,
            unit_ms=UNIT_MS,
            kv_bytes=settings.slots * session,
            kv_bytes_per_session=session,
        )

    def load(self) -> None:
        """Reads the weights, takes the memory of sessions and voices, sets the default voice up. Raises CheckpointError."""
        path, settings, config = self._settings.checkpoint, self._settings, self._config
        log.info("memory plan", **self._plan)
        ear = Ear(token2wav.speech_tokenizer(path), token2wav.speaker_model(path), settings.onnx_threads)
        flow, hift = flow_weights(path, config=config), hift_weights(path, config=config)
        self._vocoder = Vocoder(flow, hift, config.flow, config.hift, ear, settings)
        compile_kernels(self._vocoder, settings, config, self._prompts)
        self._voices = Voices(self._vocoder, self._vocoder.voice_room, settings.voice_wait_s)
        self._warm_up()

    def validate(self, config: dict[str, Any]) -> Recording:
        """See `chosen_voice`. Raises InvalidConfig."""
        return chosen_voice(config, self._named, self._settings.voice_s)

    def open(self, slot: Slot) -> None:
        """Takes a row and holds the voice, which is set up on a thread unless it is there. Raises MemoryError."""
        if not self._rows:
            raise MemoryError("all slots are taken")
        slot.state = Session(self._rows.pop(), self._voices.hold(slot.config, slot.wake))

    def close(self, slot: Slot) -> None:
        """Gives row and voice back."""
        session = _session(slot)
        self._spoken = deque(spoken for spoken in self._spoken if spoken.slot is not slot)
        self._failures = deque(failure for failure in self._failures if failure.slot is not slot)
        for voice in filter(None, (session.voice, session.next_voice)):
            self._voices.release(voice, slot.wake)
        self._rows.append(session.row)

    def configured(self, slot: Slot) -> None:
        """Another voice speaks from the next turn on."""
        session = _session(slot)
        following = session.next_voice or session.voice
        if slot.config.key == following.key and following.error is None:
            return
        held = self._voices.hold(slot.config, slot.wake)
        if session.next_voice is not None:
            self._voices.release(session.next_voice, slot.wake)
        session.next_voice = held

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes codes in; with `last` the turn is complete."""
        session, label = _session(slot), append.label
        if session.stream.is_over(label):
            return
        try:
            codes = self._codes(append)
            turn = session.stream.push(label, codes, last=append.last)
            if turn is not None and turn.waiting > self._settings.waiting_codes:
                raise BadCodes("codes", f"more than {self._settings.waiting_codes} wait")
        except BadCodes as error:
            # what was made before leaves before
            self._send()
            self._end(slot, label, str(error), code=stage_pb2.StageError.CODE_INVALID_ARGUMENT, param=error.param)

    def cancelled(self, slot: Slot) -> None:
        """Forgets the turns of lower epochs."""
        _session(slot).stream.forget_below(slot.epoch)

    def failed(self, slot: Slot, label: Label) -> None:
        """Forgets the turn and its sound, and ignores what else comes of it."""
        self._spoken = deque(spoken for spoken in self._spoken if spoken.slot is not slot or spoken.turn.label != label)
        self._forget(slot, label)

    def fatal(self, error: Exception) -> bool:
        """See `device_lost`."""
        return device_lost(error)

    def ready(self, slot: Slot) -> float | None:
        """Seconds until its sound is needed; None while it has no piece, or its voice is still being set up."""
        session = _session(slot)
        turn = session.stream.current()
        if turn is None:
            return None
        if turn.pieces:
            voice = session.voice if turn.begun or session.next_voice is None else session.next_voice
            if voice.prompt is None and voice.error is None:
                return None
        return session.heard_until - EARLY_S - self._clock() if turn.begun else 0.0

    def step(self, slots: list[Slot]) -> None:
        """Makes one piece of each slot, and sends it; where it looks ahead, it sends those of the step before, while the device works.
        Raises StepFailed for a slot whose networks gave NaN or infinity, or whose sound could not be sent; the others are done by then.
        Where several failed, each call tells of one: what failed has ended, and the kit rests only once nothing more is told."""
        jobs = [job for slot in slots if (job := self._job(slot)) is not None]
        if jobs:
            for job, sound in zip(jobs, self._sounds(jobs), strict=True):
                if sound.samples is not None:
                    self._made(job, sound.samples)
                elif job.session.stream.holds(job.turn):
                    self._failures.append(StepFailed(job.slot, "the vocoder gave values that are not finite"))
                    self._end(job.slot, job.turn.label, "the vocoder failed (values that are not finite)")
        if not (jobs and self._settings.looks_ahead):
            self._send()
        self._tell_failure()

    def rest(self) -> None:
        """Sends what was made. Raises StepFailed as a step does."""
        self._send()
        self._tell_failure()

    def _sounds(self, jobs: list[Job]) -> list[Sound]:
        try:
            return self._vocoder.step([job.session.row for job in jobs], [job.turn.pieces[0] for job in jobs], self._send)
        except Exception:
            # what fails for it comes behind what was made before
            self._send()
            raise

    def _send(self) -> None:
        """One session's failure is kept, and all others' sound leaves."""
        with self.together():
            while self._spoken:
                self._send_one(self._spoken.popleft())

    def _send_one(self, spoken: Spoken) -> None:
        finish = stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP) if spoken.last else None
        try:
            spoken.slot.emit_audio(spoken.samples, spoken.turn.label, last=spoken.last, finish=finish)
        except Exception as error:
            # the others' pieces were spoken, too, and must not be spoken again
            failure = StepFailed(spoken.slot, str(error))
            failure.__cause__ = error
            self._failures.append(failure)
            self._end(spoken.slot, spoken.turn.label, f"the vocoder failed ({type(error).__name__})")

    def _tell_failure(self) -> None:
        if self._failures:
            failure = self._failures.popleft()
            # by now it may work for the turn behind that; the kit will end the turn again, and a slot knows only the last that it ended
            failure.slot.working = _session(failure.slot).failed
            raise failure

    def _end(self, slot: Slot, label: Label, message: str, *, code: int = stage_pb2.StageError.CODE_ENGINE_FAILED, param: str = "") -> None:
        """The turn has failed; see Slot.fail."""
        slot.fail(label, message, code=code, param=param)
        self._forget(slot, label)

    def _forget(self, slot: Slot, label: Label) -> None:
        session = _session(slot)
        session.stream.drop(label)
        session.failed = label

    def _warm_up(self) -> None:
        """Holds the default voice for good, and speaks one piece in it that nobody hears. Raises BadVoice."""
        done = threading.Event()
        recording = self._named[""]
        assert isinstance(recording, Recording)
        voice = self._voices.hold(recording, done.set)
        done.wait()
        if voice.prompt is None:
            raise voice.error or BadVoice("it was not set up")
        turn = Turn(Label())
        turn.push([SILENCE_CODE] * CHUNK, last=True)
        self._vocoder.begin(0, voice.prompt)
        for piece in turn.pieces:
            self._vocoder.step([0], [piece])
        self._vocoder.warm_up(min(self._settings.batch, self._settings.slots), self._prompts)
        log.info("memory taken", stage=self.card.stage, planned_bytes=self._plan.get("stage_bytes"), **taken(self._settings.device))

    @property
    def _prompts(self) -> list[int]:
        """Frames of the named voices."""
        return [2 * each.codes for each in self._named.values() if isinstance(each, Recording)]

    def _job(self, slot: Slot) -> Job | None:
        """The slot's row of this step; None where none of the networks is needed."""
        session = _session(slot)
        turn = session.stream.current()
        if turn is None:
            return None
        slot.working = turn.label
        if not turn.pieces:
            session.stream.finish(turn)
            self._spoken.append(Spoken(slot, session, turn, NOTHING, last=True))
            return None
        if not turn.begun:
            self._change_voice(slot, session)
            voice = session.voice
            if voice.prompt is None:
                # stepped alone after a step that failed, it may have to wait
                if voice.error is not None:
                    self._refuse(slot, session, turn)
                return None
            self._vocoder.begin(session.row, voice.prompt)
        return Job(slot, session, turn)

    def _change_voice(self, slot: Slot, session: Session) -> None:
        if session.next_voice is not None:
            self._voices.release(session.voice, slot.wake)
            session.voice, session.next_voice = session.next_voice, None

    def _refuse(self, slot: Slot, session: Session, turn: Turn) -> None:
        error = session.voice.error
        full = isinstance(error, VoicesFull)
        # what was made before leaves before
        self._send()
        code = stage_pb2.StageError.CODE_LIMIT_EXCEEDED if full else stage_pb2.StageError.CODE_INVALID_ARGUMENT
        self._end(slot, turn.label, f"no voice: {error}", code=code, param="voices_bytes" if full else "reference_voice")
        # tried again for the next turn
        session.next_voice = self._voices.hold(session.voice.recording, slot.wake)

    def _made(self, job: Job, samples: Samples) -> None:
        session, turn = job.session, job.turn
        if not session.stream.holds(turn):
            # what was made of it before could not be sent
            return
        piece = turn.pieces.popleft()
        now = self._clock()
        if not turn.begun and self._settings.pad_first and not piece.final:
            samples = np.pad(samples, (max(0, SAMPLE_RATE_OUT - len(samples)), 0))
        session.heard_until = max(session.heard_until if turn.begun else 0.0, now) + len(samples) / SAMPLE_RATE_OUT
        turn.begun = True
        if piece.final:
            session.stream.finish(turn)
        self._spoken.append(Spoken(job.slot, session, turn, samples, last=piece.final))

    def _codes(self, append: Append) -> list[int]:
        """The message's codes. Raises BadCodes."""
        if append.payload is None:
            return []
        if not append.payload.HasField("codes"):
            raise BadCodes("payload", "holds no codes")
        message = append.payload.codes
        if message.rate_hz not in (0.0, float(CODE_RATE)):
            raise BadCodes("codes.rate_hz", f"must be {CODE_RATE}")
        codes = list(message.codes)
        most = self._config.flow.codes
        if any(not 0 <= code < most for code in codes):
            raise BadCodes("codes.codes", f"must be from 0 to {most - 1}")
        return codes


def _session(slot: Slot) -> Session:
    session: Session = slot.state
    return session
