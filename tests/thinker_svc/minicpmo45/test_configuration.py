"""What a session may configure, and what is refused by name."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stage_kit import InvalidConfig
from thinker_svc.minicpmo45.configuration import SessionConfig, frozen_changes, session_config
from thinker_svc.minicpmo45.voice import named_voices

WINDOW = 1024
VOCABULARY = 151_748


def _pcm(samples: int) -> str:
    return base64.b64encode(np.zeros(samples, "<i2").tobytes()).decode()


def _config(**fields: Any) -> SessionConfig:
    return session_config(fields, {}, 17.0, WINDOW, VOCABULARY)


def test_everything_is_taken() -> None:
    found = _config(
        instructions="Hi.", temperature=1, top_k=0, top_p=0.5, repetition_penalty=1.2, length_penalty=1.0, listen_prob_scale=2,
        listen_top_k=3, listen_token="im_end", greedy=True, seed=9, max_new_tokens_per_unit=8, max_chars_per_unit=9,
        force_listen_count=0, window="context",
        window_high_tokens=500, window_low_tokens=300, window_units=5, window_previous_tokens=50, previous="Before.", max_slices=9,
        listen_until_ms=30_000, reference_voice=_pcm(16_000),
    )  # fmt: skip
    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.listen_token, found.rules) == (1, 0, "im_end", (8, 9))
    assert (found.window.mode, found.window.high_tokens, found.window.units) == ("context", 500, 5) and found.voice is not None
    assert _config().window.high_tokens == 896 and session_config({}, {}, 17.0, 8192 * 4, VOCABULARY).window == SessionConfig().window


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *(("temperature", value) for value in (math.nan, math.inf, 0, -1, 2.5, "1", True, None)),
        *(("top_p", value) for value in (-0.1, 1.1, math.nan)),
        *(("top_k", value) for value in (-1, 1.5, True)),
        *(("repetition_penalty", 0), ("length_penalty", math.nan), ("listen_prob_scale", -1), ("listen_top_k", -1), ("listen_token", "x")),
        *(("greedy", 1), ("seed", -1), ("seed", 1 << 63), ("max_new_tokens_per_unit", 1), ("max_new_tokens_per_unit", 65)),
        *(("max_chars_per_unit", 0), ("force_listen_count", -1), ("window", "big"), ("window", []), ("window_high_tokens", WINDOW + 1)),
        *(("window_low_tokens", 900), ("previous", 3), ("instructions", None), ("instructions", "x" * 65_537), ("instructions", "\ud800")),
        *(("max_slices", 0), ("max_slices", 10), ("temprature", 1), ("voice", "nobody"), ("voice", 3), ("listen_until_ms", -1)),
        *(("reference_voice", value) for value in (3, "no base64!", "", "AAA=", _pcm(7_999), _pcm(17 * 16_000 + 1))),
        *(("reference_voice", base64.b64encode(pcm).decode()) for pcm in (b"RIFF" + bytes(40_000), bytes(32_001))),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(param: str, value: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        _config(**{param: value})
    assert refused.value.param == param and "\n" not in refused.value.why


def test_a_recap_leaves_room_for_units() -> None:
    """It grows while units leave: what it may become is judged before."""
    assert _config(window_previous_tokens=WINDOW // 4).window.previous_tokens == WINDOW // 4
    with pytest.raises(InvalidConfig, match="window_previous_tokens: more than"):
        _config(window_previous_tokens=WINDOW // 4 + 1)


def test_a_voice_is_said_once_and_at_a_usual_rate() -> None:
    with pytest.raises(InvalidConfig) as refused:
        _config(reference_voice=_pcm(16_000), voice="somebody")
    assert refused.value.param == "voice"
    with pytest.raises(InvalidConfig) as refused:
        _config(reference_voice=_pcm(16_000), reference_rate_hz=12_345)
    assert refused.value.param == "reference_rate_hz"
    voice = _config(reference_voice=_pcm(24_000), reference_rate_hz=24_000).voice
    assert voice is not None and len(voice.samples()) == 16_000


def test_voices_have_names(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    named = named_voices(tiny_checkpoint, tmp_path, 17.0)
    config = session_config({"voice": "HT_ref_audio"}, named, 17.0, WINDOW, VOCABULARY)
    assert config.voice is not None and 40_000 < len(config.voice.samples()) < 60_000
    with pytest.raises(InvalidConfig, match="voice: its file cannot be read"):
        session_config({"voice": "broken"}, named, 17.0, WINDOW, VOCABULARY)
    assert named_voices(tiny_checkpoint, None, 1.0)["HT_ref_audio"] == "it is longer than 1 s"


def test_what_holds_from_the_first_unit_on() -> None:
    held = _config()
    assert frozen_changes(held, _config(temperature=1.0, window="off", seed=3)) == []
    assert frozen_changes(held, _config(instructions="Other.", previous="x", reference_voice=_pcm(16_000))) == [
        "instructions",
        "voice",
        "previous",
    ]
