"""The spoken conversation and its commands against a real WebSocket server, at real-time pace."""

from __future__ import annotations

import base64
import io
import re
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import parley
from parley.commands import app
from parley.commands.conversation import PACKET_BYTES, Conversation, Outcome, Turn
from parley.commands.ending import EXIT_CODES, EXIT_HELP, Ending, Kind
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
    assert (outcome.heard, outcome.answered, outcome.audio) == ("What is it?", "It is [this].", REPLY)
    assert outcome.ending == Ending(Kind.ANSWERED, "answered with 0.2 s of speech")
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
    assert outcome.ending.spoke
    assert next(iter(outcome.timeline.marks)) == "committed"


async def test_an_answer_without_sound_is_a_failure() -> None:
    outcome, _ = await converse(Ears(["Yes."], bytes(len(REPLY))))
    assert outcome.ending == Ending(Kind.FAILED, "the answer has no sound")


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
    assert outcome.ending == Ending(Kind.FAILED, "stage_failed: The llm service failed for this response.")
    assert "ended     failed" in screen


async def test_no_answer_in_time_is_a_failure() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.welcome()
        await peer.next()
        await peer.emit("session.updated", session=SESSION)
        await peer.read_on()

    outcome, _ = await converse(deaf, reply_timeout_s=0.2)
    assert outcome.ending == Ending(Kind.NO_SPEECH, "no answer within 0.2 s of the question's end")


WHERE = {"response_id": "resp_1", "item_id": "item_a", "output_index": 0, "content_index": 0}


async def begun(peer: Peer, packets: int = 0) -> None:
    """A native model's session, configured, that has heard so much."""
    await peer.welcome()
    await peer.next()
    await peer.emit("session.updated", session=SESSION)
    for _ in range(packets):
        await peer.next()


async def decide(peer: Peer, unit: int, decision: str) -> None:
    response = None if decision == "listen" else "resp_1"
    await peer.emit("session.decision", unit=unit, decision=decision, t_ms=unit * 1000, end_ms=unit * 1000 + 1000, response_id=response)


async def sound(peer: Peer, pcm: bytes = REPLY) -> None:
    await peer.emit("response.output_audio.delta", **WHERE, delta=base64.b64encode(pcm).decode())


async def done(peer: Peer, status: str = "completed", **details: str) -> None:
    response = {"id": "resp_1", "status": status, "status_details": {"type": status, **details}, "output": []}
    await peer.emit("response.done", response=response)


async def test_a_model_that_only_listens_did_not_speak() -> None:
    async def listener(peer: Peer) -> None:
        await begun(peer)
        for unit in range(3):
            await decide(peer, unit, "listen")
        await peer.read_on()

    outcome, _ = await converse(listener, reply_timeout_s=0.2)
    assert outcome.ending == Ending(Kind.NO_SPEECH, "the model did not speak within 0.2 s of the question's end: it listened to 3 units")
    assert (outcome.ending.exit_code, outcome.ending.spoke) == (3, False)


async def test_a_model_that_talks_on_is_left_while_it_speaks() -> None:
    async def babbler(peer: Peer) -> None:
        await begun(peer)
        await decide(peer, 0, "speak")
        await sound(peer)
        await sound(peer)
        await peer.read_on()

    outcome, _ = await converse(babbler, reply_timeout_s=0.2)
    words = "0.5 s of speech came, and no end of it within 0.2 s of the question's end: left while it speaks"
    assert outcome.ending == Ending(Kind.STILL_SPEAKING, words)
    assert (outcome.ending.exit_code, outcome.audio) == (0, REPLY * 2)


async def test_an_answer_that_breaks_off_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.commands.conversation.LULL_S", 0.1)

    async def script(peer: Peer) -> None:
        await begun(peer)
        await sound(peer)
        await peer.read_on()

    outcome, _ = await converse(script, reply_timeout_s=0.2)
    words = "the answer broke off after 0.2 s of speech, and nothing more came within 0.2 s of the question's end"
    assert outcome.ending == Ending(Kind.FAILED, words)
    assert outcome.ending.exit_code == 1


