"""The vocoder as a process, through the contract: formats, credit, cancel, pieces."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import pytest
import soxr
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from tests.talker_svc.support.stage import ROOT, StageSession, service
from vocoder_svc.embedded.decoder import CHANNELS, HOP_SAMPLES, RATE_HZ, PiperDecoder

pytestmark = pytest.mark.models
PLENTY_MS = 60_000
PCM, ULAW, ALAW = stage_pb2.AUDIO_ENCODING_PCM_S16LE, stage_pb2.AUDIO_ENCODING_G711_ULAW, stage_pb2.AUDIO_ENCODING_G711_ALAW
WIDTH = {PCM: 2, ULAW: 1, ALAW: 1}
FORMATS = [(PCM, 24000), (PCM, 16000), (ULAW, 8000), (ALAW, 8000)]


@pytest.fixture(scope="module")
def whole(decoder: PiperDecoder, latents: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 samples of one decode."""
    return decoder.decode(latents)


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with service("vocoder_svc", tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
        yield channel


def _payload(values: NDArray[np.float32], begins: bool = True, chars: int = 0) -> stage_pb2.Payload:
    tensor = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=values.shape, data=values.tobytes())
    latents = stage_pb2.Latents(values=tensor, rate_hz=RATE_HZ / HOP_SAMPLES, begins=begins, ends=chars > 0)
    if chars:
        latents.mark.text_chars = chars
    return stage_pb2.Payload(latents=latents)


def _label(epoch: int, response_id: str) -> stage_pb2.Label:
    return stage_pb2.Label(epoch=epoch, turn=1, response_id=response_id)


async def _say(session: StageSession, label: stage_pb2.Label, latents: NDArray[np.float32], *, last: bool = True) -> None:
    await session.append(label, _payload(latents[:, :100]))
    await session.append(label, _payload(latents[:, 100:], begins=False, chars=55), last=last)


def _heard(chunks: list[stage_pb2.Chunk]) -> NDArray[np.float32]:
    """float32 samples of the declared format; G.711 by its definition."""
    audio = [chunk.payload.audio for chunk in chunks if chunk.payload.HasField("audio")]
    data, encoding = b"".join(each.data for each in audio), audio[0].format.encoding
    if encoding == PCM:
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    codes = np.frombuffer(data, np.uint8).astype(np.int32)
    if encoding == ULAW:
        codes = ~codes & 0xFF
        value = ((((codes & 0x0F) << 3) + 0x84) << ((codes >> 4) & 7)) - 0x84
        sign = np.where(codes & 0x80, -1, 1)
    else:
        codes ^= 0x55
        exponent, mantissa = (codes >> 4) & 7, (codes & 0x0F) << 4
        value = np.where(exponent == 0, mantissa + 8, (mantissa + 0x108) << np.maximum(exponent - 1, 0))
        sign = np.where(codes & 0x80, 1, -1)
    return (sign * value / 32768).astype(np.float32)


def _spectrum_db(samples: NDArray[np.float32], rate: int) -> NDArray[np.float64]:
    """Level of eight bands from 300 to 3400 Hz, relative to their sum."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    bins = np.linspace(300, 3400, 9) * len(samples) / rate
    bands = np.array([power[int(low) : int(high)].sum() for low, high in pairwise(bins)])
    return 10 * np.log10(bands / bands.sum())


def _alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Correlation at the best of a few samples' delay."""
    length = min(len(one), len(other)) - 8
    return max(float(np.corrcoef(one[lag : lag + length], other[:length])[0, 1]) for lag in range(8))


@pytest.mark.behaviour("FR56", "FR59", "X10")
async def test_every_format_is_what_it_says_it_is(
    channel: grpc.aio.Channel, latents: NDArray[np.float32], whole: NDArray[np.float32]
) -> None:
    for encoding, rate in FORMATS:
        session = StageSession(channel, "vocoder", f"session-{encoding}-{rate}")
        assert await session.open("talker", {}, stage_pb2.AudioFormat(encoding=encoding, sample_rate_hz=rate)) is None
        await session.credit(PLENTY_MS)
        await _say(session, _label(0, "resp"), latents)
        chunks = await session.until_last("resp")
        audio = [chunk.payload.audio for chunk in chunks if chunk.payload.HasField("audio")]
        assert {(each.format.encoding, each.format.sample_rate_hz) for each in audio} == {(encoding, rate)}
        made = 0
        for each in audio:
            assert each.start_sample == made and len(each.data) == each.samples * WIDTH[encoding]
            made += each.samples
        assert abs(made - len(whole) * rate / RATE_HZ) <= 2
        lengths_ms = [each.samples * 1000 / rate for each in audio]
        assert all(20 <= length <= 200 for length in lengths_ms[:-1]) and lengths_ms[-1] <= 200, lengths_ms
        marks = [mark for each in audio for mark in each.marks]
        assert [(mark.text_chars, mark.audio_ms) for mark in marks] == [(55, round(len(whole) * 1000 / RATE_HZ))]
        heard, expected = _heard(chunks), soxr.resample(whole, RATE_HZ, rate)
        assert _alike(heard, expected) > 0.95
        assert np.abs(_spectrum_db(heard, rate) - _spectrum_db(expected, rate)).max() < 1.0
        await session.close()


@pytest.mark.behaviour("O4", "O1")
async def test_no_sound_beyond_credit_and_none_after_a_cancel(channel: grpc.aio.Channel, latents: NDArray[np.float32]) -> None:
    session = StageSession(channel, "vocoder", "session")
    await session.open("talker", {}, stage_pb2.AudioFormat(encoding=PCM, sample_rate_hz=24000))
    other = StageSession(channel, "vocoder", "other")
    await other.open("talker", {}, stage_pb2.AudioFormat(encoding=PCM, sample_rate_hz=24000))
    await session.credit(500)
    await other.credit(PLENTY_MS)
    await _say(session, _label(0, "old"), latents, last=False)
    await _say(other, _label(0, "their"), latents)
    whole = _heard(await other.until_last("their"))
    sent_ms = sum(chunk.payload.audio.samples for chunk in session.chunks("old")) * 1000 / 24000
    assert 300 <= sent_ms <= 500
    await session.cancel(0)
    await session.credit(PLENTY_MS)
    seen = len(session.events)
    await _say(session, _label(1, "new"), latents)
    assert np.array_equal(_heard(await session.until_last("new")), whole)
    assert all(event.chunk.label.response_id != "old" for event in session.events[seen:])
    assert sum(chunk.payload.audio.samples for chunk in session.chunks("old")) * 1000 / 24000 == sent_ms
    await session.append(_label(1, "silent"), _payload(np.zeros((CHANNELS, 0), np.float32), chars=3), last=True)
    end = (await session.until_last("silent"))[-1]
    assert end.last and [(mark.text_chars, mark.audio_ms) for mark in end.payload.audio.marks] == [(3, 0)]
    await session.append(_label(1, "empty"), last=True)
    assert (await session.until_last("empty"))[-1].finish.reason == stage_pb2.Finish.REASON_STOP
    for each in (session, other):
        await each.close()


async def test_a_missing_model_is_told_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PARLEY_MODELS": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vocoder_svc", env=environment, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    lines = [line for line in said.decode().splitlines() if line.startswith("vocoder:")]
    assert process.returncode == 1 and len(lines) == 1 and "parley models fetch" in lines[0]
