"""The voice: pronounces without espeak, and gives the same latents for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from talker_svc.embedded.split import main
from talker_svc.embedded.voice import CHANNELS, Manner, PiperVoice, VoiceMissing

pytestmark = pytest.mark.models


def test_the_same_seed_gives_the_same_latents(voice: PiperVoice) -> None:
    first = voice.speak("Hello there, my friend.", "resp_1:0", Manner())
    voice.speak("Something else in between.", "resp_2:0", Manner())
    again = voice.speak("Hello there, my friend.", "resp_1:0", Manner())
    other = voice.speak("Hello there, my friend.", "resp_1:1", Manner())
    assert first.shape[0] == CHANNELS and first.dtype == np.float32
    assert np.array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_length_stretches_speech(voice: PiperVoice) -> None:
    quick, slow = (voice.speak("It is a fine day today.", "s", Manner(length=length)).shape[1] for length in (0.7, 2.0))
    assert 2.0 < slow / quick < 4.0


def test_phonemes_are_framed_and_padded(voice: PiperVoice) -> None:
    ids = voice.phonemes("Hi.")
    assert (ids[0], ids[-1]) == (1, 2)
    assert set(ids[1::2]) == {0}


def test_without_a_sound_there_are_no_frames(voice: PiperVoice) -> None:
    assert voice.phonemes("#") == []
    assert voice.speak("#", "s", Manner()).shape == (CHANNELS, 0)


def test_a_missing_voice_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(VoiceMissing, match=r"^[^\n]*parley models fetch$"):
        PiperVoice(tmp_path)


def test_what_is_no_voice_is_refused_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, kind, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    source = tmp_path / "other.onnx"
    onnx.save(helper.make_model(graph), str(source))
    assert main([str(source), str(tmp_path / "out")]) == 1
    assert list((tmp_path / "out").iterdir()) == []
    assert capsys.readouterr().err.count("\n") == 1
    assert main([]) == 2
