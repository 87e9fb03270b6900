"""A voice from its recording, and what is no voice."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from minicpmo45 import token2wav
from stage_kit import InvalidConfig
from tests.vocoder_svc.minicpmo45.sounds import pcm, text
from vocoder_svc.minicpmo45 import features
from vocoder_svc.minicpmo45.configuration import chosen_voice, named_voices
from vocoder_svc.minicpmo45.voice import BadVoice, Ear, Recording, fitted, read_wav, recording


@pytest.fixture(scope="module")
def ear(checkpoint: Path) -> Ear:
    return Ear(token2wav.speech_tokenizer(checkpoint), token2wav.speaker_model(checkpoint), 1)


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_codes_mel_and_speaker_fit_each_other(ear: Ear, rate: int) -> None:
    heard = ear.hear(Recording(pcm(rate, 2.03), rate))
    assert heard.codes.dtype == np.int64 and heard.codes.shape == (51,) and set(heard.codes) <= set(range(6561))
    assert heard.mel.shape == (102, 80) and np.isfinite(heard.mel).all()
    # 2.03 s have 101 frames: the last one is repeated
    assert np.array_equal(heard.mel[-1], heard.mel[-2])
    assert heard.embedding.shape == (192,) and heard.embedding.std() > 0


@pytest.mark.parametrize("seconds", [0.5, 1.99, 2.0, 2.01, 2.03, 3.0, 4.005, 16.8, 17.0, 63.0])
def test_how_many_codes_a_recording_has_is_known_before_it_is_heard(ear: Ear, seconds: float) -> None:
    """What is captured at start follows from it, and must be what is met."""
    voice = Recording(pcm(16_000, seconds), 16_000)
    assert voice.codes == len(ear.hear(voice).codes)


def test_the_same_voice_at_two_rates_is_nearly_the_same(ear: Ear) -> None:
    low, high = (ear.hear(Recording(pcm(rate, 2.0), rate)) for rate in (16_000, 48_000))
    assert low.codes.shape == high.codes.shape and low.mel.shape == high.mel.shape


def test_long_recordings_are_heard_in_windows(ear: Ear, checkpoint: Path) -> None:
    """Independent: three windows of 30 s, each without the 2 s next to a joint."""
    voice = Recording(pcm(16_000, 63.0), 16_000)
    mel = features.token_mel(voice.samples(16_000))
    session = onnxruntime.InferenceSession(str(token2wav.speech_tokenizer(checkpoint)))
    parts = []
    for at in range(0, mel.shape[1], 2600):
        part = mel[:, at : at + 3000]
        padded = np.zeros((1, 128, 3000), np.float32)
        padded[0, :, : part.shape[1]] = part
        parts.append(session.run(None, {"feats": padded, "feats_length": np.array([part.shape[1]], np.int32)})[0].ravel())
    expected = np.concatenate((parts[0][:-50], parts[1][50:-50], parts[2][50:]))
    codes = ear.hear(voice).codes
    assert len(codes) == len(expected) == 1575 and np.array_equal(codes, expected)


def test_mels_are_cut_or_the_last_one_repeated() -> None:
    mel = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert np.array_equal(fitted(mel, 2), mel[:2])
    assert np.array_equal(fitted(mel, 5)[2:], np.tile(mel[2], (3, 1)))


def test_equal_recordings_have_equal_keys() -> None:
    data = pcm(16_000, 1)
    assert Recording(data, 16_000).key == Recording(bytes(data), 16_000).key != Recording(data, 24_000).key


@pytest.mark.parametrize(
    ("data", "rate", "why"),
    [
        (b"", 16_000, "empty"),
        (b"\0" * 16_001, 16_000, "odd number of bytes"),
        (b"RIFF" + b"\0" * 32_000, 16_000, "header"),
        (b"\0" * 15_998, 16_000, "shorter than 500 ms"),
        (b"\0" * 64_002, 16_000, "longer than 2 s"),
        (b"\0" * 32_000, 12_345, "rate"),
    ],
)
def test_what_is_no_voice_is_refused(data: bytes, rate: int, why: str) -> None:
    with pytest.raises(BadVoice, match=why):
        recording(data, rate, 2.0)


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"reference_voice": ""}, "reference_voice"),
        ({"reference_voice": "§"}, "reference_voice"),
        ({"reference_voice": 5}, "reference_voice"),
        ({"reference_voice": text(b"\0" * 33_001)}, "reference_voice"),
        ({"reference_voice": text(b"\0" * 1_000_000)}, "reference_voice"),
        ({"reference_voice": text(b"\0" * 32_000), "reference_rate_hz": 11}, "reference_rate_hz"),
        ({"reference_voice": text(b"\0" * 32_000), "reference_rate_hz": "16000"}, "reference_rate_hz"),
        ({"reference_voice": text(b"\0" * 32_000), "voice": "HT_ref_audio"}, "voice"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": "../config"}, "voice"),
        ({"voice": 3}, "voice"),
        ({"voice": "stereo_float"}, "voice"),
        ({"speed": 2}, "speed"),
    ],
)
def test_a_bad_configuration_names_its_field(checkpoint: Path, tmp_path: Path, config: dict[str, Any], param: str) -> None:
    (tmp_path / "stereo_float.wav").write_bytes(b"RIFF nothing")
    named = named_voices(checkpoint, tmp_path, 17.0)
    with pytest.raises(InvalidConfig) as refused:
        chosen_voice(config, named, 17.0)
    assert refused.value.param == param


def test_voices_by_name_by_recording_and_by_default(checkpoint: Path, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "anna.wav"), "wb") as file:
        file.setparams((2, 2, 24_000, 0, "NONE", ""))
        file.writeframes(np.repeat(np.frombuffer(pcm(24_000, 1), "<i2"), 2).tobytes())
    named = named_voices(checkpoint, tmp_path, 17.0)
    assert chosen_voice({"voice": "anna"}, named, 17.0) == Recording(pcm(24_000, 1), 24_000)
    assert chosen_voice({}, named, 17.0) == chosen_voice({"voice": "HT_ref_audio"}, named, 17.0)
    assert chosen_voice({"reference_voice": text(pcm(16_000, 1))}, named, 17.0) == Recording(pcm(16_000, 1), 16_000)
    with pytest.raises(BadVoice, match=r"longer than 0\.7 s"):
        read_wav(tmp_path / "anna.wav", 0.7)


def test_features_that_are_not_finite_are_no_voice(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "prompt_mel", lambda samples: np.full((60, 80), np.nan, np.float32))
    with pytest.raises(BadVoice, match="not finite"):
        ear.hear(Recording(pcm(16_000, 1), 16_000))


@pytest.mark.parametrize("codes", [[], [6561], [-1]])
def test_codes_that_no_tokenizer_gives_are_no_voice(ear: Ear, monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    monkeypatch.setattr(ear, "_codes", lambda mel: np.array(codes, dtype=np.int64))
    with pytest.raises(BadVoice, match="codes"):
        ear.hear(Recording(pcm(16_000, 1), 16_000))
