"""Client audio on its way to the stages: whole samples, counted, bounded."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from gateway.conversation import commands
from gateway.conversation.commands import InputAppend
from gateway.conversation.config import AudioFormat
from gateway.conversation.effects import ClearOrder, CommitOrder, InputAudio
from gateway.conversation.input import PIECE_BYTES
from gateway.conversation.limits import Limits

from .support import CONFIG, VAD_OFF, World, names, pcm, state_of


def heard(world: World, stage: str = "asr") -> bytes:
    return b"".join(relay.payload.data for relay in world.relays(stage) if relay.edge == "client")


@pytest.mark.behaviour("A1")
def test_split_samples_are_joined_across_appends() -> None:
    world = World()
    data = bytes(range(251)) * 4
    cuts = [0, 1, 2, 7, 8, 8, 333, 700, len(data)]
    for start, end in pairwise(cuts):
        world.do(InputAppend(audio=data[start:end]))
    assert heard(world) == heard(world, "turn") == data
    assert all(len(relay.payload.data) == 2 * relay.payload.samples > 0 for relay in world.relays("asr"))


def test_appends_are_numbered_and_timed_without_a_gap() -> None:
    world = World()
    for size in (960, 3, 1, 480):
        world.do(InputAppend(audio=bytes(size)))
    relays = world.relays("turn")
    assert [(r.position, r.previous) for r in relays] == [(480, 0), (481, 480), (482, 481), (722, 482)], "positions are samples"
    assert [r.payload.start_sample for r in relays] == [0, 480, 481, 482]
    assert {(r.lane, r.edge) for r in relays} == {("input", "client")}


@pytest.mark.parametrize("close", [commands.InputCommit(), commands.InputClear()])
def test_the_odd_byte_is_dropped_when_the_client_closes_its_buffer(close: commands.ClientCommand) -> None:
    world = World(VAD_OFF)
    world.do(InputAppend(audio=pcm(200) + b"\x07"))
    world.do(close)
    world.do(InputAppend(audio=b"\x01\x02"))
    assert heard(world) == pcm(200) + b"\x01\x02"


def test_the_odd_byte_stays_when_the_detector_ends_a_turn() -> None:
    world = World()
    world.do(InputAppend(audio=pcm(600) + b"\x07"))
    world.decide("speech_started", 0)
    world.decide("speech_stopped", 500)
    world.do(InputAppend(audio=b"\x08"))
    assert heard(world)[-2:] == b"\x07\x08", "the stream goes on as it is"


def test_g711_has_no_samples_to_split() -> None:
    world = World(msgspec.structs.replace(CONFIG, input_format=AudioFormat("pcmu", 8000)))
    world.do(InputAppend(audio=b"abc"))
    assert world.relays("asr")[0].payload == InputAudio(b"abc", 3, AudioFormat("pcmu", 8000), 0)


def test_a_large_append_travels_in_pieces_that_an_edge_takes() -> None:
    world = World()
    data = bytes(PIECE_BYTES * 2 + 10)
    world.do(InputAppend(audio=data))
    assert [len(r.payload.data) for r in world.relays("asr")] == [PIECE_BYTES, PIECE_BYTES, 10]
    assert [r.payload.start_sample for r in world.relays("asr")] == [0, PIECE_BYTES // 2, PIECE_BYTES]


@pytest.mark.behaviour("B1", "A1", "X14")
def test_pending_input_is_bounded_to_the_byte_and_the_session_goes_on() -> None:
    limit = len(pcm(200))
    world = World(VAD_OFF, Limits(max_pending_input_bytes=limit))
    world.append(190)
    before = state_of(world.c)
    assert names(world.do(InputAppend(audio=pcm(10) + b"\x00", event_id="e7"))) == ["Error"]
    assert (world.error.code, world.error.param, world.error.client_event_id) == ("input_audio_buffer_full", "audio", "e7")
    assert state_of(world.c) == before
    assert names(world.append(10)) == []
    assert names(world.append(1)) == ["Error"]
    world.do(commands.InputClear())
    assert names(world.append(200)) == []


def test_silence_under_detection_is_not_pending() -> None:
    world = World(limits=Limits(max_pending_input_bytes=len(pcm(100))))
    for _ in range(20):
        assert names(world.append(100)) == []
    world.decide("speech_started", 1900)
    world.append(100)
    assert names(world.append(1)) == ["Error"]


@pytest.mark.behaviour("M5")
def test_clear_keeps_what_comes_after_it() -> None:
    world = World(VAD_OFF)
    world.append(300)
    world.do(commands.InputClear())
    world.append(200)
    world.do(commands.InputCommit())
    (order,) = world.orders(CommitOrder)
    assert (order.start_ms, order.end_ms, order.input_generation) == (300, 500, 1)
    assert [clear.input_generation for clear in world.orders(ClearOrder, "asr")] == [1]


def test_decisions_travel_to_the_recogniser_in_their_order() -> None:
    world = World()
    world.say(300)
    for kind, at in (("speech_started", 0), ("pause", 100), ("speech_resumed", 150), ("pause", 200)):
        world.decide(kind, at)
    relays = [r for r in world.relays("asr") if r.edge == "turn"]
    assert [(r.payload.kind, r.position, r.lane) for r in relays] == [
        ("speech_started", 1, "input"), ("pause", 2, "input"), ("speech_resumed", 3, "input"), ("pause", 4, "input")
    ]  # fmt: skip
