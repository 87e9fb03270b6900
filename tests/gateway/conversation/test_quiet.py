"""What was said never gets into a repr."""

from __future__ import annotations

import gc

import pytest

from gateway.conversation import commands, effects, events
from gateway.conversation.config import AudioFormat, SessionConfig, SessionPatch
from gateway.conversation.items import Item, Part

SECRET = "the words of a person"
SOUND = b"\x07\x01" * 40
ITEM = Item("item_1", role="user", content=(Part("input_text", text=SECRET),), arguments=SECRET, output=SECRET)


@pytest.mark.behaviour("C2")
@pytest.mark.parametrize(
    "struct",
    [
        commands.InputAppend(audio=SOUND, event_id="e1"),
        commands.ItemCreate(item=ITEM),
        commands.SessionUpdate(patch=SessionPatch(instructions=SECRET)),
        commands.StageChunk("llm", 1, 1, "resp_1", commands.TextOut(SECRET), wire=SECRET),
        commands.TranscriptOut("item_1", SECRET, True),
        events.ItemAdded(ITEM, None),
        events.AudioDelta("resp_1", "item_1", 0, SOUND),
        events.TranscriptionCompleted("item_1", SECRET, 100),
        effects.PromptMessage("user", SECRET),
        effects.InputAudio(SOUND, 40, AudioFormat(), 0),
        SessionConfig("m", instructions=SECRET, extras={"prompt": SECRET}),
    ],
    ids=lambda struct: type(struct).__name__,
)
def test_a_repr_holds_no_words_and_no_sound(struct: object) -> None:
    shown = repr(struct)
    assert SECRET not in shown and "\\x07" not in shown
    assert type(struct).__name__ in shown


def test_what_is_kept_by_the_thousand_is_nothing_to_the_collector() -> None:
    audio = effects.InputAudio(SOUND, 40, AudioFormat(), 0)
    relay = effects.Relay("asr", "client", 40, 0, "input", 0, 0, "", audio)
    assert not any(gc.is_tracked(each) for each in (AudioFormat(), audio, relay, ITEM, events.ItemAdded(ITEM, None)))
