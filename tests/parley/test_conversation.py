"""The spoken conversation and its commands against a real WebSocket server, at real-time pace."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import parley
from parley.commands.conversation import PACKET_BYTES, Conversation, Outcome, Turn
from parley.commands.latency import Timeline, latency_table
from parley.commands.sound import WIRE_RATE, Recording, load_recording
from parley.commands.talk import Server, hold

from .lasting import House as Lasting
from .lasting import serving, signal
from .realtime import REPLY, SESSION, Ears, Peer, Script, realtime_server

QUESTION = (8000 * np.sin(np.arange(WIRE_RATE * 3 // 10) / 9)).astype("<i2").tobytes()  # 300 ms
RECORDING = Recording(QUESTION, 280)


async def converse(script: Script, turn: Turn = "server", reply_timeout_s: float = 10) -> tuple[Outcome, str]:
    screen = io.StringIO()
    async with realtime_server(script) as url, parley.connect(url) as session:
        outcome = await Conversation(session, RECORDING, turn, Console(file=screen, width=200, soft_wrap=True)).run(reply_timeout_s)
    return outcome, screen.getvalue()


@pytest.mark.parametrize(("turn", "detection"), [("server", {"type": "server_vad"}), ("semantic", {"type": "semantic_vad"})])
async def test_a_question_is_spoken_and_the_answer_heard(turn: Turn, detection: dict[str, str]) -> None:
    ears = Ears(["It is ", "[this]."], REPLY)
    outcome, screen = await converse(ears, turn)
    assert ears.update["audio"]["input"]["turn_detection"] == detection
    assert ears.heard.startswith(QUESTION)
    assert (outcome.heard, outcome.answered, outcome.audio, outcome.failure) == ("What is it?", "It is [this].", REPLY, "")
    said = re.sub(r" +\d+\.\d\d s ", "", screen).splitlines()
    assert [line.split() for line in said] == [
        ["voice"], ["hearing", "What"], ["silence"], ["heard", "What", "is", "it?"], ["answers", "It", "is", "[this]."]
    ]  # fmt: skip


async def test_the_pace_is_that_of_a_microphone() -> None:
    ears = Ears(["Yes."], REPLY)
    outcome, _ = await converse(ears)
    spoken = len(QUESTION) // PACKET_BYTES
    assert ears.arrivals[spoken - 1] - ears.arrivals[0] >= (spoken - 1) * 0.020 - 0.015
    steps = ["speech stopped", "transcript", "first text", "first audio"]
    times = [outcome.timeline.after_voice_ms(step) for step in steps]
    assert None not in times
    assert times == sorted(times)
    assert times[0] >= 60  # three silent packets


async def test_by_hand_the_turn_ends_with_a_commit() -> None:
    ears = Ears(["Yes."], REPLY)
    outcome, _ = await converse(ears, "manual")
    assert ears.heard == QUESTION
    assert ears.update["audio"]["input"]["turn_detection"] is None
    assert outcome.failure == ""
    assert next(iter(outcome.timeline.marks)) == "committed"


async def test_an_answer_without_sound_is_a_failure() -> None:
    outcome, _ = await converse(Ears(["Yes."], bytes(len(REPLY))))
    assert outcome.failure == "the answer has no sound"


async def test_a_failed_response_is_a_failure() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.next()
        await peer.emit("session.updated", session=SESSION)
        for _ in range(len(QUESTION) // PACKET_BYTES + 1):
            await peer.next()
        await peer.emit(
            "error", error={"type": "server_error", "code": "stage_failed", "message": "The llm service failed for this response."}
        )
        await peer.emit("response.done", response={"id": "r", "status": "failed", "status_details": {"type": "failed"}, "output": []})
        await peer.read_on()

    outcome, screen = await converse(script)
    assert outcome.failure == "stage_failed: The llm service failed for this response."
    assert "ended     failed" in screen


async def test_no_answer_in_time_is_a_failure() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.welcome()
        await peer.next()
        await peer.emit("session.updated", session=SESSION)
        await peer.read_on()

    outcome, _ = await converse(deaf, reply_timeout_s=0.2)
    assert outcome.failure == "no answer within 0.2 s of the question's end"


async def test_a_refused_update_ends_the_conversation() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.next()
        await peer.emit("error", error={"type": "invalid_request_error", "code": "unsupported_value", "message": "no such turn detection"})
        await peer.read_on()

    with pytest.raises(parley.Refused, match="no such turn detection"):
        await converse(script)


async def test_talk_writes_the_answer_and_the_table(tmp_path: Path) -> None:
    screen = io.StringIO()
    reply = tmp_path / "reply.wav"
    async with realtime_server(Ears(["Yes."], REPLY)) as url:
        assert await hold(Server(url), RECORDING, reply, "server", Console(file=screen, width=200, soft_wrap=True))
    assert load_recording(reply).pcm == REPLY
    for step in ("speech stopped", "transcript", "first text", "first audio"):
        assert re.search(rf"{step} .* \d+ ms", screen.getvalue())


async def test_talk_says_in_one_line_that_nobody_is_there(unused_tcp_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    assert not await hold(Server(url), RECORDING, tmp_path / "reply.wav", "server", Console(file=io.StringIO()))
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("after_ms", [0, 1])
async def test_talk_cuts_its_own_connection_and_shows_that_the_answer_is_whole(after_ms: int, tmp_path: Path) -> None:
    screen, house = io.StringIO(), Lasting()
    house.reply_samples, house.hold_reply_at = 4800, 1200
    async with serving(house) as url:
        console = Console(file=screen, width=200, soft_wrap=True)
        assert await hold(Server(url), RECORDING, tmp_path / "reply.wav", "manual", console, 10, cut_after_ms=after_ms)
    assert load_recording(tmp_path / "reply.wav").pcm == signal(4800)
    assert house.resumes == 1
    assert re.search(r"resumed +after \d+ ms, at event \d+; \d+ came meanwhile; the server has 7200 samples", screen.getvalue())
    assert re.search(r"whole +9600 bytes in 20 pieces, events 3 to 44, none missing, none twice", screen.getvalue())


async def test_talk_says_when_there_was_nothing_to_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house = Lasting()
    house.reply_samples = 480
    console = Console(file=io.StringIO())
    async with serving(house) as url:
        assert not await hold(Server(url), RECORDING, tmp_path / "reply.wav", "manual", console, 10, cut_after_ms=60_000)
    assert "the answer ended before the connection was cut" in capsys.readouterr().err
    async with realtime_server(Ears(["Yes."], REPLY)) as url:
        assert not await hold(Server(url), RECORDING, tmp_path / "reply.wav", "manual", console, 10, cut_after_ms=0)
    assert "does not let this session resume" in capsys.readouterr().err


def test_the_table_follows_the_order_of_what_happened() -> None:
    timeline = Timeline(voice_end=10.0)
    for step, at in (("transcript", 10.7), ("first text", 10.6), ("speech stopped", 10.5)):
        timeline.mark(step, at)
    timeline.mark("transcript", 99.0)
    screen = io.StringIO()
    Console(file=screen, width=120).print(latency_table(timeline))
    rows = re.findall(r"^ *(\w+ ?\w*)  .*?(\d+) ms +(\d+) ms", screen.getvalue(), re.MULTILINE)
    assert [(step.strip(), *times) for step, *times in rows] == [
        ("speech stopped", "500", "500"),
        ("first text", "600", "100"),
        ("transcript", "700", "100"),
    ]
