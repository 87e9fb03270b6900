"""Audio at a stage's edge: coding and sample rate. Nothing else in the house touches a sample's rate.

Resampling is soxr in its variable-rate mode at a constant ratio: exact sample totals, images below -110 dB, and 10 to 30 ms of delay
where the fixed-rate mode has 36 to 115 ms.
"""

from __future__ import annotations

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit.engine import InvalidConfig, Samples

PCM16 = stage_pb2.AUDIO_ENCODING_PCM_S16LE
FLOAT32 = stage_pb2.AUDIO_ENCODING_PCM_F32LE
ULAW = stage_pb2.AUDIO_ENCODING_G711_ULAW
ALAW = stage_pb2.AUDIO_ENCODING_G711_ALAW
WIDTH: dict[int, int] = {PCM16: 2, FLOAT32: 4, ULAW: 1, ALAW: 1}
CLIENT_FORMATS = ((PCM16, 24000), (PCM16, 16000), (PCM16, 8000), (FLOAT32, 24000), (FLOAT32, 16000), (ULAW, 8000), (ALAW, 8000))
NOTHING: Samples = np.zeros(0, np.float32)


class Format(msgspec.Struct, frozen=True):
    """Coding (AudioEncoding) and rate in Hz."""

    encoding: int
    rate: int

    @classmethod
    def of(cls, message: stage_pb2.AudioFormat, param: str) -> Format:
        """The format of a message. Raises InvalidConfig for one that no stage takes."""
        if (message.encoding, message.sample_rate_hz) not in CLIENT_FORMATS:
            raise InvalidConfig(param, f"no such audio format: encoding {message.encoding} at {message.sample_rate_hz} Hz")
        return cls(int(message.encoding), message.sample_rate_hz)

    def proto(self) -> stage_pb2.AudioFormat:
        """The same as a message."""
        return stage_pb2.AudioFormat(encoding=stage_pb2.AudioEncoding.Name(self.encoding), sample_rate_hz=self.rate)

    def ms(self, samples: int) -> int:
        """Whole milliseconds that this many samples last."""
        return samples * 1000 // self.rate


class Formats(msgspec.Struct, frozen=True):
    """What a session agreed on at its two edges with the client; None where the stage has none."""

    input: Format | None
    output: Format | None


def _ulaw_table() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _alaw_table() -> NDArray[np.int16]:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent, mantissa = (code >> 4) & 7, (code & 0x0F) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, (mantissa + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


_DECODE: dict[int, NDArray[np.int16]] = {ULAW: _ulaw_table(), ALAW: _alaw_table()}


def _nearest_codes(table: NDArray[np.int16]) -> NDArray[np.uint8]:
    """For each 16-bit value (offset by 32768) the code whose value is nearest; ties go to the smaller magnitude."""
    order = np.argsort(table, kind="stable")
    levels = table[order].astype(np.int32)
    values = np.arange(-32768, 32768, dtype=np.int32)
    above = np.clip(np.searchsorted(levels, values), 1, len(levels) - 1)
    low, high = values - levels[above - 1], levels[above] - values
    pick = np.where((low < high) | ((low == high) & (values > 0)), above - 1, above)
    return order[pick].astype(np.uint8)


_ENCODE: dict[int, NDArray[np.uint8]] = {encoding: _nearest_codes(table) for encoding, table in _DECODE.items()}


def decode(data: bytes, encoding: int) -> Samples:
    """Coded bytes to float32 in [-1, 1)."""
    if encoding == FLOAT32:
        return np.frombuffer(data, "<f4").astype(np.float32)
    if encoding == PCM16:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
    return _DECODE[encoding][np.frombuffer(data, np.uint8)].astype(np.float32) / np.float32(32768)


def encode(samples: Samples, encoding: int) -> bytes:
    """float32 to coded bytes: rounded to nearest, clipped at full scale, NaN to silence."""
    if encoding == FLOAT32:
        return bytes(np.clip(np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0).astype("<f4").data)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = samples * np.float32(32768)
        # or too loud to tell
        has_holes = not np.isfinite(scaled.dot(scaled))
    if has_holes:
        scaled = np.nan_to_num(scaled, nan=0.0, posinf=32767.0, neginf=-32768.0)
    np.rint(scaled, out=scaled)
    pcm = np.clip(scaled, -32768, 32767, out=scaled).astype("<i2")
    if encoding == PCM16:
        return bytes(pcm.data)
    return bytes(_ENCODE[encoding][pcm.astype(np.int32) + 32768].data)


class Resampler:
    """One direction of one stream. Equal rates pass samples through untouched."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._taken = self._given = 0
        self._stream = self._new()

    def _new(self) -> soxr.ResampleStream | None:
        return None if self._source == self._target else soxr.ResampleStream(self._source, self._target, 1, quality="HQ", vr=True)

    def push(self, samples: Samples) -> Samples:
        """float32 [n] in, float32 [m] out: m over a stream is n * target / source, late by the filter's delay."""
        if self._stream is None:
            return samples
        resampled: Samples = self._stream.resample_chunk(samples)
        self._taken, self._given = self._taken + len(samples), self._given + len(resampled)
        return resampled

    def flush(self) -> Samples:
        """What the filter still holds; the next push begins a new stream."""
        if self._stream is None:
            return NOTHING
        tail: Samples = self._stream.resample_chunk(NOTHING, last=True)
        missing = (self._taken * self._target * 2 + self._source) // (2 * self._source) - self._given
        if len(tail) < missing:
            # the filter's own end may be a sample short
            tail = np.concatenate([tail, np.full(missing - len(tail), tail[-1] if len(tail) else 0.0, np.float32)])
        self._stream, self._taken, self._given = self._new(), 0, 0
        return tail[:missing]
