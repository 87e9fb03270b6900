"""Between the core's terms and the stage contract's messages. Payload bytes are handed over as they are."""

from __future__ import annotations

from functools import cache

from parley_stage.v1 import stage_pb2 as pb

from .conversation import effects as fx
from .conversation.commands import (
    AudioOut,
    DecisionOut,
    FinishOut,
    MarkOut,
    NoteOut,
    OpaqueOut,
    Output,
    StageAccepted,
    StageChunk,
    StageFailed,
    StageUnit,
    StageUpdated,
    TextOut,
    ToolOut,
    TranscriptOut,
)
from .conversation.config import AudioFormat

_ENCODINGS = {
    "pcm": pb.AUDIO_ENCODING_PCM_S16LE,
    "pcmu": pb.AUDIO_ENCODING_G711_ULAW,
    "pcma": pb.AUDIO_ENCODING_G711_ALAW,
}
_LANES = {"input": pb.LANE_INPUT, "response": pb.LANE_RESPONSE}
_DECISIONS = {
    pb.Decision.KIND_SPEECH_STARTED: "speech_started",
    pb.Decision.KIND_PAUSE: "pause",
    pb.Decision.KIND_SPEECH_RESUMED: "speech_resumed",
    pb.Decision.KIND_SPEECH_STOPPED: "speech_stopped",
    pb.Decision.KIND_LISTEN: "listen",
    pb.Decision.KIND_SPEAK: "speak",
    pb.Decision.KIND_TURN_END: "turn_end",
}
_FINISHES = {pb.Finish.REASON_LENGTH: "length", pb.Finish.REASON_FAILED: "failed"}


@cache
def audio_format(fmt: AudioFormat) -> pb.AudioFormat:
    """One message for each format, to be copied from and never changed."""
    return pb.AudioFormat(encoding=_ENCODINGS[fmt.encoding], sample_rate_hz=fmt.rate)


def relay(effect: fx.Relay, authority: pb.Authority) -> pb.ToStage:
    message = pb.ToStage(authority=authority, label=pb.Label(epoch=effect.epoch, turn=effect.turn, response_id=effect.response_id))
    append, payload = message.append, effect.payload  # filled in place: to hand a message over would copy its audio
    append.edge, append.position, append.previous, append.lane = effect.edge, effect.position, effect.previous, _LANES[effect.lane]
    append.input_generation, append.config_generation, append.last = effect.input_generation, effect.config_generation, effect.last
    if isinstance(payload, fx.InputAudio):
        audio = append.payload.audio
        audio.format.CopyFrom(audio_format(payload.format))
        audio.data, audio.samples, audio.start_sample = payload.data, payload.samples, payload.start_sample
    elif isinstance(payload, fx.InputImage):
        image = append.payload.image
        image.media_type, image.data, image.t_ms, image.max_slices = payload.media_type, payload.data, payload.t_ms, payload.max_slices
    elif payload is not None:
        append.payload.CopyFrom(payload)
    return message


def order(effect: fx.Order, authority: pb.Authority) -> pb.ToStage:
    message = pb.ToStage(authority=authority, command_number=effect.number, label=pb.Label(epoch=effect.epoch))
    body = effect.body
    match body:
        case fx.CancelOrder():
            message.cancel.CopyFrom(pb.Cancel(cancelled_epoch=body.cancelled_epoch, next_epoch=body.next_epoch, reason=body.reason))
        case fx.UpdateOrder():
            update = pb.Update(config_generation=body.config_generation, config_json=body.config_json)
            if body.input_format is not None:
                update.input_format.CopyFrom(audio_format(body.input_format))
            if body.output_format is not None:
                update.output_format.CopyFrom(audio_format(body.output_format))
            message.update.CopyFrom(update)
        case _:
            append = pb.Append(edge="core", position=effect.number, previous=effect.previous, config_generation=effect.config_generation)
            _fill(append, message.label, body)
            message.append.CopyFrom(append)
    return message


