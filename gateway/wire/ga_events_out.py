"""Every event as its exact GA JSON, with the fields that the strictest of the known clients wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pybase64

from gateway.conversation import events
from gateway.conversation.errors import ERRORS
from gateway.conversation.events import Event

from .ga_objects_out import item_object, part_object, response_object, session_object

_encode = msgspec.json.Encoder().encode


class SessionView(msgspec.Struct):
    """What rendering needs of a session beyond the event. `unsequenced` counts the events rendered without a seq."""

    session_id: str
    expires_at: int | None = None
    """Unix seconds; None when the session has no end."""
    unsequenced: int = 0
    resume_token: str | None = None
    """Told in session.created, and nowhere else."""

    def __repr__(self) -> str:
        return f"SessionView({self.session_id!r})"


def render(event: Event, seq: int | None, session: SessionView) -> bytes:
    """One JSON text in UTF-8.

    event_id is `event_<session suffix>_<seq>`. Without a seq (errors, events that are not durable) it is `event_<session suffix>_u<count>`
    from the session's second counter.
    """
    name, body = _RENDERERS[type(event)]
    return _encode({"type": name, "event_id": event_id(seq, session)} | body(event, session))


def event_id(seq: int | None, session: SessionView) -> str:
    suffix = session.session_id.removeprefix("sess_")
    if seq is not None:
        return f"event_{suffix}_{seq}"
    session.unsequenced += 1
    return f"event_{suffix}_u{session.unsequenced}"


_Body = Callable[[Any, SessionView], dict[str, Any]]


def _flat(*fields: str) -> _Body:
    """The body of an event whose fields go out under their own names."""
    return lambda event, session: {field: getattr(event, field) for field in fields}


def _piece(event: Any) -> dict[str, Any]:
    """Where a piece of a response belongs: an item of a response here has one content part."""
    return {"response_id": event.response_id, "item_id": event.item_id, "output_index": event.output_index, "content_index": 0}


def _piece_with(*fields: str) -> _Body:
    return lambda event, session: _piece(event) | {field: getattr(event, field) for field in fields}


def _audio_delta(event: events.AudioDelta, session: SessionView) -> dict[str, Any]:
    return _piece(event) | {"delta": pybase64.b64encode_as_string(event.data)}


def _content_part(event: events.ContentPartAdded | events.ContentPartDone, session: SessionView) -> dict[str, Any]:
    return _piece(event) | {"part": part_object(event.part)}


def _session(event: events.SessionCreated | events.SessionUpdated, session: SessionView) -> dict[str, Any]:
    told = session_object(event.session_id, event.config, session.expires_at)
    if isinstance(event, events.SessionCreated) and session.resume_token is not None:
        told["resume_token"] = session.resume_token
    return {"session": told}


def _error(event: events.Error, session: SessionView) -> dict[str, Any]:
    return {"error": _failure(event.code, event.message, event.param) | {"event_id": event.client_event_id}}


def _failure(code: str, message: str, param: str | None) -> dict[str, Any]:
    return {"type": ERRORS.get(code, ERRORS["internal_error"]).type, "code": code, "message": message, "param": param}


def _placed_item(event: events.ItemAdded | events.ItemDone, session: SessionView) -> dict[str, Any]:
    return {"previous_item_id": event.previous_item_id, "item": item_object(event.item)}


def _retrieved(event: events.ItemRetrieved, session: SessionView) -> dict[str, Any]:
    return {"item": item_object(event.item)}


def _output_item(event: events.OutputItemAdded | events.OutputItemDone, session: SessionView) -> dict[str, Any]:
    return {"response_id": event.response_id, "output_index": event.output_index, "item": item_object(event.item)}


def _transcription_delta(event: events.TranscriptionDelta, session: SessionView) -> dict[str, Any]:
    return {"item_id": event.item_id, "content_index": 0, "delta": event.delta, "logprobs": None}


def _transcription_completed(event: events.TranscriptionCompleted, session: SessionView) -> dict[str, Any]:
    return {
        "item_id": event.item_id,
        "content_index": 0,
        "transcript": event.transcript,
        "logprobs": None,
        "usage": {"type": "duration", "seconds": event.audio_ms / 1000},
    }


def _transcription_failed(event: events.TranscriptionFailed, session: SessionView) -> dict[str, Any]:
    return {"item_id": event.item_id, "content_index": 0, "error": _failure(event.code, event.message, None)}


def _response(event: events.ResponseCreated | events.ResponseDone, session: SessionView) -> dict[str, Any]:
    return {"response": response_object(event.response)}


def _rate_limits(event: events.RateLimits, session: SessionView) -> dict[str, Any]:
    # Nothing is metered by tokens or requests here, so there is nothing to list.
    return {"rate_limits": []}


_CALL = ("response_id", "item_id", "output_index", "call_id")
_RENDERERS: dict[type[Any], tuple[str, _Body]] = {
    events.SessionCreated: ("session.created", _session),
    events.SessionUpdated: ("session.updated", _session),
    events.Error: ("error", _error),
    events.SpeechStarted: ("input_audio_buffer.speech_started", _flat("audio_start_ms", "item_id")),
    events.SpeechStopped: ("input_audio_buffer.speech_stopped", _flat("audio_end_ms", "item_id")),
    events.InputCommitted: ("input_audio_buffer.committed", _flat("previous_item_id", "item_id")),
    events.InputCleared: ("input_audio_buffer.cleared", _flat()),
    events.IdleTimeout: ("input_audio_buffer.timeout_triggered", _flat("audio_start_ms", "audio_end_ms", "item_id")),
    events.ItemAdded: ("conversation.item.added", _placed_item),
    events.ItemDone: ("conversation.item.done", _placed_item),
    events.ItemRetrieved: ("conversation.item.retrieved", _retrieved),
    events.ItemDeleted: ("conversation.item.deleted", _flat("item_id")),
    events.ItemTruncated: ("conversation.item.truncated", _flat("item_id", "content_index", "audio_end_ms")),
    events.TranscriptionDelta: ("conversation.item.input_audio_transcription.delta", _transcription_delta),
    events.TranscriptionCompleted: ("conversation.item.input_audio_transcription.completed", _transcription_completed),
    events.TranscriptionFailed: ("conversation.item.input_audio_transcription.failed", _transcription_failed),
    events.ResponseCreated: ("response.created", _response),
    events.ResponseDone: ("response.done", _response),
    events.OutputItemAdded: ("response.output_item.added", _output_item),
    events.OutputItemDone: ("response.output_item.done", _output_item),
    events.ContentPartAdded: ("response.content_part.added", _content_part),
    events.ContentPartDone: ("response.content_part.done", _content_part),
    events.AudioDelta: ("response.output_audio.delta", _audio_delta),
    events.AudioDone: ("response.output_audio.done", _piece_with()),
    events.TranscriptDelta: ("response.output_audio_transcript.delta", _piece_with("delta")),
    events.TranscriptDone: ("response.output_audio_transcript.done", _piece_with("transcript")),
    events.TextDelta: ("response.output_text.delta", _piece_with("delta")),
    events.TextDone: ("response.output_text.done", _piece_with("text")),
    events.ArgumentsDelta: ("response.function_call_arguments.delta", _flat(*_CALL, "delta")),
    events.ArgumentsDone: ("response.function_call_arguments.done", _flat(*_CALL, "name", "arguments")),
    events.RateLimits: ("rate_limits.updated", _rate_limits),
    events.OutputCleared: ("output_audio_buffer.cleared", _flat("response_id")),
    # of the extension, but told in order like all others
    events.ResyncRequired: ("session.resync_required", _flat("reason", "first_seq")),
    events.UnitDecided: ("session.decision", _flat("unit", "decision", "t_ms", "end_ms", "response_id")),
}
