"""A session outlives its socket: it is resumed on the same gateway or on another, exactly, by whoever has its token, and by nobody else."""

from __future__ import annotations

import asyncio
import time

import pytest
from websockets.exceptions import InvalidStatus

from session_store import Store, StoreSettings
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import STOCK, Line, Way, number, refusal_by_message, until_trusted
from tests.support.checks import check_whole
from tests.support.house import House
from tests.support.speech import silence, tone, ulaw, utterance

WORDS = 6
GRACE_MS = 4000
SETTINGS = {"PARLEY_GRACE_MS": str(GRACE_MS), "PARLEY_RESUME_TIMEOUT_MS": "400", "PARLEY_REAP_INTERVAL_S": "0.3", **PATIENT}
WAYS: tuple[Way, ...] = (*STOCK, "message")


@pytest.fixture(scope="module")
def pair(make_house: MakeHouse) -> House:
    """Two gateways before one set of stages."""
    return make_house(services=("all",), gateways=2, gateway=SETTINGS)


async def refused(line: Line, url: str, **options: object) -> tuple[int, str]:
    """(status, code) of a stock client's resume that is not let in."""
    with pytest.raises(InvalidStatus) as caught:
        await line.resume(url, "query", **options)  # type: ignore[arg-type]
    body = caught.value.response.body or b""
    return caught.value.response.status_code, body.decode().partition('"code":"')[2].partition('"')[0]


@pytest.mark.behaviour("R2", "R3", "Y1")
@pytest.mark.parametrize("where", [0, 1], ids=["same-gateway", "another-gateway"])
async def test_a_lost_connection_is_taken_up_again_in_mid_sentence(pair: House, dial: Dial, where: int) -> None:
    await asyncio.gather(*(_take_up_again(pair, dial, where, way) for way in WAYS))


async def _take_up_again(pair: House, dial: Dial, where: int, way: Way) -> None:
    first = await dial(pair.realtimes[0], extended=way == "message")
    response_id = await first.speaking(WORDS, 2)
    first.vanish()
    line = await first.resume(pair.realtimes[where], way)
    done = await line.response_done(response_id)
    check_whole(line, done, WORDS)
    check_whole(line, await line.reply("again", instructions="words=2"), 2)
    line.check_numbers()
    assert not line.of("error")


@pytest.mark.behaviour("R3")
async def test_what_was_said_to_nobody_is_replayed_in_order(pair: House, dial: Dial) -> None:
    """The whole reply is made while no one listens, and far more of it than may wait for a live socket."""
    first = await dial(pair.realtimes[0], extended=True)
    response_id = await first.speaking(WORDS)
    first.vanish()
    await asyncio.to_thread(_until_responses, pair, await asyncio.to_thread(_responses, pair) + 1)
    line = await first.resume(pair.realtimes[1])
    resumed = line.of("session.resumed")[0]
    assert resumed["first_seq"] == first.last + 1 and resumed["seq"] > resumed["first_seq"]
    check_whole(line, await line.response_done(response_id), WORDS)
    line.check_numbers()


def _responses(house: House) -> float:
    return house.metric("parley_gateway_responses_total", status="completed")


def _until_responses(house: House, count: float) -> None:
    deadline = time.monotonic() + 15
    while _responses(house) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_replay_is_not_bound_by_what_may_wait_for_a_slow_reader(make_house: MakeHouse, dial: Dial) -> None:
    house = make_house(services=("all",), gateway={**SETTINGS, "PARLEY_MAX_OUTPUT_BYTES": "100000"})
    first = await dial(house.realtimes[0])
    response_id = await first.speaking(WORDS)
    first.vanish()
    await asyncio.to_thread(_until_responses, house, 1)
    line = await first.resume(house.realtimes[0])
    check_whole(line, await line.response_done(response_id), WORDS)
    line.check_numbers()


@pytest.mark.behaviour("R6", "X6")
@pytest.mark.parametrize("where", [0, 1], ids=["same-gateway", "another-gateway"])
async def test_a_resume_of_an_attached_session_replaces_its_socket(pair: House, dial: Dial, where: int) -> None:
    await asyncio.gather(*(_replace(pair, dial, where, extended) for extended in (False, True)))


