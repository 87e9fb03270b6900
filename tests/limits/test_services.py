"""Limits of the engines: what a session may ask of them, and what they hold for it."""

from __future__ import annotations

import numpy as np
import pytest

from stage_kit import InvalidConfig
from thinker_svc.embedded.asr_audio import PER_MS, AudioRing
from thinker_svc.remote_chat_stream import Choice, Completion, Delta, Event, UpstreamError
from vad_svc.config import TurnConfig, parse
from vad_svc.session import RATE, Session
from vad_svc.settings import TurnSettings


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize(("field", "setting"), [("prefix_padding_ms", "prefix_most_ms"), ("silence_duration_ms", "silence_most_ms")])
def test_what_a_session_may_ask_of_the_detector(field: str, setting: str) -> None:
    settings = TurnSettings(**{setting: 700})
    assert getattr(parse({field: 700}, settings), field) == 700
    with pytest.raises(InvalidConfig) as caught:
        parse({field: 701}, settings)
    assert caught.value.param == field


@pytest.mark.behaviour("X14")
def test_sound_that_waits_for_the_detector_is_bounded() -> None:
    session = Session(TurnSettings(max_pending_s=2), TurnConfig())
    assert session.take(np.zeros(2 * RATE, np.float32), 0)
    assert not session.take(np.zeros(1, np.float32), 2000), "one sample more, and the oldest is let go"
    assert session.received - session.next == 2 * RATE


@pytest.mark.behaviour("X14")
def test_sound_that_the_recognizer_holds_is_bounded() -> None:
    ring = AudioRing(most_ms=1000)
    assert ring.append(np.zeros(1000 * PER_MS, np.float32), 0, 0.0)
    assert not ring.append(np.zeros(PER_MS, np.float32), 1000, 0.1), "a millisecond more, and the oldest is let go"
    assert (ring.start_ms, ring.end_ms) == (1, 1001)


@pytest.mark.behaviour("X14")
def test_an_outside_answer_has_so_many_characters_and_not_one_more() -> None:
    completion = Completion(max_chars=10)
    assert completion.take(_says("12345")) + completion.take(_says("67890")) == "1234567890"
    with pytest.raises(UpstreamError, match="max_output_chars"):
        completion.take(_says("1"))


def _says(text: str) -> Event:
    return Event(choices=[Choice(delta=Delta(content=text))])
