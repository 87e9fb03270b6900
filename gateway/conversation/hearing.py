"""What the user says: audio in, decisions about turns, commits, transcripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from . import camera, dialog, early_close, events, native, overlap, policy, speaking
from .commands import DecisionOut, InputAppend, TranscriptOut
from .dialog import Hearing
from .effects import ClearOrder, CommitOrder, Unhear
from .errors import ERRORS, Refusal
from .items import Item, Part

if TYPE_CHECKING:
    from .session import Conversation


def append(c: Conversation, command: InputAppend) -> None:
    images = camera.judged(c, command.frames, command.frames_t_ms, "video_frames")
    # a native model has heard it at once: nothing waits for a commit
    bounded = not c.graph.model_stage and (c.config.turn_detection is None or c.input.open_item is not None)
    pieces = c.input.accept(command.audio, c.config.input_format, c.limits, c.edges.marks("client"), bounded=bounded)
    camera.show(c, images, command.event_id)
    for position, audio in pieces:
        c.relay("client", "audio", position, overlap.silenced(c, audio))
    if pieces and c.graph.model_stage:
        native.heard(c)


def decided(c: Conversation, decision: DecisionOut) -> None:
    if decision.decided_at_ms <= c.input.buffer_start_ms:
        return  # made of audio that the client committed or cleared meanwhile
    match decision.kind:
        case "speech_started" if c.input.open_item is None:
            _speech_started(c, max(decision.t_ms, c.input.buffer_start_ms), decision.decided_at_ms)
        case "pause" if c.input.open_item is not None:
            early_close.paused(c, decision)
        case "speech_resumed":
            early_close.resumed(c, decision)
        case "speech_stopped" if c.input.open_item is not None:
            item_id, start = c.input.open_item, c.input.open_start_ms
            c.emit(events.SpeechStopped(item_id, decision.t_ms))
            commit(c, item_id, start, max(start, decision.t_ms), wants_reply=policy.auto_reply(c.config))
            early_close.paused(c, decision)


def _speech_started(c: Conversation, start_ms: int, heard_ms: int) -> None:
    item_id = c.new_item_id("u")
    c.input.open_item, c.input.open_start_ms, c.native.closing = item_id, start_ms, None
    interrupts = overlap.spoke_up(c, item_id, heard_ms)
    if interrupts:
        speaking.mute(c)
    c.emit(events.SpeechStarted(item_id, start_ms))
    if interrupts:
        speaking.interrupt(c, "turn_detected")


def commit_by_client(c: Conversation) -> None:
    """input_audio_buffer.commit: the buffer becomes a user item; the detector forgets its turn."""
    start = c.input.open_start_ms if c.input.open_item else c.input.buffer_start_ms
    end = c.input.end_ms(c.config.input_format)
    if end - start < c.limits.min_commit_ms:
        raise Refusal("input_audio_buffer_commit_empty", None, held_ms=end - start, needed_ms=c.limits.min_commit_ms)
    forget_turn(c)
    c.input.forget_split()
    commit(c, c.input.open_item or c.new_item_id("u"), start, end, wants_reply=policy.auto_reply(c.config))


def forget_turn(c: Conversation, *, everyone: bool = False) -> None:
    """Tell those who bound turns (or all who hear) that uncommitted input is gone."""
    c.native.closing = None
    for stage in c.graph.readers("client", "audio"):
        if everyone or stage == c.graph.decision_stage:
            c.order(stage, ClearOrder(c.input.bump(stage)), append=True)


def clear(c: Conversation) -> None:
    forget_turn(c, everyone=True)
    c.input.forget_split()
    _take_back(c)
    c.input.forget_until(c.input.end_ms(c.config.input_format))
    c.dialog.take_told()
    native.cleared(c)
    c.emit(events.InputCleared())


def _take_back(c: Conversation) -> None:
    """A stage that is placed anew does not hear what is cleared; but a native model what units of its log consumed."""
    start_ms, end_ms = c.input.buffer_start_ms, c.input.end_ms(c.config.input_format)
    if c.graph.model_stage:
        start_ms = max(start_ms, native.heard_until(c))
    if start_ms < end_ms:
        c.effects.append(Unhear(max(0, c.input.position - (end_ms - start_ms) * c.config.input_format.rate // 1000)))


def commit(c: Conversation, item_id: str, start_ms: int, end_ms: int, *, wants_reply: bool) -> None:
    """Input from start to end becomes a user item whose words are asked for."""
    _user_item(c, item_id, start_ms, end_ms, None)
    deadline, told, stage = c.now + c.limits.transcript_timeout_ms, c.dialog.take_told(), c.graph.transcript_stage
    if stage or not c.graph.model_stage:
        wants_reply = wants_reply and not c.graph.model_stage
        c.dialog.hearing[item_id] = Hearing(item_id, start_ms, end_ms, wants_reply, deadline, told)
    if stage:
        c.order(stage, CommitOrder(item_id, start_ms, end_ms, c.input.generations.get(stage, 0)), append=True)


def _user_item(c: Conversation, item_id: str, start_ms: int, end_ms: int, transcript: str | None) -> None:
    c.fence.turn += 1
    c.input.committed_start_ms = start_ms
    c.input.forget_until(end_ms)
    item = Item(item_id, role="user", content=(Part("input_audio", transcript=transcript, audio_ms=end_ms - start_ms),))
    previous = c.add_item(item)
    c.emit(events.InputCommitted(item_id, previous))
    c.emit(events.ItemAdded(item, previous))
    c.emit(events.ItemDone(item, previous))


def heard(c: Conversation, transcript: TranscriptOut) -> None:
    if not transcript.final:
        if transcript.audio_start_ms > c.input.committed_start_ms:
            overlap.word(c, transcript.text)
            _partial(c, transcript.text)
        return
    hearing = c.dialog.hearing.pop(transcript.item_id, None)
    if hearing is None:
        return
    item = c.history.items[transcript.item_id]
    part = msgspec.structs.replace(item.content[0], transcript=transcript.text)
    c.history.put(msgspec.structs.replace(item, content=(part,)))
    if c.config.transcription is not None:
        rest = transcript.text[len(hearing.said) :] if transcript.text.startswith(hearing.said) else ""
        if rest:
            c.emit(events.TranscriptionDelta(transcript.item_id, rest))
        c.emit(events.TranscriptionCompleted(transcript.item_id, transcript.text, hearing.end_ms - hearing.start_ms))
    if hearing.wants_reply and transcript.text.strip():
        c.responses.owed = True
    overlap.words(c, transcript.item_id, transcript.text)


def _partial(c: Conversation, text: str) -> None:
    """Tell only what two partials in a row agree on, up to a word's end: deltas are never taken back."""
    if c.config.transcription is None or c.input.open_item is None:
        return
    heard = c.dialog
    agreed = _common_words(heard.partial, text)
    heard.partial = text
    if len(agreed) > len(heard.told) and agreed.startswith(heard.told):
        c.emit(events.TranscriptionDelta(c.input.open_item, agreed[len(heard.told) :]))
        heard.told = agreed


