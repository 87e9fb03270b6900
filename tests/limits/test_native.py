"""Limits of the native engines: what a session may bring, and what they hold for it."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from parley_stage.v1 import stage_pb2  # noqa: E402

from minicpmo45.config import tiny  # noqa: E402
from stage_kit import InvalidConfig  # noqa: E402
from talker_svc.minicpmo45.thoughts import BadThought, words  # noqa: E402
from tests.vocoder_svc.minicpmo45.test_voices import ROOM, Holder, Maker  # noqa: E402
from thinker_svc.minicpmo45.voice import chosen_voice as prefix_voice  # noqa: E402
from vocoder_svc.minicpmo45.configuration import chosen_voice as spoken_voice  # noqa: E402
from vocoder_svc.minicpmo45.voices import Voices, VoicesFull  # noqa: E402


def _recording(samples: int) -> dict[str, Any]:
    return {"reference_voice": base64.b64encode(b"\1\0" * samples).decode(), "reference_rate_hz": 16_000}


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("chosen", [prefix_voice, spoken_voice])
def test_a_voice_may_be_so_long_and_not_a_sample_longer(chosen: Any) -> None:
    nobody: Mapping[str, Any] = {}
    assert chosen(_recording(32_000), nobody, 2.0) is not None
    with pytest.raises(InvalidConfig, match="longer than 2 s") as caught:
        chosen(_recording(32_001), nobody, 2.0)
    assert caught.value.param == "reference_voice"


@pytest.mark.behaviour("X14")
def test_a_thought_has_so_many_tokens_and_not_one_more() -> None:
    config = tiny().talker

    def thought(count: int) -> stage_pb2.Thought:
        hidden = torch.zeros(count, config.llm_dim)
        states = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=list(hidden.shape), data=hidden.numpy().tobytes())
        return stage_pb2.Thought(token_ids=[1] * count, hidden=states)

    assert len(words(thought(8), config, 8).token_ids) == 8
    with pytest.raises(BadThought) as caught:
        words(thought(9), config, 8)
    assert caught.value.param == "thought.token_ids"


@pytest.mark.behaviour("X14")
def test_a_voice_waits_for_room_so_long_and_no_longer() -> None:
    wait_s = 0.4
    voices = Voices(Maker(), ROOM, wait_s=wait_s)
    try:
        Holder(voices, 40).wait()
        began = time.monotonic()
        late = Holder(voices, 20).wait()
        took = time.monotonic() - began
        assert isinstance(late.error, VoicesFull) and took >= wait_s
    finally:
        voices.close()