def _fill(append: pb.Append, label: pb.Label, body: fx.OrderBody) -> None:
    match body:
        case fx.CommitOrder():
            append.lane = pb.LANE_INPUT
            append.payload.control.CopyFrom(
                pb.Control(kind=pb.Control.KIND_COMMIT, item_id=body.item_id, start_ms=body.start_ms, end_ms=body.end_ms)
            )
            append.input_generation = body.input_generation
        case fx.ClearOrder():
            append.lane = pb.LANE_INPUT
            append.input_generation = body.input_generation
            append.payload.control.kind = pb.Control.KIND_CLEAR
        case fx.ContinueOrder():
            append.lane = pb.LANE_INPUT
            append.input_generation = body.input_generation
            label.epoch, label.turn = body.epoch, body.turn
            append.payload.control.CopyFrom(pb.Control(kind=pb.Control.KIND_CONTINUE, start_ms=body.end_ms))
        case fx.CloseUnitOrder():
            append.lane = pb.LANE_INPUT
            append.input_generation = body.input_generation
            append.payload.control.CopyFrom(pb.Control(kind=pb.Control.KIND_CLOSE_UNIT, start_ms=body.end_ms))
        case fx.SkipSilenceOrder():
            append.lane = pb.LANE_INPUT
            append.input_generation = body.input_generation
            append.payload.control.CopyFrom(pb.Control(kind=pb.Control.KIND_SKIP_SILENCE, start_ms=body.start_ms, end_ms=body.end_ms))
        case fx.PromptOrder():
            append.lane = pb.LANE_RESPONSE
            append.last = True
            label.epoch, label.turn, label.response_id = body.epoch, body.turn, body.response_id
            append.payload.messages.CopyFrom(_messages(body))


def _messages(body: fx.PromptOrder) -> pb.Messages:
    messages = pb.Messages(max_tokens=body.max_tokens, tool_choice=body.tool_choice)
    for m in body.messages:
        message = messages.messages.add(role=m.role, content=m.content)
        if m.role == "assistant" and m.call_id:
            message.tool_calls.add(call_id=m.call_id, name=m.name, arguments_json=m.arguments)
        elif m.call_id:
            message.call_id = m.call_id
    for t in body.tools:
        messages.tools.add(name=t.name, description=t.description, parameters_json=t.parameters_json)
    return messages


def chunk(stage: str, message: pb.Chunk, base: int = 0) -> StageChunk:
    payload = message.payload if message.HasField("payload") else None
    return StageChunk(
        stage=stage,
        position=message.position + base,
        epoch=message.label.epoch,
        response_id=message.label.response_id,
        output=None if payload is None else _output(payload),
        last=message.last,
        finish=_finish(message.finish) if message.HasField("finish") else None,
        wire=payload,
        turn=message.label.turn,
    )


def _finish(finish: pb.Finish) -> FinishOut:
    reason, error = _FINISHES.get(finish.reason, "stop"), finish.error
    return FinishOut(reason, finish.input_tokens, finish.output_tokens, error.message, error.param)


def _output(payload: pb.Payload) -> Output | None:
    kind = payload.WhichOneof("value")
    match kind:
        case "audio":
            audio = payload.audio
            marks = tuple(MarkOut(m.text_chars, m.audio_ms, m.sentence_end) for m in audio.marks)
            return AudioOut(audio.data, audio.samples, audio.format.sample_rate_hz, marks)
        case "text":
            return TextOut(payload.text.text)
        case "transcript":
            t = payload.transcript
            return TranscriptOut(t.item_id, t.text, t.final, t.audio_start_ms, t.audio_end_ms)
        case "decision":
            d = payload.decision
            return DecisionOut(_DECISIONS.get(d.kind, "unknown"), d.t_ms, d.decided_at_ms, d.reason)
        case "tool":
            return ToolOut(payload.tool.call_id, payload.tool.name, payload.tool.arguments_json)
        case "unit_note":
            return NoteOut(payload.unit_note.start_ms, payload.unit_note.end_ms, payload.unit_note.data)
        case None:
            return None
        case _:
            return OpaqueOut(kind)


def unit(stage: str, done: pb.UnitDone) -> StageUnit:
    return StageUnit(stage, done.unit)


def accepted(stage: str, marks: pb.Watermarks) -> StageAccepted:
    return StageAccepted(stage, dict(marks.edges), marks.command_number)


def updated(stage: str, message: pb.Updated) -> StageUpdated:
    if not message.HasField("error"):
        return StageUpdated(stage, message.config_generation)
    return StageUpdated(stage, message.config_generation, message.error.message, message.error.param or None)


def failed(stage: str, error: pb.StageError) -> StageFailed:
    return StageFailed(stage, error.message, error.label.epoch, error.label.response_id)
