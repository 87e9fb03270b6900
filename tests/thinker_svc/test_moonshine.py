"""The recognizer model: its vocabulary file, its decoder, and what is not speech."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.thinker_svc.support.hearing import recording
from thinker_svc.embedded.asr_recognizer import Recognizer, spoken
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.models import ModelMissing, models_root
from thinker_svc.embedded.moonshine import LEAST_SAMPLES, Heard, Moonshine, Vocabulary

RATE = 16_000


@pytest.fixture(scope="module")
def model() -> Moonshine:
    if not (models_root() / "moonshine-tiny").exists():
        pytest.skip("the models are not here")
    return Moonshine()


@pytest.fixture(scope="module")
def recognizer(model: Moonshine) -> Recognizer:
    return Recognizer(AsrSettings())


def test_vocabulary_reads_short_and_long_entries() -> None:
    long = b"x" * 300
    content = b"\x01a\x01b\x01c" + b"\x04\xe2\x96\x81t" + bytes([300 % 128 + 128, 300 // 128]) + long + b"\x00"
    vocabulary = Vocabulary(content)
    assert len(vocabulary) == 6
    assert vocabulary.text((3, 4)) == "t" + long.decode()


def test_vocabulary_joins_byte_pieces() -> None:
    vocabulary = Vocabulary(b"\x01a\x01b\x01c\x01\xc3\x01\xa9\x04\xe2\x96\x81z")
    assert vocabulary.text((3, 4, 5)) == "é z"
    assert vocabulary.text((3, 5)) == "\ufffd z"


@pytest.mark.parametrize("content", [b"\x05ab", b"\x80", b"\x81\x01" + b"x" * 128])
def test_truncated_vocabulary_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="ends inside an entry"):
        Vocabulary(content)


def test_missing_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"parley\.models fetch"):
        Moonshine(tmp_path)


@pytest.mark.models
def test_real_vocabulary(model: Moonshine) -> None:
    assert len(model.vocabulary) == 32_768


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cards_001", "Ten of clubs."),
        ("goforward", "Go forward ten meters."),
        ("synth_q_capital_france", "What is the capital of France?"),
        ("synth_q_sky_blue", "Why is the sky blue?"),
    ],
)
def test_recordings(model: Moonshine, name: str, text: str) -> None:
    heard = model.transcribe(recording(name))
    assert heard.text == text
    assert not heard.capped
    assert -1 < heard.confidence <= 0


@pytest.mark.models
def test_audio_over_nine_seconds(model: Moonshine) -> None:
    """The decoder thins the encoder's mask by 384 samples: a mask of another length fails from 384 hidden states on."""
    heard = model.transcribe(np.concatenate([recording("librivox_sense_0870"), recording("librivox_sense_0890")]))
    assert "Dashwood" in heard.text
    assert "selfish" in heard.text


@pytest.mark.models
def test_shortest_audio(model: Moonshine) -> None:
    model.transcribe(recording("cards_001")[:LEAST_SAMPLES])
    with pytest.raises(ValueError, match="too short"):
        model.transcribe(np.zeros(LEAST_SAMPLES - 1, np.float32))


def _noise(level: float, seconds: float) -> np.ndarray:
    return (np.random.default_rng(1).standard_normal(int(RATE * seconds)) * level).astype(np.float32)


@pytest.mark.models
@pytest.mark.parametrize("seconds", [0.3, 1.0, 3.0])
def test_no_words_without_speech(recognizer: Recognizer, seconds: float) -> None:
    t = np.arange(int(RATE * seconds)) / RATE
    sounds = {
        "silence": np.zeros(t.size),
        "faint noise": _noise(0.001, seconds),
        "noise": _noise(0.01, seconds),
        "loud noise": _noise(0.1, seconds),
        "hum": 0.05 * (np.sin(2 * np.pi * 60 * t) + 0.3 * np.sin(2 * np.pi * 180 * t)),
        "tone": 0.05 * np.sin(2 * np.pi * 440 * t),
    }
    assert {name: text for name, sound in sounds.items() if (text := recognizer.text(sound.astype(np.float32)))} == {}


def _heard(text: str, tokens: tuple[int, ...], confidence: float = -0.2, *, capped: bool = False) -> Heard:
    return Heard(text, tokens, confidence, capped)


def test_bare_word_is_noise_and_a_sentence_is_not() -> None:
    assert spoken(_heard("You", (887,))) == ()
    assert spoken(_heard("You?", (887, 30))) == (887, 30)


def test_loop_of_cut_off_speech_keeps_its_first_round() -> None:
    assert spoken(_heard("had then, Lee, Lee, Lee,", (1, 2, 3, 9, 4, 9, 4, 9, 4), capped=True)) == (1, 2, 3, 9, 4)


def test_loop_of_noise_is_nothing() -> None:
    assert spoken(_heard("The 2020-2020-2020", (5, 1, 2, 1, 2, 1, 2), -0.9, capped=True)) == ()


def test_repetition_that_the_model_ended_itself_stays() -> None:
    assert spoken(_heard("No, no, no, no.", (7, 4, 7, 4, 7, 4, 7, 6))) == (7, 4, 7, 4, 7, 4, 7, 6)
