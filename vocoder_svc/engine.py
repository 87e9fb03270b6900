"""Stage `vocoder`: reads the latents of clauses, answers sound with the marks at which text ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Card, Engine, InvalidConfig, Label, Slot
from vocoder_svc.embedded.decoder import CHANNELS, CONTEXT_FRAMES, HOP_SAMPLES, RATE_HZ, PiperDecoder
from vocoder_svc.embedded.folder import voice_folder
from vocoder_svc.settings import VocoderSettings
from vocoder_svc.stretch import Stretch
from vocoder_svc.utterance import Utterance

_SILENCE = np.zeros(0, np.float32)


class BadLatents(ValueError):
    """The latents do not fit the decoder, or do not follow from those before."""


class VocoderEngine(Engine):
    """Decodes one window at a time; whoever's listener runs dry first comes first."""

    def __init__(self, settings: VocoderSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or VocoderSettings()
        self._clock = clock
        self._decoder: PiperDecoder
        self.card = Card(
            stage="vocoder",
            engine="piper-onnx",
            model="piper-en_US-joe-medium",
            reads=("latents",),
            makes=("audio",),
            slots=self._settings.slots,
            output_rate=RATE_HZ,
        )

    def load(self) -> None:
        """Reads the decoder and decodes one window of each size. Raises VoiceMissing."""
        decoder = PiperDecoder(voice_folder(self._settings.models))
        for frames in (self._settings.first_chunk_frames, self._settings.chunk_frames):
            decoder.decode(np.zeros((CHANNELS, frames + 2 * CONTEXT_FRAMES), np.float32))
        self._decoder = decoder

    def validate(self, config: dict[str, Any]) -> dict[str, Any]:
        """Takes no options. Raises InvalidConfig."""
        for name in config:
            raise InvalidConfig(name, "unknown field")
        return config

    def open(self, slot: Slot) -> None:
        """No utterance yet."""
        slot.state = {}

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes latents in; with `last` no more will come. Raises BadLatents."""
        utterances: dict[Label, Utterance | None] = slot.state
        now = self._clock()
        utterance = utterances.setdefault(append.label, Utterance(now))
        if utterance is None:
            if append.last:
                del utterances[append.label]
            return
        if append.payload is not None and append.payload.HasField("latents"):
            self._take(utterance, append.payload.latents, now)
        utterance.complete |= append.last

    def cancelled(self, slot: Slot) -> None:
        """Forgets the utterances of lower epochs."""
        for label in [label for label in slot.state if label.epoch < slot.epoch]:
            del slot.state[label]

    def failed(self, slot: Slot, label: Label) -> None:
        """Forgets the utterance, and ignores the rest of its latents."""
        slot.state[label] = None

    def ready(self, slot: Slot) -> float | None:
        """Seconds of sound that the listener still has: least first. None while that is plenty."""
        found = self._next_utterance(slot)
        if found is None:
            return None
        lead_s = found[1].lead_s(self._clock())
        return lead_s if lead_s * 1000 < self._settings.ahead_ms or not found[1].stretches else None

    def due(self, slot: Slot) -> float | None:
        """When the listener's sound has come down to what `ahead_ms` allows."""
        found = self._next_utterance(slot)
        if found is None:
            return None
        now = self._clock()
        return now + max(0.0, found[1].lead_s(now) - self._settings.ahead_ms / 1000)

    def step(self, slots: list[Slot]) -> None:
        """Decodes one window of each slot."""
        for slot in slots:
            found = self._next_utterance(slot)
            if found is not None:
                self._decode_next(slot, *found)

    def _take(self, utterance: Utterance, latents: stage_pb2.Latents, now: float) -> None:
        frames = _frames(latents)
        if latents.begins == any(stretch.mark is None for stretch in utterance.stretches):
            raise BadLatents("a stretch begins before the last one ended, or goes on without a beginning")
        if utterance.waiting + frames.shape[1] > self._settings.waiting_frames:
            raise BadLatents(f"more than {self._settings.waiting_frames} latent frames wait")
        if not utterance.waiting:
            utterance.resume(now)
        if latents.begins:
            utterance.stretches.append(Stretch())
        stretch = utterance.stretches[-1]
        stretch.add(frames)
        if latents.ends:
            stretch.mark = stage_pb2.Mark()
            stretch.mark.CopyFrom(latents.mark)

    def _chunk(self, utterance: Utterance) -> int:
        return self._settings.chunk_frames if utterance.samples else self._settings.first_chunk_frames

    def _next_utterance(self, slot: Slot) -> tuple[Label, Utterance] | None:
        """The oldest utterance of the slot for which there is something to do."""
        utterances: dict[Label, Utterance | None] = slot.state
        for label, utterance in utterances.items():
            if utterance is None:
                continue
            utterance.skip_soundless()
            if not utterance.stretches:
                if utterance.complete:
                    return label, utterance
            elif utterance.complete or utterance.stretches[0].window(self._chunk(utterance)) is not None:
                return label, utterance
        return None

    def _decode_next(self, slot: Slot, label: Label, utterance: Utterance) -> None:
        slot.working = label
        sound, marks = self._sound(utterance) if utterance.stretches else (_SILENCE, [])
        utterance.skip_soundless()
        ends = utterance.complete and not utterance.stretches
        if ends:
            marks += utterance.soundless
            del slot.state[label]
        finish = stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP) if ends else None
        slot.emit_audio(sound, label, marks=marks, last=ends, finish=finish)

    def _sound(self, utterance: Utterance) -> tuple[NDArray[np.float32], list[stage_pb2.Mark]]:
        """The next window's samples, with the marks of what was skipped before it and, at its end, the clause's own."""
        stretch = utterance.stretches[0]
        window = stretch.window(self._chunk(utterance))
        if window is None:
            raise BadLatents("the latents ended within a stretch")
        sound = self._decoder.decode(window.latents)[window.skip * HOP_SAMPLES : (window.skip + window.keep) * HOP_SAMPLES]
        stretch.advance(window.keep)
        if utterance.pause_due:
            sound = np.concatenate((np.zeros(RATE_HZ * self._settings.sentence_pause_ms // 1000, np.float32), sound))
            utterance.pause_due = False
        utterance.samples += len(sound)
        marks, utterance.soundless = utterance.soundless, []
        if stretch.mark is not None and not stretch.waiting:
            utterance.stretches.popleft()
            marks.append(utterance.mark(stretch.mark))
            utterance.pause_due = stretch.mark.sentence_end
        return sound, marks


def _frames(latents: stage_pb2.Latents) -> NDArray[np.float32]:
    """float32 [192, frames] of the message. Raises BadLatents."""
    tensor = latents.values
    shape = tuple(tensor.shape)
    if tensor.dtype != stage_pb2.D_TYPE_F32 or len(shape) != 2 or shape[0] != CHANNELS or len(tensor.data) != 4 * shape[0] * shape[1]:
        raise BadLatents(f"latents must be float32 [{CHANNELS}, frames]")
    return np.frombuffer(tensor.data, "<f4").reshape(shape).astype(np.float32)