def _common_words(a: str, b: str) -> str:
    length = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if length == len(a) == len(b):
        return b
    return b[: b.rfind(" ", 0, length) + 1]


def late_at(c: Conversation) -> int | None:
    """When awaited words count as late: not while the stage is being placed anew, which is asked for them again when it is there."""
    return None if c.graph.transcript_stage in c.state.lost else c.dialog.deadline()


def transcripts_late(c: Conversation) -> None:
    """Words that did not come in time: said so, and whoever waits for them goes on without."""
    if late_at(c) is None:
        return
    for hearing in [h for h in c.dialog.hearing.values() if h.deadline <= c.now]:
        transcript_failed(c, hearing.item_id)


def transcript_failed(c: Conversation, item_id: str) -> None:
    if c.dialog.hearing.pop(item_id, None) is None:
        return
    overlap.words(c, item_id, "")
    c.emit(events.TranscriptionFailed(item_id, "transcription_failed", ERRORS["transcription_failed"].message))


def await_user(c: Conversation) -> None:
    """Run the idle timeout while it is the user's turn: from the end of what the listener hears on."""
    idle_ms = policy.idle_timeout_ms(c.config)
    busy = c.responses.live is not None or c.input.open_item is not None or c.dialog.waiting()
    if idle_ms is None or busy or not c.responses.count:
        c.cancel_deadline("idle")
    elif "idle" not in c.state.deadlines:
        c.set_deadline("idle", max(c.now, c.playback.ends_at()) + idle_ms)


def idle(c: Conversation) -> None:
    """The user said nothing for the configured time: the silence becomes an item, and the model speaks."""
    c.cancel_deadline("idle")
    start, end = c.input.buffer_start_ms, c.input.end_ms(c.config.input_format)
    item_id = c.new_item_id("u")
    c.emit(events.IdleTimeout(item_id, start, end))
    forget_turn(c)
    _user_item(c, item_id, start, end, "")
    if dialog.has_something_to_say(c.config, c.history, None, False):
        speaking.start(c, speaking.DEFAULT)
