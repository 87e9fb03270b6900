"""The hot path: 100 ms of 24 kHz PCM16 in and out, each well under the 60 us that its budget allows."""

from __future__ import annotations

import base64
import os
import timeit
from collections.abc import Callable

import pytest

from gateway.conversation import events
from gateway.wire import WireLimits, openai_ga

AUDIO = os.urandom(4800)
FRAME = f'{{"type":"input_audio_buffer.append","event_id":"event_1","audio":"{base64.b64encode(AUDIO).decode()}"}}'
LIMITS = WireLimits()
SESSION = openai_ga.SessionView("sess_ab")
DELTA = events.AudioDelta("resp_1", "item_1", 0, AUDIO)


@pytest.mark.parametrize(
    "call", [lambda: openai_ga.parse(FRAME, LIMITS), lambda: openai_ga.render(DELTA, 1, SESSION)], ids=["append", "delta"]
)
def test_the_hot_path_stays_within_its_budget(call: Callable[[], object]) -> None:
    assert min(timeit.repeat(call, number=200, repeat=20)) / 200 < 60e-6