async def test_an_answer_that_was_cut_off_is_said_when_no_other_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.commands.conversation.LULL_S", 0.1)

    async def script(peer: Peer) -> None:
        await begun(peer)
        await decide(peer, 0, "speak")
        await sound(peer)
        await done(peer, "cancelled", reason="turn_detected")
        await peer.read_on()

    outcome, _ = await converse(script, reply_timeout_s=0.2)
    words = "the answer was cut off (turn_detected), and nothing more came within 0.2 s of the question's end"
    assert outcome.ending == Ending(Kind.FAILED, words)


@pytest.mark.parametrize("hears_on", [True, False])
async def test_a_model_may_answer_while_the_recording_ends_in_silence(hears_on: bool) -> None:
    """A model that hears while it speaks has answered then; one that takes turns answered something that was said before."""
    silence_s = 10.0 if hears_on else 0.5
    quiet = Recording(QUESTION + bytes(round(silence_s * 48_000)), 280)

    async def script(peer: Peer) -> None:
        await begun(peer, packets=16)
        if hears_on:
            await decide(peer, 0, "speak")
        await sound(peer)
        await done(peer)
        await peer.read_on()

    async with realtime_server(script) as url, parley.connect(url) as session:
        conversation = Conversation(session, quiet, "server", Console(file=io.StringIO()))
        before = time.monotonic()
        outcome = await conversation.run(0.5)
        took_s = time.monotonic() - before
    assert outcome.ending == Ending(Kind.ANSWERED, "answered with 0.2 s of speech") or not hears_on
    assert (took_s < silence_s) == hears_on


@pytest.mark.parametrize("kind", Kind)
def test_every_ending_has_an_exit_code_and_both_commands_say_which(kind: Kind) -> None:
    assert Ending(kind, "").spoke == (EXIT_CODES[kind] == 0)
    for command in ("up", "talk"):
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).output
        assert f"{EXIT_CODES[kind]}: " in shown
        assert EXIT_HELP in " ".join(shown.replace("│", " ").split())


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
        assert (await hold(Server(url), RECORDING, reply, "server", Console(file=screen, width=200, soft_wrap=True))).spoke
    assert load_recording(reply).pcm == REPLY
    for step in ("speech stopped", "transcript", "first text", "first audio"):
        assert re.search(rf"{step} .* \d+ ms", screen.getvalue())


async def test_talk_says_in_one_line_that_nobody_is_there(unused_tcp_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    assert not (await hold(Server(url), RECORDING, tmp_path / "reply.wav", "server", Console(file=io.StringIO()))).spoke
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("after_ms", [0, 1])
async def test_talk_cuts_its_own_connection_and_shows_that_the_answer_is_whole(after_ms: int, tmp_path: Path) -> None:
    screen, house = io.StringIO(), Lasting()
    house.reply_samples, house.hold_reply_at = 4800, 1200
    async with serving(house) as url:
        console = Console(file=screen, width=200, soft_wrap=True)
        assert (await hold(Server(url), RECORDING, tmp_path / "reply.wav", "manual", console, 10, cut_after_ms=after_ms)).spoke
    assert load_recording(tmp_path / "reply.wav").pcm == signal(4800)
    assert house.resumes == 1
    assert re.search(r"resumed +after \d+ ms, at event \d+; \d+ came meanwhile; the server has 7200 samples", screen.getvalue())
    assert re.search(r"whole +9600 bytes in 20 pieces, events 3 to 44, none missing, none twice", screen.getvalue())


async def test_talk_says_when_there_was_nothing_to_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house = Lasting()
    house.reply_samples = 480
    console = Console(file=io.StringIO())
    async with serving(house) as url:
        assert not (await hold(Server(url), RECORDING, tmp_path / "reply.wav", "manual", console, 10, cut_after_ms=60_000)).spoke
    assert "the answer ended before the connection was cut" in capsys.readouterr().err
    async with realtime_server(Ears(["Yes."], REPLY)) as url:
        assert not (await hold(Server(url), RECORDING, tmp_path / "reply.wav", "manual", console, 10, cut_after_ms=0)).spoke
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
