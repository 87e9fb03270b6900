"""Stage `talker`: reads a response's text as it is written, answers the latents of its clauses."""

from __future__ import annotations

import textwrap
from collections import deque
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Card, Engine, InvalidConfig, Label, Slot
from talker_svc.clauses import Clause, Clauses
from talker_svc.embedded.folder import voice_folder
from talker_svc.embedded.voice import Manner, PiperVoice
from talker_svc.settings import TalkerSettings
from talker_svc.spoken import spoken

VOICES = ("default", "joe")
SPEEDS = (0.25, 1.5)
_WARM_UP = "I am ready to talk about twenty things, and then some more."


class TalkerConfig(msgspec.Struct, frozen=True):
    """Configuration of a session."""

    voice: str = "default"
    speed: float = 1.0


class _Speech:
    """A response whose text is coming in."""

    def __init__(self, clauses: Clauses, manner: Manner) -> None:
        self.clauses = clauses
        self.manner = manner
        self.waiting: deque[Clause] = deque()
        self.parts: list[str] | None = None  # what is left to say of waiting[0], once it was begun
        self.said = 0  # its parts
        self.spoken = 0
        self.complete = False


class TalkerEngine(Engine):
    """Responses of a session are spoken one after the other, clause by clause; sessions share one voice."""

    def __init__(self, settings: TalkerSettings | None = None) -> None:
        self._settings = settings or TalkerSettings()
        self._voice: PiperVoice
        self.card = Card(
            stage="talker",
            engine="piper-onnx",
            model="piper-en_US-joe-medium",
            reads=("text",),
            makes=("latents",),
            slots=self._settings.slots,
        )

    def load(self) -> None:
        """Reads the voice and speaks once. Raises VoiceMissing."""
        voice = PiperVoice(voice_folder(self._settings.models))
        voice.speak(_WARM_UP, "", Manner())
        self._voice = voice

    def validate(self, config: dict[str, Any]) -> TalkerConfig:
        """Accepts {"voice": "default" | "joe", "speed": 0.25 to 1.5}. Raises InvalidConfig."""
        for name in config:
            if name not in TalkerConfig.__struct_fields__:
                raise InvalidConfig(name, "unknown field")
        voice, speed = config.get("voice", "default"), config.get("speed", 1.0)
        if not isinstance(voice, str) or voice not in VOICES:
            raise InvalidConfig("voice", f"must be one of {', '.join(VOICES)}")
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not SPEEDS[0] <= speed <= SPEEDS[1]:
            raise InvalidConfig("speed", f"must be a number from {SPEEDS[0]} to {SPEEDS[1]}")
        return TalkerConfig(voice=voice, speed=float(speed))

    def open(self, slot: Slot) -> None:
        """No speech yet."""
        slot.state = {}

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes text in; with `last` the response's text is complete."""
        speeches: dict[Label, _Speech | None] = slot.state
        if append.label not in speeches:
            speeches[append.label] = self._begin(slot.config)
        speech = speeches[append.label]
        if speech is None:
            if append.last:
                del speeches[append.label]
            return
        if append.payload is not None and append.payload.HasField("text"):
            speech.waiting.extend(speech.clauses.add(append.payload.text.text))
        if append.last:
            speech.waiting.extend(speech.clauses.flush())
            speech.complete = True

    def cancelled(self, slot: Slot) -> None:
        """Forgets the speeches of lower epochs."""
        for label in [label for label in slot.state if label.epoch < slot.epoch]:
            del slot.state[label]

    def failed(self, slot: Slot, label: Label) -> None:
        """Forgets the speech, and ignores the rest of its text."""
        slot.state[label] = None

    def ready(self, slot: Slot) -> float | None:
        """A first clause is more urgent than a later one."""
        speech = _next_speech(slot)
        return None if speech is None else float(min(speech[1].spoken, 2))

    def step(self, slots: list[Slot]) -> None:
        """Speaks one clause of each slot, or a part of a long one."""
        for slot in slots:
            found = _next_speech(slot)
            if found is not None:
                self._speak_next(slot, *found)

    def _begin(self, config: TalkerConfig) -> _Speech:
        settings = self._settings
        manner = Manner(noise=settings.noise, length=1 / config.speed, duration_noise=settings.duration_noise)
        return _Speech(Clauses(settings.limits()), manner)

    def _speak_next(self, slot: Slot, label: Label, speech: _Speech) -> None:
        slot.working = label
        if speech.waiting:
            self._speak_part(slot, label, speech, speech.waiting[0])
        if speech.complete and not speech.waiting:
            del slot.state[label]
            slot.emit(None, label, last=True, finish=stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP))

    def _speak_part(self, slot: Slot, label: Label, speech: _Speech, clause: Clause) -> None:
        """Speaks a clause, or a part of one that is long to say: no other session waits for a row of three hundred digits."""
        parts = textwrap.wrap(spoken(clause.text), self._settings.part_chars) or [""] if speech.parts is None else speech.parts
        seed = f"{self._settings.seed or label.response_id}:{clause.index}:{speech.said}"
        latents = self._voice.speak(parts[0], seed, speech.manner)
        begins, speech.parts, speech.said = speech.said == 0, parts[1:], speech.said + 1
        whole = not speech.parts
        if whole:
            speech.waiting.popleft()
            speech.parts, speech.said, speech.spoken = None, 0, speech.spoken + 1
        frames, size = latents.shape[1], self._settings.chunk_frames
        for start in range(0, max(frames, 1), size):
            chunk = self._chunk(latents[:, start : start + size])
            chunk.begins = begins and start == 0
            if whole and start + size >= frames:
                chunk.ends = True
                chunk.mark.text_chars, chunk.mark.sentence_end = clause.end, clause.sentence_end
            slot.emit(stage_pb2.Payload(latents=chunk), label)

    def _chunk(self, values: NDArray[np.float32]) -> stage_pb2.Latents:
        tensor = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=values.shape, data=values.astype("<f4").tobytes())
        return stage_pb2.Latents(values=tensor, rate_hz=self._voice.rate_hz)


def _next_speech(slot: Slot) -> tuple[Label, _Speech] | None:
    """The oldest response of the slot for which there is something to do."""
    speeches: dict[Label, _Speech | None] = slot.state
    return next(((label, speech) for label, speech in speeches.items() if speech is not None and (speech.waiting or speech.complete)), None)
