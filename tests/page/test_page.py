"""The talk page in a headless Chromium: it hears a reply, a voice interrupts it, and typing works without a microphone."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from gateway import web
from tests.embedded.house import EmbeddedHouse
from tests.embedded.recordings import RATE, samples, wav, words
from tests.page.browser import TalkPage
from tests.page.conftest import OpenPage

pytestmark = [pytest.mark.models, pytest.mark.timeout(180)]

QUESTION = "What is the capital of France?"
LEAD_S, GAP_S, TAIL_S = 1.0, 5.0, 2.0
"""The reply to the question lasts longer than the gap, and begins early in it."""


def _microphone(*names: str) -> bytes:
    """The recordings with a gap between them. The browser repeats the last piece for ever: it must be silence."""
    silence = {seconds: np.zeros(int(seconds * RATE), np.float32) for seconds in (LEAD_S, GAP_S, TAIL_S)}
    pieces = [silence[LEAD_S]]
    for name in names:
        pieces += [samples(name), silence[GAP_S]]
    return wav(np.concatenate([*pieces[:-1], silence[TAIL_S]]))


@pytest.mark.behaviour("Y6")
async def test_a_voice_gets_a_reply_and_interrupts_it(open_page: OpenPage) -> None:
    talk = await open_page(microphone=_microphone("synth_q_sky_blue", "synth_stop_interrupt"))
    await talk.start()
    await talk.until("parley.state === 'speaking' && parley.counters.bytesPlayed > 48000 && parley.assistant.join('') !== ''")
    assert await talk.tell("latencyMs") > 0
    (reply,) = talk.of("response.created")
    await talk.until("parley.counters.flushes === 1 && parley.user.length === 2 && parley.user[1] !== ''")
    await talk.until("parley.counters.responses === 2 && parley.state === 'listening'")
    _check_cut(talk, reply["response"]["id"])
    counters = await talk.tell("counters")
    assert (counters["errors"], counters["truncates"]) == (0, 1)
    assert counters["bytesPlayed"] + counters["bytesStale"] <= counters["bytesReceived"]
    lines = await talk.lines()
    kinds = [kind.removesuffix(" wordless") for kind, _ in lines]
    assert kinds == ["user final", "assistant interrupted", "user final", "assistant final"]
    assert "sky blue" in words(lines[0][1]) and {"wait", "stop"} <= set(words(lines[2][1]).split())
    assert lines[3][1].strip()


def _check_cut(talk: TalkPage, response_id: str) -> None:
    """The voice ended the reply, nothing of it came afterwards, and the page told how much of it was heard: less than came."""
    mine = [event for event in talk.events if response_id in (event.get("response_id"), event.get("response", {}).get("id"))]
    end = mine[-1]["response"]
    assert mine[-1]["type"] == "response.done"
    assert (end["status"], end["status_details"]["reason"]) == ("cancelled", "turn_detected")
    came_ms = sum(len(base64.b64decode(event["delta"])) for event in mine if event["type"] == "response.output_audio.delta") // 48
    (truncated,) = [event for event in talk.sent if event["type"] == "conversation.item.truncate"]
    assert truncated["item_id"] == end["output"][0]["id"]
    assert 1000 < truncated["audio_end_ms"] < came_ms


async def test_a_voice_through_the_browsers_own_processing(open_page: OpenPage) -> None:
    """As people use it: echo cancellation, noise suppression and gain control on, turns by meaning."""
    talk = await open_page(microphone=_microphone("synth_q_capital_france"), query="")
    await talk.page.get_by_text("Settings").click()
    await talk.page.get_by_label("Turns end by").select_option("semantic_vad")
    await talk.start()
    await talk.until("parley.counters.responses === 1 && parley.state === 'speaking'")
    await talk.until("parley.state === 'listening' && parley.counters.bytesPlayed === parley.counters.bytesReceived")
    (user,), (assistant,) = await talk.tell("user"), await talk.tell("assistant")
    assert "capital" in words(user) and assistant.strip()


async def test_without_a_microphone_it_says_why_and_takes_typing(open_page: OpenPage) -> None:
    talk = await open_page(microphone=None)
    await talk.start()
    await talk.until("parley.state === 'listening'")
    hint = talk.page.get_by_role("alert")
    assert "microphone is blocked" in (await hint.text_content() or "") and await hint.is_visible()
    assert await talk.page.locator("#state").text_content() == "Type to talk"
    await talk.type_in(QUESTION)
    await talk.until("parley.counters.bytesPlayed > 24000")
    await talk.page.get_by_role("button", name="Interrupt").click()
    await talk.until("parley.counters.flushes === 1 && parley.state === 'listening' && parley.assistant[0] === ''")
    assert await talk.lines() == [("user final", QUESTION), ("assistant interrupted wordless", "(interrupted)")]
    await talk.page.get_by_role("button", name="Stop the conversation").click()
    await talk.until("parley.state === 'idle'")


def test_the_page_is_served_with_its_policy(embedded_house: EmbeddedHouse) -> None:
    status, headers, body = embedded_house.get("/")
    assert status == 200 and b"<title>Parley</title>" in body
    assert {name: headers[name] for name in web.HEADERS} == web.HEADERS
