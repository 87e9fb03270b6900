"""A voice from its recording: speech codes (S3 tokenizer), speaker (CAM++) and mel frames, all on the CPU, once a voice."""

from __future__ import annotations

import base64
import binascii
import hashlib
import wave
from pathlib import Path

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray

from minicpmo45.config import SAMPLE_RATE_IN, SAMPLE_RATE_OUT
from minicpmo45.networks import CODES, open_speaker_model, open_speech_tokenizer
from minicpmo45.recordings import RATES, SHORTEST_MS
from vocoder_svc.minicpmo45 import features
from vocoder_svc.minicpmo45.features import Array

FRAMES_PER_S, FRAMES_PER_CODE = 100, 4
WINDOW_FRAMES, OVERLAP_FRAMES = 3000, 400
"""The S3 tokenizer hears at most 30 s; longer recordings in windows that share 4 s."""
SILENCE_CODE = 4218


class BadVoice(ValueError):
    """A recording that no voice can be made of. `why` is one line without content."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Recording(msgspec.Struct, frozen=True):
    """PCM16 mono. Equal recordings have equal keys."""

    pcm: bytes
    rate: int

    @property
    def key(self) -> tuple[str, int]:
        """SHA-256 of the samples, and their rate."""
        return hashlib.sha256(self.pcm).hexdigest(), self.rate

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / self.rate

    @property
    def codes(self) -> int:
        """So many the tokenizer makes of it, but for what rounding does to a recording of another rate."""
        return -(-(len(self.pcm) // 2 * FRAMES_PER_S // self.rate) // FRAMES_PER_CODE)

    def samples(self, rate: int) -> Array:
        """float32 at `rate`."""
        own = np.frombuffer(self.pcm, "<i2").astype(np.float32) / np.float32(32768)
        return own if rate == self.rate else soxr.resample(own, self.rate, rate).astype(np.float32)


class Heard(msgspec.Struct, frozen=True):
    """What the flow needs of a voice."""

    codes: NDArray[np.int64]
    """[n], 25 a second."""
    mel: Array
    """[2 n, 80]."""
    embedding: Array
    """[192]."""


def recording(pcm: bytes, rate: int, longest_s: float) -> Recording:
    """Checks bare PCM16. Raises BadVoice."""
    if rate not in RATES:
        raise BadVoice(f"its rate is none of {', '.join(map(str, RATES))} Hz")
    if not pcm:
        raise BadVoice("it is empty")
    if pcm[:4] in (b"RIFF", b"fLaC", b"OggS"):
        raise BadVoice("it is a file with a header, not bare PCM16")
    if len(pcm) % 2:
        raise BadVoice("it is not PCM16: an odd number of bytes")
    made = Recording(pcm, rate)
    if made.seconds > longest_s:
        raise BadVoice(f"it is longer than {longest_s:g} s")
    if made.seconds * 1000 < SHORTEST_MS:
        raise BadVoice(f"it is shorter than {SHORTEST_MS} ms")
    return made


def decoded(text: str, rate: int, longest_s: float) -> Recording:
    """A recording out of base64. Raises BadVoice."""
    if len(text) > 4 * (int(longest_s * 2 * max(RATES)) // 3 + 2):
        raise BadVoice(f"it is longer than {longest_s:g} s")
    try:
        pcm = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadVoice("it is not base64") from None
    return recording(pcm, rate, longest_s)


def read_wav(path: Path, longest_s: float) -> Recording:
    """A PCM16 WAV file; of several channels the mean. Raises BadVoice."""
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != 2:
                raise BadVoice("it is not PCM16")
            rate, channels = file.getframerate(), file.getnchannels()
            data = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, channels)
    except (OSError, EOFError, wave.Error, ValueError) as error:
        if isinstance(error, BadVoice):
            raise
        raise BadVoice("it is no WAV file") from None
    return recording(data.mean(1).round().astype("<i2").tobytes(), rate, longest_s)


class Ear:
    """The two ONNX networks that hear a voice. Safe to call from one thread at a time."""

    def __init__(self, tokenizer: Path, speaker: Path, threads: int) -> None:
        """Raises CheckpointError for a file that is no such network."""
        self._tokenizer = open_speech_tokenizer(tokenizer, threads)
        self._speaker = open_speaker_model(speaker, threads)

    def hear(self, voice: Recording) -> Heard:
        """Raises BadVoice when a network answers with something that is no voice."""
        sound = voice.samples(SAMPLE_RATE_IN)
        codes = self._codes(features.token_mel(sound))
        if not len(codes) or codes.min() < 0 or codes.max() >= CODES:
            raise BadVoice("its codes are none of the tokenizer's")
        fbank = features.speaker_fbank(sound)[None]
        embedding = np.asarray(self._speaker.run(None, {self._speaker.get_inputs()[0].name: fbank})[0], dtype=np.float32).reshape(-1)
        mel = fitted(features.prompt_mel(voice.samples(SAMPLE_RATE_OUT)), 2 * len(codes))
        if not np.isfinite(embedding).all() or not np.isfinite(mel).all():
            raise BadVoice("its features are not finite")
        return Heard(codes, mel, embedding)

    def _codes(self, mel: Array) -> NDArray[np.int64]:
        """int64 [n] of mels [128, frames]; joints of windows lie in the middle of what they share."""
        stride, total = WINDOW_FRAMES - OVERLAP_FRAMES, mel.shape[1]
        if total <= WINDOW_FRAMES:
            return self._window(mel)
        starts = range(0, total, stride)
        parts = [
            self._window(np.pad(part := mel[:, at : at + WINDOW_FRAMES], ((0, 0), (0, WINDOW_FRAMES - part.shape[1]))), part.shape[1])
            for at in starts
        ]
        margin = OVERLAP_FRAMES // FRAMES_PER_CODE // 2
        last = len(parts) - 1
        return np.concatenate([part[margin if n else 0 : -margin if n < last else None] for n, part in enumerate(parts)])

    def _window(self, mel: Array, frames: int | None = None) -> NDArray[np.int64]:
        names = [each.name for each in self._tokenizer.get_inputs()]
        length = np.array([mel.shape[1] if frames is None else frames], dtype=np.int32)
        codes = np.asarray(self._tokenizer.run(None, {names[0]: mel[None], names[1]: length})[0], dtype=np.int64).reshape(-1)
        return codes[: -(-int(length[0]) // FRAMES_PER_CODE)]


def fitted(mel: Array, frames: int) -> Array:
    """Cut to `frames`, or its last frame repeated."""
    return mel[:frames] if len(mel) >= frames else np.concatenate((mel, np.repeat(mel[-1:], frames - len(mel), 0)))
