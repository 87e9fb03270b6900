"""Bad input over the socket: a typed error that names the client's event, nothing changed, and the conversation goes on."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.e2e.conftest import MakeHouse, Talk
from tests.support.house import House
from tests.support.listener import Listener
from tests.support.speech import tone, utterance

MIB = 1024 * 1024
BAD_FRAMES: list[tuple[str, str, str, str | None]] = [
    # frame, code, param, event_id
    ("{", "invalid_json", "", None),
    ("[1, 2]", "invalid_json", "", None),
    ('{"type": "no.such.event", "event_id": "e"}', "unknown_event_type", "type", "e"),
    ('{"event_id": "e"}', "missing_field", "type", "e"),
    ('{"type": 7, "event_id": "e"}', "invalid_field", "type", "e"),
    ('{"type": "input_audio_buffer.append", "event_id": "e"}', "missing_field", "audio", "e"),
    ('{"type": "input_audio_buffer.append", "audio": 5, "event_id": "e"}', "invalid_field", "audio", "e"),
    ('{"type": "input_audio_buffer.append", "audio": "not base64!", "event_id": "e"}', "invalid_audio", "audio", "e"),
    ('{"type": "input_audio_buffer.append", "audio": "AAA", "event_id": "e"}', "invalid_audio", "audio", "e"),
    ('{"type": "conversation.item.delete", "event_id": "e"}', "missing_field", "item_id", "e"),
    ('{"type": "conversation.item.delete", "item_id": "nobody", "event_id": "e"}', "item_not_found", "item_id", "e"),
    ('{"type": "conversation.item.retrieve", "item_id": "nobody", "event_id": "e"}', "item_not_found", "item_id", "e"),
    ('{"type": "conversation.item.truncate", "item_id": "nobody", "content_index": 0, "audio_end_ms": 0, "event_id": "e"}',
     "item_not_found", "item_id", "e"),
    ('{"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": "1", "event_id": "e"}',
     "invalid_field", "audio_end_ms", "e"),
    ('{"type": "response.cancel", "event_id": "e"}', "response_cancel_not_active", "", "e"),
    ('{"type": "response.cancel", "response_id": "other", "event_id": "e"}', "response_cancel_not_active", "response_id", "e"),
    ('{"type": "input_audio_buffer.commit", "event_id": "e"}', "input_audio_buffer_commit_empty", "", "e"),
    ('{"type": "session.update", "session": {"type": "realtime", "model": "other"}, "event_id": "e"}',
     "model_update_unsupported", "session.model", "e"),
    ('{"type": "session.update", "session": {"instructions": "x"}, "event_id": "e"}', "missing_field", "session.type", "e"),
    ('{"type": "session.update", "session": {"type": "realtime", "modalities": ["text"]}, "event_id": "e"}',
     "beta_api_unsupported", "session.modalities", "e"),
    ('{"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"format": {"type": "audio/opus"}}}}, "event_id": "e"}',
     "unsupported_value", "session.audio.input.format.type", "e"),
]  # fmt: skip


async def _answer(listener: Listener, frame: str | bytes) -> dict[str, Any]:
    await listener.socket.send(frame)
    event = await listener.until("error")
    error: dict[str, Any] = event["error"]
    return error


async def _usable(listener: Listener) -> None:
    """A whole turn works, by voice and by hand."""
    await listener.append(utterance())
    spoken = await listener.until("response.created")
    assert (await listener.response_done(spoken["response"]["id"]))["status"] == "completed"


@pytest.mark.behaviour("W14", "U40")
async def test_every_bad_frame_is_answered_by_type_and_changes_nothing(house: House, talk: Talk) -> None:
    listener = await talk(house)
    before = await listener.configure(instructions="words=1")
    for frame, code, param, event_id in BAD_FRAMES:
        error = await _answer(listener, frame)
        assert (error["code"], error["param"] or "", error["event_id"]) == (code, param, event_id), frame
        assert error["type"] == "invalid_request_error" and error["message"]
    error = await _answer(listener, json.dumps({"type": "session.update"}).encode())
    assert error["code"] == "binary_frame_unsupported"
    assert await listener.configure() == before
    assert {event["type"] for event in listener.events} == {"session.created", "session.updated", "error"}
    await _usable(listener)


@pytest.mark.behaviour("W14")
async def test_an_event_over_15_mib_is_refused_and_a_frame_over_20_mib_closes_1009(house: House, talk: Talk) -> None:
    listener = await talk(house)
    head = '{"type": "input_audio_buffer.append", "event_id": "big", "audio": "'
    error = await _answer(listener, head + "A" * (15 * MIB + 1 - len(head) - 2) + '"}')
    assert (error["code"], error["event_id"]) == ("event_too_large", "big")
    await listener.configure(audio={"input": {"turn_detection": None}})
    largest = (15 * MIB - len(head) - 2) // 4 * 4
    await listener.socket.send(head + "A" * largest + '"}')
    await listener.send("input_audio_buffer.clear")
    await listener.until("input_audio_buffer.cleared")
    assert len(listener.of("error")) == 1
    await listener.configure(audio={"input": {"turn_detection": {"type": "server_vad"}}}, instructions="words=1")
    await _usable(listener)
    with pytest.raises(ConnectionClosed):
        await listener.socket.send("x" * (20 * MIB + 1))
        await listener.socket.wait_closed()
        await listener.socket.send("x")
    assert (await listener.until_closed())[0] == 1009


@pytest.mark.behaviour("B1")
async def test_more_than_16_mib_pending_is_refused_until_a_clear(house: House, talk: Talk) -> None:
    listener = await talk(house)
    await listener.configure(audio={"input": {"turn_detection": None}}, instructions="words=1")
    eight_mib = base64.b64encode(bytes(8 * MIB)).decode()
    for _ in range(2):
        await listener.send("input_audio_buffer.append", audio=eight_mib)
    over = await listener.send("input_audio_buffer.append", audio="AAAA")
    error = await listener.error(over)
    assert (error["code"], error["type"]) == ("input_audio_buffer_full", "rate_limit_error")
    await listener.send("input_audio_buffer.clear")
    await listener.until("input_audio_buffer.cleared")
    await listener.append(tone(300))
    await listener.send("input_audio_buffer.commit")
    item_id = (await listener.until("input_audio_buffer.committed"))["item_id"]
    await listener.send("response.create")
    await listener.until("response.done")
    assert (await listener.item(item_id))["content"][0]["transcript"] == "heard 300 ms"
    assert len(listener.of("error")) == 1


async def test_a_split_sample_is_joined_and_dropped_at_a_clear(house: House, talk: Talk) -> None:
    listener = await talk(house)
    await listener.configure(audio={"input": {"turn_detection": None}}, instructions="words=1")
    await listener.append(tone(300), piece_bytes=4801)
    await listener.send("input_audio_buffer.commit")
    first = (await listener.until("input_audio_buffer.committed"))["item_id"]
    await listener.append(b"\x01")
    await listener.send("input_audio_buffer.clear")
    await listener.append(tone(200), piece_bytes=4801)
    await listener.send("input_audio_buffer.commit")
    second = (await listener.until("input_audio_buffer.committed"))["item_id"]
    await listener.reply("words=1")
    assert (await listener.item(first))["content"][0]["transcript"] == "heard 300 ms"
    assert (await listener.item(second))["content"][0]["transcript"] == "heard 200 ms"


@pytest.mark.behaviour("U39")
async def test_one_response_at_a_time(house: House, talk: Talk) -> None:
    listener = await talk(house)
    response = await listener.ask("words=30")
    second = await listener.send("response.create")
    assert (await listener.error(second))["code"] == "response_already_active"
    await listener.send("response.cancel")
    cancelled = await listener.response_done(response["id"])
    assert cancelled["status"] == "cancelled" and cancelled["usage"] is not None
    again = await listener.send("response.cancel")
    assert (await listener.error(again))["code"] == "response_cancel_not_active"
    assert (await listener.reply("words=1"))["status"] == "completed"
    assert [r["response"]["id"] for r in listener.of("response.done")].count(response["id"]) == 1


async def _refused(url: str, **options: Any) -> tuple[int, Any, dict[str, Any]]:
    """(status, headers, error object) of an upgrade that is not let in."""
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, **options):
            pass
    answer = caught.value.response
    assert answer.headers["Content-Type"] == "application/json"
    error: dict[str, Any] = json.loads(answer.body or b"")["error"]
    return answer.status_code, answer.headers, error


@pytest.mark.behaviour("W18")
async def test_foreign_models_and_modes_are_refused_before_the_upgrade(house: House, talk: Talk) -> None:
    status, _, error = await _refused(house.realtime + "?model=gpt-realtime")
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    for query, param in (
        ("duplex=1", "duplex"),
        ("intent=transcription", "intent"),
        ("resume=token", "resume"),
        ("resume=sess_1", "resume"),
        ("session_id=x", "session_id"),
    ):
        status, _, error = await _refused(f"{house.realtime}?{query}")
        assert (status, error["code"], error["param"]) == (400, "unsupported_mode", param)
    status, _, error = await _refused(house.realtime, additional_headers={"OpenAI-Beta": "realtime=v1"})
    assert (status, error["code"]) == (400, "beta_api_unsupported")
    listener = await talk(house, "?model=parley-embedded")
    assert await house.wait_free_but(listener.events[0]["session"]["id"])


async def test_keys_by_header_and_by_subprotocol(make_house: MakeHouse, talk: Talk) -> None:
    house = make_house(services=("all",), gateway={"PARLEY_API_KEYS": "first-key, second", "PARLEY_TENANT_MAX_SESSIONS": "2"})
    for options in (
        {},
        {"additional_headers": {"Authorization": "Bearer wrong"}},
        {"additional_headers": {"Authorization": "Bearer "}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]},
    ):
        status, headers, error = await _refused(house.realtime, **options)
        assert (status, error["code"], headers["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert await house.held() == []
    by_header = await talk(house, additional_headers={"Authorization": "Bearer first-key"})
    by_subprotocol = await talk(house, subprotocols=["realtime", "openai-insecure-api-key.second"])
    assert by_subprotocol.socket.subprotocol == "realtime" and by_header.socket.subprotocol is None
    await talk(house, additional_headers={"Authorization": "Bearer second"})
    status, headers, error = await _refused(house.realtime, additional_headers={"Authorization": "Bearer second"})
    assert (status, error["code"]) == (429, "tenant_limit") and int(headers["Retry-After"]) >= 1
    assert (await by_header.reply())["status"] == "completed"
    logged = house.gateway.log.read_text()
    assert "first key" not in logged and "second" not in logged
