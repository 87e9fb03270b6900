"""The user speaks while the model speaks: who goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.conversation import events
from gateway.conversation.commands import InputAppend, TextOut
from gateway.conversation.config import AudioFormat, Overlap, OverlapPatch, ServerVad, SessionConfig, Transcription
from gateway.conversation.effects import InputAudio, Mute

from .duplex import CONFIG, NO_VAD, WORDY, YIELDING, Duplex
from .support import names, pcm

pytestmark = pytest.mark.behaviour("T3")
ACKS = Overlap("interrupt", ("yeah", "mm-hmm"), 700)
HEEDING = msgspec.structs.replace(CONFIG, overlap=ACKS, transcription=Transcription("any"))


def heard_saying(config: SessionConfig = CONFIG, **options: Any) -> Duplex:
    """The model speaks, and its sound is being heard."""
    world = Duplex(config, **options)
    world.say(1040)
    world.speaks("On and on. ", begins=True)
    world.sings()
    world.sounds(5000)
    world.say(500)
    return world


def speak_up(world: Duplex) -> str:
    world.decide("speech_started", world.heard_ms - 200)
    return world.of(events.SpeechStarted)[-1].item_id


@pytest.mark.parametrize(
    ("config", "cut"),
    [
        (CONFIG, True),
        (msgspec.structs.replace(CONFIG, overlap=Overlap("model")), False),
        (YIELDING, False),
        (msgspec.structs.replace(CONFIG, overlap=Overlap("interrupt", ("yeah",))), True),
    ],
    ids=["interrupt", "model", "no interrupt_response", "words that nobody knows"],
)
def test_who_begins_to_speak_cuts_the_model_off_or_does_not(config: SessionConfig, cut: bool) -> None:
    world = heard_saying(config)
    speak_up(world)
    assert (world.c.responses.live is None) == cut and bool(world.performed(Mute)) == cut
    world.say(300)
    world.decide("speech_stopped", world.heard_ms - 100)
    assert len(world.of(events.InputCommitted)) == 1, "what the user said is an item, whoever speaks"
    assert (world.c.responses.live is None) == cut


def test_the_model_hears_the_user_in_every_policy_but_one() -> None:
    for policy in ("interrupt", "model"):
        world = heard_saying(msgspec.structs.replace(CONFIG, overlap=Overlap(policy)))  # type: ignore[arg-type]
        world.do(_append(100, 7))
        assert set(_last_heard(world, "seer").data) == {7}


@pytest.mark.parametrize(("encoding", "silence"), [("pcm", 0), ("pcmu", 0xFF), ("pcma", 0xD5)])
def test_who_is_ignored_is_heard_as_silence_while_the_model_speaks(encoding: str, silence: int) -> None:
    fmt = AudioFormat(encoding, 24_000 if encoding == "pcm" else 8000)  # type: ignore[arg-type]
    world = Duplex(msgspec.structs.replace(CONFIG, overlap=Overlap("ignore"), input_format=fmt))
    world.do(_append(2000, 7))
    assert set(_last_heard(world, "seer").data) == {7}
    world.speaks("On and on. ", begins=True)
    world.sings()
    world.sounds(400)
    world.do(_append(100, 7))
    for stage in ("seer", "turn"):
        audio = _last_heard(world, stage)
        assert set(audio.data) == {silence} and audio.samples == len(audio.data) // fmt.sample_bytes
    world.speaks("End.", ends=True)
    world.sounds(0, last=True)
    world.do(_append(100, 7))
    assert set(_last_heard(world, "seer").data) == {silence}, "it is not all heard yet"
    world.wait(500)
    world.do(_append(100, 7))
    assert set(_last_heard(world, "seer").data) == {7}


def test_a_short_acknowledgement_interrupts_nobody_where_words_are_known() -> None:
    world = heard_saying(HEEDING, graph=WORDY)
    item_id = speak_up(world)
    world.say(300)
    world.partial("Yea")
    world.partial("Yeah")
    assert world.c.responses.live is not None
    world.decide("speech_stopped", world.heard_ms)
    world.transcribe("Yeah, mm-hmm.", item_id)
    world.wait(2000)
    assert world.c.responses.live is not None and world.c.fence.epoch == 1
    assert world.history()[-1] == "Yeah, mm-hmm.", "it was said all the same"


def test_any_other_word_interrupts_at_once() -> None:
    world = heard_saying(HEEDING, graph=WORDY)
    speak_up(world)
    world.partial("Yeah but")
    assert world.done.status == "cancelled" and world.done.reason == "turn_detected"
    assert [mute.response_id for mute in world.performed(Mute)] == [world.done.id]


def test_the_first_known_words_may_come_with_the_end_of_the_speech() -> None:
    world = heard_saying(HEEDING, graph=WORDY)
    item_id = speak_up(world)
    world.say(400)
    world.decide("speech_stopped", world.heard_ms)
    world.wait(1000)
    assert world.c.responses.live is not None, "short, and its words are awaited"
    world.transcribe("Stop!", item_id)
    assert world.done.status == "cancelled"


def test_speech_that_goes_on_is_no_acknowledgement() -> None:
    world = heard_saying(HEEDING, graph=WORDY)
    speak_up(world)
    world.wait(699)
    assert world.c.responses.live is not None
    told = world.wait(1)
    assert "ResponseDone" in names(told) and world.done.status == "cancelled"


@pytest.mark.parametrize("words", ["", None])
def test_noise_without_words_interrupts_nobody(words: str | None) -> None:
    world = heard_saying(HEEDING, graph=WORDY)
    item_id = speak_up(world)
    world.say(200)
    world.decide("speech_stopped", world.heard_ms)
    if words is None:
        world.wait(world.limits.transcript_timeout_ms)
        assert world.of(events.TranscriptionFailed)
    else:
        world.transcribe(words, item_id)
    assert world.c.responses.live is not None and world.c.native.over is None


def test_a_waiting_acknowledgement_lives_on_in_the_checkpoint() -> None:
    world = heard_saying(HEEDING, graph=WORDY)
    speak_up(world)
    restored = world.restored()
    assert restored.native == world.c.native and restored.native.over is not None
    assert restored.native.over.deadline == world.now + 700


def test_a_model_that_had_not_heard_the_user_is_told_to_listen() -> None:
    """It began to speak on a unit that ended before the detector knew that the user speaks."""
    world = Duplex()
    world.say(1040)
    world.say(400)
    world.decide("speech_started", 1000, 1300)
    told = world.begins(end_ms=1030)
    assert names(told) == [] and world.c.responses.live is None and world.c.fence.epoch == 2
    world.thinks(TextOut("Too late"), epoch=1)
    assert not world.of(events.TranscriptDelta)


def test_a_model_that_heard_the_user_may_speak_up_against_him() -> None:
    world = Duplex()
    world.say(1040)
    world.decide("speech_started", 500, 1030)
    assert names(world.begins(end_ms=1030)) == ["ResponseCreated", "UnitDecided"]
    assert world.c.fence.epoch == 1
    world.decide("speech_stopped", 1000)
    assert world.c.responses.live is not None


@pytest.mark.parametrize(("heard_ms", "cut"), [(1030, False), (1031, True)])
def test_a_detector_that_is_slow_cuts_no_answer_off(heard_ms: int, cut: bool) -> None:
    """Speech that the model had heard when it began to answer is no interruption of the answer, however late it is told."""
    world = Duplex()
    world.say(1040)
    world.begins(end_ms=1030)
    world.decide("speech_started", 200, heard_ms)
    assert (world.c.responses.live is None) == cut and len(world.of(events.SpeechStarted)) == 1


def test_a_policy_may_change_in_mid_session_and_what_it_cannot_do_is_refused() -> None:
    world = heard_saying()
    world.update(overlap=OverlapPatch("model"))
    assert world.of(events.SessionUpdated)[-1].config.overlap == Overlap("model")
    speak_up(world)
    assert world.c.responses.live is not None
    for patch, param in (
        ({"overlap": OverlapPatch("interrupt"), "turn_detection": None}, "session.overlap.policy"),
        ({"overlap": OverlapPatch("interrupt"), "turn_detection": ServerVad(interrupt_response=False)}, "session.overlap.policy"),
        ({"overlap": OverlapPatch(acknowledgements=("yes",))}, "session.overlap.acknowledgements"),
    ):
        before = world.c.config
        world.update(**patch)
        assert (world.error.code, world.error.param) == ("unsupported_value", param)
        assert world.c.config is before
    world.update(overlap=OverlapPatch(short_ack_ms=300))
    assert world.c.config.overlap == Overlap("model", (), 300), "what is not said stays"


def test_without_a_detector_nobody_interrupts() -> None:
    world = heard_saying(NO_VAD)
    speak_up(world)
    assert world.c.responses.live is not None


def _append(ms: int, fill: int) -> Any:
    return InputAppend(audio=pcm(ms, fill))


def _last_heard(world: Duplex, stage: str) -> InputAudio:
    audio = world.relays(stage)[-1].payload
    assert isinstance(audio, InputAudio)
    return audio
