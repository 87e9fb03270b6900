"""The gateway as a process: slow readers, HTTP, what its metrics and its page say."""

from __future__ import annotations

import json
import re

import pytest

from gateway.conversation.limits import Limits
from gateway.settings import Settings
from gateway.wire import WireLimits
from tests.e2e.conftest import MakeHouse, Talk
from tests.support.checks import check_whole
from tests.support.house import House
from tests.support.listener import Listener

MIB = 1024 * 1024
BUDGET = MIB
ITEM_CHARS = 15_000


@pytest.fixture(scope="module")
def narrow(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateway={"PARLEY_MAX_OUTPUT_BYTES": str(BUDGET), "PARLEY_GRACE_MS": "500"})


async def _flood(reader: Listener, megabytes: int) -> None:
    """Asks for far more than it reads."""
    await reader.type_in("x" * ITEM_CHARS, id="long")
    reader.socket.transport.pause_reading()
    for _ in range(megabytes * MIB // ITEM_CHARS):
        await reader.send("conversation.item.retrieve", item_id="long")


@pytest.mark.behaviour("X13", "O5", "W20")
async def test_a_client_that_does_not_read_costs_little_and_slows_nobody(narrow: House, talk: Talk) -> None:
    other = await talk(narrow)
    check_whole(other, await other.reply("hello", instructions="words=2"), 2)
    slow = await talk(narrow)
    before = narrow.gateway.rss_bytes()
    response = await other.ask("hello", instructions="words=9")
    await _flood(slow, 24)
    check_whole(other, await other.response_done(response["id"]), 9)
    assert narrow.gateway.rss_bytes() - before < 24 * MIB
    await narrow.wait_free_but(other.events[0]["session"]["id"])
    assert narrow.metric("parley_gateway_output_overflows_total") == 1
    assert narrow.metric("parley_gateway_closes_total", reason="disconnect_grace_expired") == 1
    slow.socket.transport.abort()
    check_whole(other, await other.reply("again", instructions="words=2"), 2)


async def test_health_and_models(house: House) -> None:
    status, headers, body = house.get("/health")
    assert (status, json.loads(body)) == (200, {"status": "healthy"}) and headers["Content-Type"] == "application/json"
    listed = json.loads(house.get("/v1/models")[2])
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["parley-embedded"]
    assert house.get("/nowhere")[0] == 404


@pytest.mark.behaviour("W18")
async def test_capabilities_name_every_limit(house: House) -> None:
    told = json.loads(house.get("/v1/realtime/capabilities")[2])
    assert told["model"] == "parley-embedded" and told["stages"] == ["turn", "asr", "llm", "talker", "vocoder"]
    assert told["turn_detection"] == [None, "server_vad", "semantic_vad"]
    assert {"type": "audio/pcm", "rate": 24000} in told["input_audio_formats"]
    assert told["limits"]["max_event_bytes"] == 15 * MIB and told["limits"]["max_frame_bytes"] == 20 * MIB
    bounds = {name for name in Settings.model_fields if re.search(r"_(bytes|ms|s|items|sessions)$", name)}
    names = bounds | set(Limits.__struct_fields__) | set(WireLimits.__struct_fields__)
    assert names <= told["limits"].keys()


async def test_metrics_count_what_happened(house: House, talk: Talk) -> None:
    listener = await talk(house)
    before = house.metric("parley_gateway_responses_total", status="completed")
    await listener.reply()
    assert house.metric("parley_gateway_responses_total", status="completed") == before + 1
    assert house.metric("parley_gateway_sessions") >= 1
    assert house.metric("parley_gateway_opens_total", outcome="accepted") >= 1
    assert house.metric("parley_gateway_chunk_to_client_seconds_count") > 0
    text = house.get("/metrics")[2].decode()
    assert "sess_" not in text and "resp_" not in text


async def test_the_page_and_all_that_it_loads(house: House) -> None:
    status, headers, body = house.get("/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and "default-src 'none'" in headers["Content-Security-Policy"]
    named = re.findall(rb'(?:src|href)="(/?[\w.-]+\.(?:js|css))"', body)
    assert named
    seen = set()
    while named:
        path = "/" + named.pop().decode().lstrip("./")
        if path in seen:
            continue
        seen.add(path)
        status, headers, asset = house.get(path)
        assert status == 200 and headers["X-Content-Type-Options"] == "nosniff", path
        named += re.findall(rb"""(?:from|import|addModule\()\s*["']\.?(/?[\w.-]+\.js)["']""", asset)


@pytest.mark.behaviour("C2")
async def test_no_log_holds_what_was_said(house: House, talk: Talk) -> None:
    listener = await talk(house)
    await listener.type_in("a very secret sentence")
    await listener.socket.send('{"type": "a very secret type", "event_id": "a very secret id"}')
    await listener.until("error")
    done = await listener.reply("words=2")
    spoken = done["output"][0]["content"][0]["transcript"]
    for log in (child.log.read_text() for child in (*house.services.values(), house.gateway)):
        assert "secret" not in log and spoken not in log
