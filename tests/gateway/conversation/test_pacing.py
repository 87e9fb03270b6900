"""Reply audio against the listener's clock: how far ahead it leaves, what is granted, what was heard."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.conversation import events
from gateway.conversation.commands import AudioOut, MarkOut, Tick
from gateway.conversation.effects import Ack, Grant
from gateway.conversation.limits import Limits
from gateway.conversation.playback import Playback, Sound

from .support import RATE, World, names, pcm


def audio(ms: float, *marks: MarkOut, rate: int = RATE) -> AudioOut:
    samples = round(ms * rate / 1000)
    return AudioOut(bytes(2 * samples), samples, rate, marks)


def talking(limits: Limits | None = None) -> World:
    world = World(limits=limits)
    world.ask()
    world.write("A long story.")
    world.latents(last=True)
    return world


@pytest.mark.behaviour("O1")
@pytest.mark.parametrize("lead_ms", [200, 1000, 2500])
def test_sound_leaves_as_it_comes_and_never_further_ahead_than_the_lead(lead_ms: int) -> None:
    world = talking(Limits(max_output_lead_ms=lead_ms))
    world.voiced(5000, last=True)
    begun = world.now
    assert world.sent_ms == lead_ms
    while world.c.responses.live is not None:
        world.wait(37)
        elapsed = world.now - begun
        assert elapsed + lead_ms - 200 <= world.sent_ms <= min(5000, elapsed + lead_ms)
    assert world.sent_ms == 5000 and world.done.status == "completed"


def test_the_deadline_is_when_the_next_sound_may_leave() -> None:
    world = talking()
    world.voiced(3000)
    deadline = world.c.deadline
    assert deadline is not None and deadline == world.now + 100
    world.now = deadline - 1
    assert names(world.do(Tick())) == []
    world.now = deadline
    assert names(world.do(Tick())) == ["AudioDelta"]


def test_a_piece_longer_than_the_lead_leaves_when_nothing_plays() -> None:
    world = talking(Limits(max_output_lead_ms=50, credit_extra_ms=300))
    world.voiced(300)
    assert world.sent_ms == 100
    assert names(world.wait(99)) == [] and names(world.wait(1)) == ["AudioDelta"]


def test_credit_covers_the_window_and_never_more() -> None:
    world = World()
    assert world.performed(Grant) == [Grant("vocoder", 1500)]
    world.ask()
    world.write("A long story.")
    world.latents(last=True)
    world.voiced(10_000, last=True)
    assert world.voice.sent_ms == 1500 and len(world.c.held) == 5
    for _ in range(40):
        world.wait(100)
        assert world.voice.granted <= world.c.playback.passed_us // 1000 + 1500
        assert len(world.c.held) <= 6
    totals = [grant.granted_ms for grant in world.performed(Grant)]
    assert totals == sorted(set(totals)) and all(later - earlier >= 100 for earlier, later in pairwise(totals))


def test_held_sound_is_acknowledged_only_when_it_has_left() -> None:
    world = talking()
    world.voiced(1500)
    acks = [ack.position for ack in world.performed(Ack) if ack.stage == "vocoder"]
    assert acks == list(range(1, 11)) and world.positions["vocoder"] == 15


@pytest.mark.behaviour("P1")
def test_heard_is_sent_less_what_waits_to_the_millisecond() -> None:
    playback = Playback()
    playback.begin("a", 0)
    assert next(playback.heard(0))[1] == 0
    for _ in range(3):
        playback.sent(audio(33.375), 100)
    sent_ms = 3 * 33.375
    for now in range(100, 210, 7):
        assert next(playback.heard(now))[1] == int(min(sent_ms, now - 100))


@pytest.mark.behaviour("P1")
def test_a_stall_moves_the_clock() -> None:
    playback = Playback()
    playback.begin("a", 0)
    playback.sent(audio(100), 1000)
    assert next(playback.heard(1400))[1] == 100
    playback.sent(audio(100), 1500)
    assert [next(playback.heard(now))[1] for now in (1500, 1550, 1600, 9000)] == [100, 150, 200, 200]


@pytest.mark.behaviour("P1")
def test_replies_that_queue_behind_each_other_are_heard_in_turn() -> None:
    playback = Playback()
    playback.begin("a", 0)
    playback.sent(audio(500), 0)
    playback.begin("b", 100)
    playback.sent(audio(300), 100)
    assert [(s.item_id, heard) for s, heard in playback.heard(200)] == [("b", 0), ("a", 200)]
    assert [(s.item_id, heard) for s, heard in playback.heard(600)] == [("b", 100), ("a", 500)]
    playback.begin("c", 600)
    assert [s.item_id for s, _ in playback.heard(600)] == ["c", "b"], "what was heard is forgotten"


@pytest.mark.parametrize("rate", [8000, 16_000, 24_000])
def test_durations_add_up_exactly(rate: int) -> None:
    playback = Playback()
    playback.begin("a", 0)
    for _ in range(1000):
        playback.sent(AudioOut(b"", 7, rate), 0)
    assert playback.sounds[0].sent_us == 7000 * 1_000_000 // rate


@pytest.mark.behaviour("P1")
def test_marks_are_kept_at_sentence_ends_within_the_sound_and_bounded() -> None:
    sound = Sound("a")
    sound.add(audio(100, MarkOut(3, 50), MarkOut(7, 101, True)))
    assert sound.marks == [MarkOut(7, 100, True)]
    assert (sound.text_heard(99), sound.text_heard(100)) == (0, 7)
    for n in range(600):
        sound.add(audio(1, MarkOut(n, 100 + n, True)))
    assert len(sound.marks) == 512


def test_a_mark_that_comes_without_sound_counts() -> None:
    world = talking()
    world.voiced(300)
    world.chunk("vocoder", AudioOut(b"", 0, RATE, (MarkOut(13, 300, True),)))
    world.chunk("vocoder", last=True)
    assert all(event.data for event in world.of(events.AudioDelta))
    world.say(100)
    world.wait(500)
    item_id = world.done.output[0].id
    world.c.history.cut(item_id, 300)
    assert world.history()[-1] == "A long story."


def test_marks_follow_the_sound_through_a_barge_in() -> None:
    world = talking()
    world.voiced(400, (MarkOut(6, 400, True),))
    world.wait(400)
    world.say(20)
    world.decide("speech_started", 800)
    assert world.history()[-1] == "A long"


def test_sound_in_the_clients_own_bytes_is_passed_on_untouched() -> None:
    world = talking()
    world.chunk("vocoder", AudioOut(pcm(40, 9), 40 * RATE // 1000, RATE))
    assert world.of(events.AudioDelta)[0].data == pcm(40, 9)
