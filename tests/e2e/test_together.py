"""Conversations at once never mix, and sound leaves early, exact and no faster than it is heard."""

from __future__ import annotations

import asyncio
import base64
import time

import pytest

from tests.e2e.conftest import Talk
from tests.support.checks import check_whole
from tests.support.house import House
from tests.support.listener import Listener
from tests.support.speech import utterance


async def _converse(listener: Listener, words: int) -> None:
    """Two spoken turns and a typed one, each checked."""
    for _ in range(2):
        await listener.append(utterance(200 + 20 * words))
        created = await listener.until("response.created")
        check_whole(listener, await listener.response_done(created["response"]["id"]), words)
    check_whole(listener, await listener.reply("hello"), words)


def _check_own(listener: Listener) -> None:
    """Every id of a session carries the session's own, so a stranger's event would show."""
    own = listener.events[0]["session"]["id"].removeprefix("sess_")
    for event in listener.events:
        for name in ("item_id", "response_id", "previous_item_id"):
            assert event.get(name) is None or own in event[name]
    assert len({event["event_id"] for event in listener.events}) == len(listener.events)


@pytest.mark.behaviour("S1", "L10", "O1")
@pytest.mark.parametrize("conversations", [2, 8])
async def test_conversations_at_once_mix_nothing(house: House, talk: Talk, conversations: int) -> None:
    listeners = [await talk(house) for _ in range(conversations)]
    await asyncio.gather(*(each.configure(instructions=f"words={2 + i % 4}") for i, each in enumerate(listeners)))
    await asyncio.gather(*(_converse(each, 2 + i % 4) for i, each in enumerate(listeners)))
    for each in listeners:
        _check_own(each)
        assert len(each.of("response.done")) == 3 and not each.of("error")


@pytest.mark.behaviour("X10")
async def test_sound_leaves_before_the_text_is_complete(house: House, talk: Talk) -> None:
    listener = await talk(house)
    response = await listener.ask("hello", instructions="words=12 words_per_s=8")
    done = await listener.response_done(response["id"])
    check_whole(listener, done, 12)
    types = [each.type for each in listener.heard]
    first_sound = types.index("response.output_audio.delta")
    words_after = types[first_sound:].count("response.output_audio_transcript.delta")
    assert words_after >= 6


async def test_sound_is_never_more_than_a_second_ahead(house: House, talk: Talk) -> None:
    listener = await talk(house)
    asked = time.monotonic()  # before any sound: what arrives late is never taken for sent early
    check_whole(listener, await listener.reply("hello", instructions="words=9"), 9)
    sent_ms, first, ahead, lead, sizes = 0.0, 0.0, [], [], []
    for each in listener.heard:
        if each.type == "response.output_audio.delta":
            first = first or each.at
            sizes.append(len(base64.b64decode(each.event["delta"])) / 48)
            sent_ms += sizes[-1]
            ahead.append(sent_ms - (each.at - asked) * 1000)
            lead.append(sent_ms - (each.at - first) * 1000)
    assert max(ahead) <= 1000
    # nor does the listener run dry before the end, and no delta is longer than 200 ms
    assert min(lead) > 0 and max(sizes) <= 200
