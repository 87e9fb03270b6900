"""What every reply of the scripted stages must be, sample by sample and word by word."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stage_kit.scripted import SAMPLES_PER_FRAME, ramp, reply
from tests.support.listener import Listener

FRAMES_PER_WORD = 32
SAMPLES_PER_WORD = FRAMES_PER_WORD * SAMPLES_PER_FRAME
WORD_MS = SAMPLES_PER_WORD / 24


def check_whole(listener: Listener, response: dict[str, Any], words: int) -> None:
    """A completed spoken reply: every sample and every word, in order, once."""
    assert response["status"] == "completed"
    session_id = listener.events[0]["session"]["id"]
    heard = np.frombuffer(listener.audio(response["id"]), "<i2")
    assert len(heard) == words * SAMPLES_PER_WORD
    assert np.array_equal(heard, ramp(session_id, 0, len(heard)))
    text = "".join(reply(response["id"], words))
    assert listener.transcript(response["id"]) == text == response["output"][0]["content"][0]["transcript"]


def check_begun(listener: Listener, response_id: str, words: int) -> int:
    """A reply that was cut: what came is the exact beginning of it. Returns the milliseconds that came."""
    session_id = listener.events[0]["session"]["id"]
    heard = np.frombuffer(listener.audio(response_id), "<i2")
    assert np.array_equal(heard, ramp(session_id, 0, len(heard)))
    assert "".join(reply(response_id, words)).startswith(listener.transcript(response_id))
    return len(heard) // 24


def heard_text(response_id: str, words: int, heard_ms: float) -> str:
    """What history keeps of a reply that was heard for so long: up to the last sentence end."""
    sentences = math.floor(heard_ms / WORD_MS) // 6
    return "".join(reply(response_id, words)[: sentences * 6]).rstrip()
