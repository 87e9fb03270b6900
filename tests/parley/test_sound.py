"""WAV files as recordings, and where the voice in them ends."""

from __future__ import annotations

import gc
import wave
from pathlib import Path

import numpy as np
import pytest

from parley.commands.sound import WIRE_RATE, BadRecording, Recording, is_sound, load_recording, write_wav
from parley.commands.up import QUESTION


def tone(seconds: float, rate: int, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def wav(path: Path, samples: np.ndarray, rate: int, width: int = 2, channels: int = 1) -> Path:
    """Writes float samples [n] as PCM of any width, alike on each channel."""
    scaled = samples * 127 + 128 if width == 1 else samples * (2 ** (8 * width - 1) - 1)
    # the low bytes of little-endian int32 are the sample at any narrower width
    raw = scaled.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    frames = np.frombuffer(raw, np.uint8).reshape(len(samples), width)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(np.repeat(frames[:, None], channels, axis=1).tobytes())
    return path


@pytest.mark.parametrize(("rate", "width", "channels"), [(24000, 2, 1), (16000, 2, 1), (44100, 3, 2), (8000, 1, 1), (48000, 4, 2)])
def test_any_plain_wav_becomes_the_wire_format(rate: int, width: int, channels: int, tmp_path: Path) -> None:
    samples = np.concatenate([tone(0.5, rate), np.zeros(rate // 2, np.float32)])
    recording = load_recording(wav(tmp_path / "in.wav", samples, rate, width, channels))
    pcm = np.frombuffer(recording.pcm, "<i2").astype(np.float32) / 32767
    assert abs(len(pcm) - WIRE_RATE) <= 2
    middle = pcm[2400:9600]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.5 / np.sqrt(2), rel=0.03)
    assert 490 <= recording.voice_end_ms <= 520


def test_the_shipped_question() -> None:
    recording = load_recording(QUESTION)
    assert recording.duration_ms > 1000
    assert 0.5 < recording.voice_end_ms / recording.duration_ms <= 1.0


def test_a_reply_can_be_read_back(tmp_path: Path) -> None:
    pcm = (tone(0.1, WIRE_RATE) * 32767).astype("<i2").tobytes()
    write_wav(tmp_path / "reply.wav", pcm)
    assert load_recording(tmp_path / "reply.wav").pcm == pcm


def test_what_cannot_be_spoken_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(BadRecording, match="cannot read"):
        load_recording(tmp_path / "text.wav")
    with pytest.raises(BadRecording, match="cannot read"):
        load_recording(tmp_path / "none.wav")
    with pytest.raises(BadRecording, match="no voice"):
        load_recording(wav(tmp_path / "silent.wav", np.zeros(1000, np.float32), 16000))
    with pytest.raises(BadRecording, match="no voice"):
        load_recording(wav(tmp_path / "empty.wav", np.zeros(0, np.float32), 16000))


def test_a_file_that_was_cut_off_is_spoken_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = wav(tmp_path / "whole.wav", tone(0.5, WIRE_RATE), WIRE_RATE, channels=2).read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:-24_003])
    assert load_recording(tmp_path / "cut.wav").duration_ms == 249


def test_odd_headers_are_said(tmp_path: Path) -> None:
    header = bytearray(wav(tmp_path / "in.wav", tone(0.1, WIRE_RATE), WIRE_RATE).read_bytes())
    header[24:28] = bytes(4)
    (tmp_path / "in.wav").write_bytes(header)
    (tmp_path / "nothing.wav").touch()
    for name, why in (("in", "sample rate of 0"), ("nothing", "too short")):
        with pytest.raises(BadRecording, match=why):
            load_recording(tmp_path / f"{name}.wav")


def test_a_reply_that_cannot_be_written_is_one_error(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(FileNotFoundError):
        write_wav(tmp_path / "nowhere" / "reply.wav", b"")
    gc.collect()
    assert not recwarn.list


def test_silence_is_no_sound() -> None:
    assert not is_sound(b"")
    assert not is_sound(bytes(100))
    assert is_sound(bytes(98) + b"\x01\x00")


def test_duration() -> None:
    assert Recording(bytes(48_000), 10).duration_ms == 1000