async def _replace(pair: House, dial: Dial, where: int, extended: bool) -> None:
    old = await dial(pair.realtimes[0], extended=extended)
    response_id = await old.speaking(WORDS)
    line = await old.resume(pair.realtimes[where])
    assert await old.until_closed() == (1008, "session_taken_over")
    assert [event["type"] for event in old.of("session.replaced")] == ["session.replaced"] * extended
    check_whole(line, await line.response_done(response_id), WORDS)
    line.check_numbers()
    assert line.closed is None, "the old socket's end is not the session's"


@pytest.mark.behaviour("X1", "R3")
async def test_a_killed_gateway_is_heard_to_the_end_of_its_sentence_on_another(pair: House, dial: Dial) -> None:
    lines = [await dial(pair.realtimes[0], extended=way == "message") for way in WAYS]
    await asyncio.gather(*(line.reply("remember this", instructions="words=1") for line in lines))
    replies = await asyncio.gather(*(line.speaking(WORDS, 2) for line in lines))
    await asyncio.to_thread(pair.gateway.kill)
    try:
        await asyncio.gather(*(_hear_to_the_end(pair, *each) for each in zip(lines, WAYS, replies, strict=True)))
    finally:
        await asyncio.to_thread(pair.restart_gateway)


async def _hear_to_the_end(pair: House, first: Line, way: Way, response_id: str) -> None:
    await first.until_closed()
    line = await first.resume(pair.realtimes[0], way)
    check_whole(line, await line.response_done(response_id), WORDS)
    told = await line.reply("recite", instructions="words=1", output_modalities=["text"])
    assert "remember this" in told["output"][0]["content"][0]["text"]
    line.check_numbers()


