"""What the model says: one live response from its creation to its one terminal, paced and interruptible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from . import dialog, events, policy
from .commands import AudioOut, FinishOut, StageChunk, TextOut, ToolOut
from .config import ResponseOptions
from .effects import CancelOrder, Grant, Mute, PromptOrder
from .errors import ERRORS, Refusal
from .items import Item, Part, ResponseStatus
from .playback import Sound
from .response import Asked, Live

if TYPE_CHECKING:
    from .session import Conversation

Cause = Literal["turn_detected", "client_cancelled"]
DEFAULT = ResponseOptions()


def start(c: Conversation, options: ResponseOptions) -> None:
    """Begin a response. Raises Refusal while one is live or with nothing to respond to."""
    if c.responses.live is not None:
        raise Refusal("response_already_active", None, response_id=c.responses.live.id)
    waiting = c.dialog.waiting() and options.input is None
    if not options.instructions and not dialog.has_something_to_say(c.config, c.history, options.input, waiting):
        raise Refusal("response_create_without_input")
    config = c.config
    c.responses.count += 1
    if options.input is None and not options.out_of_band:
        c.responses.owed = False
        c.dialog.answered()
    live = Live(
        id=c.make_id("resp", c.responses.count),
        item_id=c.new_item_id("a"),
        epoch=c.fence.epoch,
        turn=c.fence.turn,
        modality=(options.output_modalities or config.output_modalities)[0],
        asked=Asked(
            config.instructions if options.instructions is None else options.instructions,
            options.voice or config.voice,
            config.tools if options.tools is None else options.tools,
            options.tool_choice or config.tool_choice,
            options.max_output_tokens or config.max_output_tokens,
            options.metadata,
            options.input,
        ),
        out_of_band=options.out_of_band,
        progress_at=c.now,
    )
    announce(c, live)
    prompt_if_ready(c)


def announce(c: Conversation, live: Live) -> None:
    """From now on it is the response that the client hears of; what was written of it before is told at once."""
    c.responses.live, live.progress_at = live, c.now
    if live.modality == "audio":
        c.playback.begin(live.item_id, c.now)
    c.emit(events.ResponseCreated(live.snapshot(c.conversation_id)))
    written, live.text = live.text, ""
    text(c, live, TextOut(written))
    if live.text_ended:
        _complete_if_written(c, live)


def prompt_if_ready(c: Conversation) -> None:
    """Ask the language model as soon as all words it needs are known; without any there is nothing to say."""
    live = c.responses.live
    if live is None or live.prompted or c.state.lost or (c.dialog.waiting() and live.asked.input_items is None):
        return
    live.prompted, live.progress_at = True, c.now
    messages = dialog.prompt(live, c.history, c.limits.max_prompt_chars)
    if not messages:
        complete(c, live)
        return
    body = PromptOrder(
        messages, live.asked.max_output_tokens or 0, dialog.tools(live), live.asked.tool_choice, live.epoch, live.turn, live.id
    )  # fmt: skip
    c.order(c.graph.text_stage, body, append=True)


def answer_if_owed(c: Conversation) -> None:
    """Reply to the user turns that wait, unless a response is live or the user goes on talking."""
    talking = c.input.open_item is not None and policy.interrupts(c.config)
    if not c.responses.owed or c.responses.live is not None or talking or c.dialog.waiting():
        return
    c.responses.owed = False
    if dialog.has_something_to_say(c.config, c.history, None, False):
        start(c, DEFAULT)


def text(c: Conversation, live: Live, output: TextOut) -> None:
    if not output.text:
        return
    index = _announce(c, live)
    live.text += output.text
    kind = events.TranscriptDelta if live.modality == "audio" else events.TextDelta
    c.emit(kind(live.id, live.item_id, index, output.text))


def _announce(c: Conversation, live: Live) -> int:
    """The message item exists from its first word or sound on."""
    if live.message_index is not None:
        return live.message_index
    index = live.message_index = len(live.outputs)
    item = Item(live.item_id, role="assistant", status="in_progress")
    live.outputs.append(item)
    c.emit(events.OutputItemAdded(live.id, index, item))
    if not live.out_of_band:
        c.emit(events.ItemAdded(item, c.add_item(item)))
    part = Part("output_audio", transcript="") if live.modality == "audio" else Part("output_text", text="")
    c.emit(events.ContentPartAdded(live.id, live.item_id, index, part))
    return index


def tool(c: Conversation, live: Live, call: ToolOut) -> None:
    """A function call arrives whole: announced, told and done at once."""
    index = len(live.outputs)
    item_id = c.new_item_id("f")
    begun = Item(item_id, "function_call", status="in_progress", call_id=call.call_id, name=call.name, arguments="")
    done = msgspec.structs.replace(begun, status="completed", arguments=call.arguments)
    live.outputs.append(done)
    c.emit(events.OutputItemAdded(live.id, index, begun))
    previous = None if live.out_of_band else c.add_item(done)
    if not live.out_of_band:
        c.emit(events.ItemAdded(begun, previous))
    c.emit(events.ArgumentsDelta(live.id, item_id, index, call.call_id, call.arguments))
    c.emit(events.ArgumentsDone(live.id, item_id, index, call.call_id, call.name, call.arguments))
    c.emit(events.OutputItemDone(live.id, index, done))
    if not live.out_of_band:
        c.emit(events.ItemDone(done, previous))


def text_ended(c: Conversation, live: Live, chunk: StageChunk) -> None:
    """The language model is done: a text reply ends here, a spoken one with its last sound."""
    if chunk.finish is not None or not live.text_ended:
        end = chunk.finish or FinishOut()
        live.text_ended, live.finish_reason = True, end.reason
        live.input_tokens, live.output_tokens = end.input_tokens, end.output_tokens
    if live.made_as and c.native.turn == live.turn:
        c.native.turn = 0
    if live is c.responses.live:
        _complete_if_written(c, live)


def _complete_if_written(c: Conversation, live: Live) -> None:
    if live.modality == "text" or not c.graph.audio_stage:
        complete(c, live)


def pump(c: Conversation) -> None:
    """Let held sound leave as far as its time has come; drop what is stale."""
    lead = c.limits.max_output_lead_ms
    while (chunk := c.held.head()) is not None:
        live = c.responses.live
        audio = chunk.output if isinstance(chunk.output, AudioOut) else None
        if live is None or live.modality == "text" or not c.fence.admits(chunk.epoch) or c.responses.of(chunk) is not live:
            if audio is not None:
                c.playback.dropped(audio)
        elif audio is not None and not c.playback.may_leave(audio, c.now, lead):
            break
        else:
            _sound(c, live, chunk, audio)
        c.consumed(c.held.pop())
    _grant(c)


def _sound(c: Conversation, live: Live, chunk: StageChunk, audio: AudioOut | None) -> None:
    live.progress_at, live.owed_since = c.now, c.now if live.sound_fed else None
    if audio is not None:
        c.playback.sent(audio, c.now)
        if audio.data:
            c.responses.voice_used = True
            c.emit(events.AudioDelta(live.id, live.item_id, _announce(c, live), audio.data))
    if chunk.failed:
        fail(c, "stage_failed", chunk.stage)
    elif chunk.last:
        complete(c, live)


def _grant(c: Conversation) -> None:
    stage = c.graph.audio_stage
    if stage:
        limits = c.limits
        total = c.playback.grant(c.now, limits.max_output_lead_ms + limits.credit_extra_ms, max(100, limits.credit_extra_ms // 2))
        if total is not None:
            c.effects.append(Grant(stage, total))


def pace_at(c: Conversation) -> int | None:
    """When the next held sound may leave."""
    chunk = c.held.head()
    if chunk is None or not isinstance(chunk.output, AudioOut):
        return None
    return c.playback.leaves_at(chunk.output, c.limits.max_output_lead_ms)


def complete(c: Conversation, live: Live) -> None:
    if live.finish_reason == "length":
        _end(c, live, "incomplete", reason="max_output_tokens")
    else:
        _end(c, live, "completed")


def fail(c: Conversation, code: str, stage: str) -> None:
    """Something behind failed: the live response ends as failed, the session goes on."""
    live = c.responses.live
    if live is None:
        return
    mute(c)
    message = ERRORS[code].message.format(stage=stage)
    advance(c, code)
    _end(c, live, "failed", error_code=code, error_message=message)


def mute(c: Conversation) -> None:
    if c.responses.live is not None:
        c.effects.append(Mute(c.responses.live.id))


def interrupt(c: Conversation, cause: Cause) -> None:
    """Barge-in or cancel: epoch up, what is queued dropped, stages told, one terminal; the history keeps what was heard."""
    live = c.responses.live
    if live is not None:
        advance(c, cause)
        _end(c, live, "cancelled", reason=cause)
    for sound, heard_ms in c.playback.heard(c.now):
        if heard_ms < sound.sent_ms:
            c.history.cut(sound.item_id, heard_ms)
    c.playback.silence(c.now)


def advance(c: Conversation, reason: str) -> None:
    """The next epoch begins: every stage that makes something for a response drops what it makes for the old one."""
    c.responses.coming, c.native.turn = [], 0
    cancelled, following = c.fence.advance()
    for stage in c.graph.response_stages:
        c.order(stage, CancelOrder(cancelled, following, reason), append=False)


def _end(c: Conversation, live: Live, status: ResponseStatus, **end: object) -> None:
    """The one terminal of a response, its items closed before it."""
    c.responses.live = None
    if live.message_index is not None:
        _end_message(c, live, live.message_index, status)
    c.emit(events.ResponseDone(live.snapshot(c.conversation_id, status, **end)))
    c.emit(events.RateLimits())
    if c.responses.coming:
        announce(c, c.responses.coming.pop(0))


def _end_message(c: Conversation, live: Live, index: int, status: ResponseStatus) -> None:
    sound = c.playback.sounds[-1] if live.modality == "audio" else None
    item = live.message("completed" if status == "completed" else "incomplete", audio_ms=sound.sent_ms if sound else 0)
    live.outputs[index] = item
    if sound is None:
        c.emit(events.TextDone(live.id, live.item_id, index, live.text))
    else:
        if sound.samples:
            c.emit(events.AudioDone(live.id, live.item_id, index))
        c.emit(events.TranscriptDone(live.id, live.item_id, index, live.text))
    c.emit(events.ContentPartDone(live.id, live.item_id, index, item.content[0]))
    c.emit(events.OutputItemDone(live.id, index, item))
    if live.out_of_band:
        return
    c.history.put(item)
    if sound is not None:
        _remember(c, live, sound, status)
    c.emit(events.ItemDone(c.history.items[item.id], c.history.previous(item.id)))


def _remember(c: Conversation, live: Live, sound: Sound, status: ResponseStatus) -> None:
    """The history holds what is heard: of a cancelled reply what was, of a failed one what will be, and no more than a truncate left."""
    sound.marks = sound.marks or live.marks
    c.history.remember(live.item_id, live.text, sound)
    if status == "cancelled":
        c.history.cut(live.item_id, next(c.playback.heard(c.now))[1])
    elif status == "failed" or live.item_id in c.history.cuts:
        c.history.cut(live.item_id, sound.sent_ms)


def watch_at(c: Conversation) -> tuple[int, str] | None:
    """When the live response must have moved on, and the stage to blame if it has not."""
    live, limits = c.responses.live, c.limits
    if live is None:
        return None
    deadlines = [(live.progress_at + limits.response_timeout_ms, c.graph.text_stage)]
    if live.prompted and not live.made_as and not live.text_ended and not live.outputs:
        deadlines.append((live.progress_at + limits.first_output_timeout_ms, c.graph.text_stage))
    if live.owed_since is not None and not len(c.held) and c.graph.audio_stage:
        has_credit = max(live.owed_since, c.playback.ends_at() - limits.max_output_lead_ms)
        deadlines.append((has_credit + limits.stall_timeout_ms, c.graph.audio_stage))
    return min(deadlines)


def watch(c: Conversation) -> None:
    due = watch_at(c)
    if due is not None and due[0] <= c.now:
        fail(c, "stage_timeout", due[1])
