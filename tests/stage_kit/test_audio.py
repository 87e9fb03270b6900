"""Codecs and resampling: nothing lost, nothing added, whatever the pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parley_stage.v1 import stage_pb2

from stage_kit.audio import ALAW, FLOAT32, PCM16, ULAW, Format, Resampler, decode, encode
from stage_kit.audio_in import AudioIn
from stage_kit.audio_out import AudioOut
from stage_kit.engine import InvalidConfig, Label

RATES = [(24000, 16000), (16000, 24000), (8000, 16000), (24000, 8000), (22050, 24000), (16000, 16000)]
LABEL = Label(0, 1, "r")


def tone(rate: int, count: int, hz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(count) / rate)).astype(np.float32)


def test_g711_reference_values() -> None:
    scaled = {code: int(decode(bytes([code]), ULAW)[0] * 32768) for code in (0xFF, 0x7F, 0x00, 0x80, 0xF0)}
    assert scaled == {0xFF: 0, 0x7F: 0, 0x00: -32124, 0x80: 32124, 0xF0: 120}
    scaled = {code: int(decode(bytes([code]), ALAW)[0] * 32768) for code in (0xD5, 0x55, 0x2A, 0xAA)}
    assert scaled == {0xD5: 8, 0x55: -8, 0x2A: -32256, 0xAA: 32256}


@pytest.mark.parametrize("encoding", [ULAW, ALAW])
def test_g711_codes_survive_a_round_trip(encoding: int) -> None:
    codes = bytes(range(256))
    values = decode(codes, encoding)
    assert np.array_equal(decode(encode(values, encoding), encoding), values)
    everything = np.arange(-32768, 32768, dtype=np.float32) / 32768
    error = np.abs(decode(encode(everything, encoding), encoding) - everything)
    assert np.all(error <= np.maximum((np.abs(everything) + 132 / 32768) / 31, 8 / 32768))  # half a step of its segment


def test_pcm_is_exact_and_clips() -> None:
    every = np.arange(-32768, 32768, dtype="<i2")
    assert encode(decode(every.tobytes(), PCM16), PCM16) == every.tobytes()
    loud = np.array([2.0, -2.0, np.nan, np.inf], np.float32)
    assert np.frombuffer(encode(loud, PCM16), "<i2").tolist() == [32767, -32768, 0, 32767]
    assert decode(encode(loud, FLOAT32), FLOAT32).tolist() == [1.0, -1.0, 0.0, 1.0]
    assert np.array_equal(decode(encode(tone(16000, 99), FLOAT32), FLOAT32), tone(16000, 99))
    assert encode(np.zeros(0, np.float32), PCM16) == b"" and len(decode(b"", ULAW)) == 0


@pytest.mark.parametrize(("source", "target"), RATES)
def test_resampling_keeps_every_sample(source: int, target: int) -> None:
    resampler = Resampler(source, target)
    signal = tone(source, source * 2)
    worst_ms, made = 0.0, 0
    pieces = []
    for start in range(0, len(signal), source // 50):
        piece = resampler.push(signal[start : start + source // 50])
        pieces.append(piece)
        made += len(piece)
        worst_ms = max(worst_ms, (start + source // 50) / source * 1000 - made / target * 1000)
    whole = np.concatenate([*pieces, resampler.flush()])
    assert len(whole) == target * 2
    assert worst_ms <= 40
    assert np.sqrt(np.mean(whole[target // 2 : -target // 2] ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=12), st.sampled_from([PCM16, ULAW, ALAW]), st.integers(10, 200))
def test_speech_out_is_contiguous_whatever_the_pieces(cuts: list[int], encoding: int, piece_ms: int) -> None:
    rate = 24000 if encoding == PCM16 else 8000
    out = AudioOut(Format(encoding, rate), 24000, piece_ms)
    signal = tone(24000, sum(cuts))
    made: list[stage_pb2.Audio] = []
    start = 0
    for index, count in enumerate(cuts):
        made += [each.audio for each in out.push(signal[start : start + count], LABEL, (), last=index == len(cuts) - 1)]
        start += count
    samples = 0
    for audio in made:
        assert audio.start_sample == samples and 0 < audio.samples <= max(1, piece_ms * rate // 1000)
        samples += audio.samples
    assert abs(samples - len(signal) * rate / 24000) <= 0.5
    if encoding == PCM16:
        assert b"".join(audio.data for audio in made) == encode(signal, PCM16)


def test_a_new_response_starts_with_a_fresh_filter() -> None:
    out = AudioOut(Format(ULAW, 8000), 24000, 100)
    out.push(tone(24000, 5000), LABEL, (), last=False)  # cut off: its rest must not be heard later
    fresh = AudioOut(Format(ULAW, 8000), 24000, 100)
    other = Label(1, 1, "s")
    expected = fresh.push(tone(24000, 4800), other, (), last=True)
    assert out.push(tone(24000, 4800), other, (), last=True) == expected


def test_marks_leave_with_the_sound_that_they_mark() -> None:
    out = AudioOut(Format(PCM16, 24000), 24000, 100)
    marks = [stage_pb2.Mark(text_chars=3, audio_ms=150), stage_pb2.Mark(text_chars=9, audio_ms=1000)]
    pieces = out.push(tone(24000, 7200), LABEL, marks, last=False)
    assert [[mark.text_chars for mark in piece.audio.marks] for piece in pieces] == [[], [3], []]
    ending = out.push(tone(24000, 0), LABEL, (), last=True)
    assert [[mark.text_chars for mark in piece.audio.marks] for piece in ending] == [[9]]


def test_speech_in_changes_its_format_without_losing_a_sample() -> None:
    audio_in = AudioIn(Format(PCM16, 24000), 16000)
    total = 0
    for index in range(10):
        audio = stage_pb2.Audio(data=encode(tone(24000, 480), PCM16), samples=480, start_sample=index * 480)
        total += len(audio_in.take(audio, index + 1)[0])
    assert total < 3200 and audio_in.delivered_ms < audio_in.end_ms == 200
    audio_in.change(Format(ULAW, 8000))
    samples, start_ms, end_ms = audio_in.take(stage_pb2.Audio(data=encode(tone(8000, 160), ULAW), samples=160, start_sample=1600), 11)
    total += len(samples) + len(audio_in.tail())
    assert (total, start_ms, end_ms) == (3200 + 320, 200, 220)
    assert len(audio_in.tail()) == 0


def test_a_format_that_nobody_speaks_is_refused() -> None:
    with pytest.raises(InvalidConfig) as refused:
        Format.of(stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_G711_ULAW, sample_rate_hz=16000), "input_format")
    assert refused.value.param == "input_format"