@pytest.mark.behaviour("X2", "X16")
async def test_our_clients_words_are_heard_whole_through_a_killed_gateway(pair: House, dial: Dial) -> None:
    """It sends again from the sample that it is told, and what it said before and after becomes one turn."""
    first = await dial(pair.realtimes[0], extended=True)
    hears = {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}}
    await first.configure(audio={"input": hears}, instructions="words=2")
    said = tone(1200) + silence(800)
    await first.append(said[: len(said) // 4], 1001 * 2)
    await first.until("input_audio_buffer.speech_started")
    await asyncio.to_thread(pair.gateway.kill)
    try:
        line = await first.resume(pair.realtimes[0])
        samples = line.of("session.resumed")[0]["input_samples"]
        assert 0 < samples <= len(said) // 8
        await line.append(said[2 * samples :], 777 * 2)
        stopped = await line.until("input_audio_buffer.speech_stopped")
        heard = await line.until("conversation.item.input_audio_transcription.completed")
        (started,) = line.of("input_audio_buffer.speech_started")
        assert stopped["audio_end_ms"] - started["audio_start_ms"] == pytest.approx(1200, abs=40)
        assert heard["transcript"] == f"heard {stopped['audio_end_ms'] - started['audio_start_ms']} ms"
        check_whole(line, (await line.until("response.done"))["response"], 2)
        line.check_numbers()
    finally:
        await asyncio.to_thread(pair.restart_gateway)


@pytest.mark.behaviour("R3", "X1")
async def test_a_session_is_resumed_again_and_again_within_one_reply(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0], extended=True)
    response_id = await line.speaking(2 * WORDS)
    for turn in range(4):
        line.vanish()
        line = await line.resume(pair.realtimes[turn % 2])
        await line.until("response.output_audio.delta")
    check_whole(line, await line.response_done(response_id), 2 * WORDS)
    line.check_numbers()


@pytest.mark.behaviour("L3", "R5")
async def test_of_many_resumes_at_once_one_has_the_session(pair: House, dial: Dial) -> None:
    first = await dial(pair.realtimes[0], extended=True)
    response_id = await first.speaking(WORDS)
    first.vanish()
    tries = await asyncio.gather(*(first.resume(pair.realtimes[n % 2]) for n in range(6)), return_exceptions=True)
    lines = [each for each in tries if isinstance(each, Line)]
    assert all(isinstance(each, (Line, AssertionError)) for each in tries)
    ended = [asyncio.create_task(line.until_closed()) for line in lines]
    async with asyncio.timeout(10):
        while sum(each.done() for each in ended) < len(lines) - 1:
            await asyncio.wait([each for each in ended if not each.done()], return_when=asyncio.FIRST_COMPLETED)
    (winner,) = (line for line, each in zip(lines, ended, strict=True) if not each.done())
    assert {each.result() for each in ended if each.done()} <= {(1008, "session_taken_over")}
    check_whole(winner, await winner.response_done(response_id), WORDS)
    winner.check_numbers()
    for each in ended:
        each.cancel()


# who may


@pytest.mark.behaviour("R9", "R1")
async def test_a_wrong_token_and_an_unknown_session_touch_nothing(pair: House, dial: Dial) -> None:
    await until_trusted(pair)
    line = await dial(pair.realtimes[0])
    response_id = await line.speaking(3)
    for url in pair.realtimes:
        assert await refused(line, url, token="x" * 43) == (403, "invalid_resume_token")
        assert await refusal_by_message(url, line.session_id, "x" * 43) == ("invalid_resume_token", (1008, "invalid_resume_token"))
        nobody = f"sess_{'0' * 32}"
        assert await refusal_by_message(url, nobody, line.token) == ("session_resume_expired", (1008, "session_resume_expired"))
        assert await refusal_by_message(url, "sess_:{*}", line.token) == ("session_resume_expired", (1008, "session_resume_expired"))
    check_whole(line, await line.response_done(response_id), 3)
    line.check_numbers()


@pytest.mark.behaviour("R1", "R4")
async def test_a_token_rotates_and_the_old_one_is_good_until_the_client_speaks(pair: House, dial: Dial) -> None:
    first = await dial(pair.realtimes[0])
    first.vanish()
    second = await first.resume(pair.realtimes[1])
    assert second.token != first.token and len(second.token) >= 43
    second.vanish()
    third = await first.resume(pair.realtimes[0])  # as if the answer that carried the second token had been lost
    await third.reply("words=1")
    third.vanish()
    for old in (first, second):
        assert await refused(old, pair.realtimes[1], last=third.last) == (403, "invalid_resume_token")
    last = await third.resume(pair.realtimes[1])
    check_whole(last, await last.reply("hello", instructions="words=2"), 2)
    logs = "".join(child.log.read_text() for child in (*pair.services.values(), *pair.gateways))
    assert not any(line.token in logs for line in (first, second, third, last))


@pytest.mark.behaviour("R1")
async def test_a_token_is_worth_nothing_under_another_key(make_house: MakeHouse, dial: Dial) -> None:
    house = make_house(services=("all",), gateway={**SETTINGS, "PARLEY_API_KEYS": "mine,theirs"})

    def key(name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {name}"}

    line = await dial(house.realtimes[0], additional_headers=key("mine"))
    line.vanish()
    await until_trusted(house)
    query = f"?resume={line.session_id}&resume_token={line.token}"
    with pytest.raises(InvalidStatus) as caught:
        await dial(house.realtimes[0] + query, additional_headers=key("theirs"))
    assert caught.value.response.status_code == 403
    back = await dial(house.realtimes[0] + query, additional_headers=key("mine"))
    assert back.session_id == line.session_id


@pytest.mark.behaviour("L1", "R7")
async def test_after_the_grace_the_session_is_over_and_its_slots_are_free(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0])
    await line.reply("words=1")
    await pair.wait_free_but(line.session_id)
    line.vanish()
    took_s = await pair.wait_free(30)
    assert took_s > GRACE_MS / 1000 - 0.5
    for url in pair.realtimes:
        assert await refused(line, url) == (410, "session_resume_expired")
    assert await pair.records(line.session_id) == ["closed"]


@pytest.mark.behaviour("R7")
async def test_a_goodbye_ends_the_session_at_once(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0])
    await line.speaking(WORDS)
    await line.socket.close()
    await pair.wait_free()
    async with await Store.open(pair.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
        assert (await store.records.load(line.session_id)).record.reason == "client_closed", "no grace had to pass"
    assert await refused(line, pair.realtimes[0]) == (410, "session_resume_expired")


@pytest.mark.behaviour("R9")
async def test_a_client_that_announced_a_resume_must_say_it(pair: House) -> None:
    from tests.failover.line import _connect
    from tests.support.listener import Listener

    silent = Listener(await _connect(pair.realtimes[0] + "?parley=1&resume=1"))
    assert (await silent.until("error"))["error"]["code"] == "resume_timeout"
    assert await silent.until_closed() == (1008, "resume_timeout")
    asked = {"session_id": "sess_1", "resume_token": "t"}
    for kind, fields, code in (
        ("response.create", {}, "invalid_field"),
        ("session.resume", {}, "missing_field"),
        ("session.resume", {**asked, "last_seq": -1}, "invalid_field"),
        ("session.resume", {**asked, "unnumbered": 2**60}, "invalid_field"),
    ):
        other = Listener(await _connect(pair.realtimes[0] + "?parley=1&resume=1"))
        await other.send(kind, **fields)
        assert (await other.until("error"))["error"]["code"] == code
        assert await other.until_closed() == (1008, code), "to dial again would not help"


# what is kept


@pytest.mark.behaviour("R2", "R8")
async def test_a_gap_in_the_journal_is_announced_and_the_conversation_goes_on(make_house: MakeHouse, dial: Dial) -> None:
    house = make_house(services=("all",), gateway={**SETTINGS, "PARLEY_JOURNAL_MAX_BYTES": "60000"})
    lines = [await dial(house.realtimes[0], extended=extended) for extended in (True, False)]
    await asyncio.gather(*(_resume_over_a_gap(house, line) for line in lines))


async def _resume_over_a_gap(house: House, line: Line) -> None:
    await line.reply("hello", instructions="words=6")
    line.vanish()
    back = await line.resume(house.realtimes[0], last=3)
    await back.until(lambda event: number(event) is not None)
    # what the old connection had on its way may still come there
    shared = sum(ours is theirs for ours, theirs in zip(back.heard, line.heard, strict=False))
    events = [each.event for each in back.heard[shared:]]
    names = [event["type"] for event in events[:2]]
    if line.extended:
        assert names == ["session.resumed", "session.resync_required"]
        assert events[1]["reason"] == "journal_gap" and events[1]["first_seq"] == events[0]["first_seq"] > 4
        assert number(events[1]) == events[1]["first_seq"] - 1, "in the place of the last that is lost"
        assert not back.of("session.replaced")
    else:
        assert names[0] == "session.created" and not back.of("session.resync_required")
    check_whole(back, await back.reply("again", instructions="words=2"), 2)


@pytest.mark.behaviour("R2")
async def test_what_the_client_acknowledged_is_not_kept(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0], extended=True)
    await line.reply("words=2")
    acked = line.last
    await line.send("session.event_ack", seq=acked)
    await line.type_in("the next commit drops what was acknowledged")
    async with await Store.open(pair.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
        record = (await store.records.load(line.session_id)).record
    assert record.first_kept_seq == acked + 1 and record.last_seq == line.last
    line.vanish()
    back = await line.resume(pair.realtimes[1])
    assert not back.of("session.resync_required", "error")
    check_whole(back, await back.reply("hello", instructions="words=2"), 2)
    back.check_numbers()


@pytest.mark.parametrize("extended", [False, True], ids=["stock", "ours"])
async def test_negotiated_formats_survive(pair: House, dial: Dial, extended: bool) -> None:
    first = await dial(pair.realtimes[0], extended=extended)
    pcmu = {"type": "audio/pcmu"}
    audio = {"input": {"format": pcmu, "turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}}}
    await first.configure(audio={**audio, "output": {"format": pcmu}}, instructions="words=2")
    first.vanish()
    line = await first.resume(pair.realtimes[1])
    told = line.events[len(first.events)]["session"]
    assert told["audio"]["input"]["format"]["type"] == told["audio"]["output"]["format"]["type"] == "audio/pcmu"
    await line.append(ulaw(utterance(400, 8000)), 800)
    started, stopped = await line.until("input_audio_buffer.speech_started"), await line.until("input_audio_buffer.speech_stopped")
    heard = await line.until("conversation.item.input_audio_transcription.completed")
    assert heard["transcript"] == f"heard {stopped['audio_end_ms'] - started['audio_start_ms']} ms"
    done = (await line.until("response.done"))["response"]
    assert done["status"] == "completed"
    assert len(line.audio(done["id"])) == 2 * 32 * 256 // 3, "8000 samples a second of one byte each"
    line.check_numbers()
