"""Stage `talker`: a number of frames for each word."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

import msgspec
import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, Label
from stage_kit.scripted.script import RATE, SAMPLES_PER_FRAME, convert
from stage_kit.slot import Slot


class TalkerScript(msgspec.Struct, frozen=True):
    """Frames of a word; 32 are 341 ms of sound."""

    frames_per_word: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32


class _Speech(msgspec.Struct):
    """One response: text that is not a whole word yet, words to speak, what was spoken."""

    label: Label
    text: str = ""
    words: deque[str] = msgspec.field(default_factory=deque)
    complete: bool = False
    chars: int = 0
    frames: int = 0


class ScriptedTalker(Engine):
    """Latents are [1, frames]; their values count the frames of the response, so that a gap is seen downstream."""

    def __init__(self, slots: int = 64) -> None:
        self.card = Card("talker", "scripted", "frames", ("text", "control"), ("latents",), slots=slots, batch=slots)

    def validate(self, config: dict[str, Any]) -> TalkerScript:
        """See TalkerScript."""
        return convert(config, TalkerScript)

    def open(self, slot: Slot) -> None:
        """Nothing to speak: the state maps response ids to speech, oldest first."""
        slot.state = {}

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes text in and cuts it behind spaces."""
        speech: _Speech = slot.state.setdefault(append.label.response_id, _Speech(append.label))
        payload = append.payload
        if payload is not None and payload.WhichOneof("value") == "text":
            *words, rest = (speech.text + payload.text.text).split(" ")
            speech.words.extend(word + " " for word in words)
            speech.text = rest
        if append.last:
            speech.complete = True
            if speech.text:
                speech.words.append(speech.text)

    def cancelled(self, slot: Slot) -> None:
        """Drops speech of lower epochs."""
        slot.state = {key: speech for key, speech in slot.state.items() if speech.label.epoch >= slot.epoch}

    def failed(self, slot: Slot, label: Label) -> None:
        """Drops the speech."""
        slot.state.pop(label.response_id, None)

    def ready(self, slot: Slot) -> float | None:
        """First come, first served."""
        return 0.0 if self._current(slot) is not None else None

    def step(self, slots: list[Slot]) -> None:
        """One word for each, or the end of a response."""
        for slot in slots:
            speech = self._current(slot)
            if speech is None:
                continue
            if speech.words:
                self._speak(slot, speech, speech.words.popleft())
            if speech.complete and not speech.words:
                del slot.state[speech.label.response_id]
                slot.emit(None, speech.label, last=True, finish=stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP))

    def _current(self, slot: Slot) -> _Speech | None:
        return next((speech for speech in slot.state.values() if speech.words or speech.complete), None)

    def _speak(self, slot: Slot, speech: _Speech, word: str) -> None:
        count = slot.config.frames_per_word
        values = np.arange(speech.frames, speech.frames + count, dtype="<f4")
        speech.frames += count
        speech.chars += len(word)
        latents = stage_pb2.Latents(
            values=stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=(1, count), data=values.tobytes()),
            rate_hz=RATE / SAMPLES_PER_FRAME,
            begins=True,
            ends=True,
            mark=stage_pb2.Mark(text_chars=speech.chars, sentence_end=word.rstrip().endswith(".")),
        )
        slot.emit(stage_pb2.Payload(latents=latents), speech.label)
