"""Server events as typed structs, named for what happened. An event type that is not listed here arrives as `Unknown`, whole.

Times are milliseconds of the audio that this session sent; audio is raw bytes in the session's output format (24 kHz mono PCM16
little-endian unless the session was updated). Fields that a struct does not name are ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from .errors import ProtocolError


class Event(Struct, frozen=True, kw_only=True):
    """Base of all events."""

    event_id: str = ""


class ErrorDetail(Struct, frozen=True):
    """`event_id` names the client event at fault, where it could be read."""

    type: str
    message: str
    code: str | None = None
    param: str | None = None
    event_id: str | None = None


class Part(Struct, frozen=True):
    """A content part of an item: text for the text kinds, transcript for the audio kinds."""

    type: str = ""
    text: str | None = None
    transcript: str | None = None


class Item(Struct, frozen=True):
    """A message, a function call, or a function call's output."""

    id: str = ""
    type: str = ""
    role: str | None = None
    status: str | None = None
    content: list[Part] = []
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None

    @property
    def text(self) -> str:
        """Everything written or said in it."""
        return "".join(part.text or part.transcript or "" for part in self.content)


class StatusDetails(Struct, frozen=True):
    """Why a response did not complete. `reason` is turn_detected, client_cancelled, max_output_tokens or content_filter."""

    type: str | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None


class Response(Struct, frozen=True):
    """`status` is in_progress, completed, cancelled, failed or incomplete."""

    id: str = ""
    status: str = ""
    status_details: StatusDetails | None = None
    output: list[Item] = []
    usage: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None


class SessionCreated(Event, frozen=True, tag="session.created"):
    session: dict[str, Any]


class SessionUpdated(Event, frozen=True, tag="session.updated"):
    session: dict[str, Any]


class Error(Event, frozen=True, tag="error"):
    error: ErrorDetail


class SpeechStarted(Event, frozen=True, tag="input_audio_buffer.speech_started"):
    item_id: str
    audio_start_ms: int


class SpeechStopped(Event, frozen=True, tag="input_audio_buffer.speech_stopped"):
    item_id: str
    audio_end_ms: int


class InputCommitted(Event, frozen=True, tag="input_audio_buffer.committed"):
    item_id: str
    previous_item_id: str | None = None


class InputCleared(Event, frozen=True, tag="input_audio_buffer.cleared"):
    pass


class IdleTimeout(Event, frozen=True, tag="input_audio_buffer.timeout_triggered"):
    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class ItemAdded(Event, frozen=True, tag="conversation.item.added"):
    item: Item
    previous_item_id: str | None = None


class ItemDone(Event, frozen=True, tag="conversation.item.done"):
    item: Item
    previous_item_id: str | None = None


class ItemRetrieved(Event, frozen=True, tag="conversation.item.retrieved"):
    item: Item


class ItemDeleted(Event, frozen=True, tag="conversation.item.deleted"):
    item_id: str


class ItemTruncated(Event, frozen=True, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(Event, frozen=True, tag="conversation.item.input_audio_transcription.delta"):
    item_id: str
    delta: str = ""


class TranscriptionCompleted(Event, frozen=True, tag="conversation.item.input_audio_transcription.completed"):
    item_id: str
    transcript: str


class TranscriptionFailed(Event, frozen=True, tag="conversation.item.input_audio_transcription.failed"):
    item_id: str
    error: dict[str, Any]


class ResponseCreated(Event, frozen=True, tag="response.created"):
    response: Response


class ResponseDone(Event, frozen=True, tag="response.done"):
    response: Response


class OutputItemAdded(Event, frozen=True, tag="response.output_item.added"):
    response_id: str
    item: Item


class OutputItemDone(Event, frozen=True, tag="response.output_item.done"):
    response_id: str
    item: Item


class ContentPartAdded(Event, frozen=True, tag="response.content_part.added"):
    response_id: str
    item_id: str
    part: Part


class ContentPartDone(Event, frozen=True, tag="response.content_part.done"):
    response_id: str
    item_id: str
    part: Part


class AudioDelta(Event, frozen=True, tag="response.output_audio.delta"):
    response_id: str
    item_id: str
    audio: bytes = field(name="delta")


class AudioDone(Event, frozen=True, tag="response.output_audio.done"):
    response_id: str
    item_id: str


class TranscriptDelta(Event, frozen=True, tag="response.output_audio_transcript.delta"):
    response_id: str
    item_id: str
    delta: str


class TranscriptDone(Event, frozen=True, tag="response.output_audio_transcript.done"):
    response_id: str
    item_id: str
    transcript: str


class TextDelta(Event, frozen=True, tag="response.output_text.delta"):
    response_id: str
    item_id: str
    delta: str


class TextDone(Event, frozen=True, tag="response.output_text.done"):
    response_id: str
    item_id: str
    text: str


class ArgumentsDelta(Event, frozen=True, tag="response.function_call_arguments.delta"):
    response_id: str
    item_id: str
    call_id: str
    delta: str


class ArgumentsDone(Event, frozen=True, tag="response.function_call_arguments.done"):
    response_id: str
    item_id: str
    call_id: str
    arguments: str
    name: str = ""


class RateLimits(Event, frozen=True, tag="rate_limits.updated"):
    rate_limits: list[dict[str, Any]]


class OutputCleared(Event, frozen=True, tag="output_audio_buffer.cleared"):
    response_id: str


class Resumed(Event, frozen=True, tag="session.resumed"):
    """The connection was lost, and the conversation went on over another one. Nothing is missing unless an event says so.

    `seq` is the number of the last event before; `input_samples`, `input_frames` and `client_seq` say how much the server had of the
    audio, the camera's frames and the commands; `first_seq` is the number of the first event that came again. The token is taken out
    before the event is told.
    """

    session: dict[str, Any]
    resume_token: str
    seq: int
    input_samples: int
    client_seq: int
    first_seq: int | None = None
    input_frames: int = 0


class Replaced(Event, frozen=True, tag="session.replaced"):
    """Another connection took the session over; this one ends with TakenOver."""


class ResyncRequired(Event, frozen=True, tag="session.resync_required"):
    """What was told before number `first_seq` is lost in part, or does not hold any more.

    `reason` is journal_gap (events are not kept any more), rolled_back (the server's store lost what was said last), or sequence_jump
    (found by the client).
    """

    reason: str
    first_seq: int


class UnitDecided(Event, frozen=True, tag="session.decision"):
    """A native model decided over the input from t_ms to end_ms: "listen", "speak", or "turn_end". Units count from 0."""

    unit: int
    decision: str
    t_ms: int
    end_ms: int
    response_id: str | None = None


class Durability(Event, frozen=True, tag="session.durability"):
    """Whether the session would survive the loss of a connection or a server now."""

    durable: bool


class InputLost(Event, frozen=True):
    """Found at a resume: the server lacks more of what was said and shown than the client still keeps. Both go on after it."""

    samples: int
    commands: int
    frames: int = 0


class Unread(Event, frozen=True):
    """`count` events were dropped here, since nobody took them while another reader waited for its own."""

    count: int


class NumberUsed(Event, frozen=True, tag="session.skipped"):
    """Stands for a piece of audio that was muted before it left. The client counts it and tells nobody."""


class Unknown(Event, frozen=True):
    """An event of a type that this client does not know; `data` is the whole of it."""

    type: str
    data: dict[str, Any]


Known = (
    SessionCreated | SessionUpdated | Error | SpeechStarted | SpeechStopped | InputCommitted | InputCleared | IdleTimeout
    | ItemAdded | ItemDone | ItemRetrieved | ItemDeleted | ItemTruncated | TranscriptionDelta | TranscriptionCompleted | TranscriptionFailed
    | ResponseCreated | ResponseDone | OutputItemAdded | OutputItemDone | ContentPartAdded | ContentPartDone | AudioDelta | AudioDone
    | TranscriptDelta | TranscriptDone | TextDelta | TextDone | ArgumentsDelta | ArgumentsDone | RateLimits | OutputCleared
    | Resumed | Replaced | ResyncRequired | UnitDecided | Durability | NumberUsed
)  # fmt: skip


class _Head(Struct):
    type: str


_HEAD = msgspec.json.Decoder(_Head)
_ANY = msgspec.json.Decoder(dict[str, Any])
_BY_TYPE: dict[str, msgspec.json.Decoder[Event]] = {kind.__struct_config__.tag: msgspec.json.Decoder(kind) for kind in Known.__args__}


def decode(frame: bytes) -> Event:
    """One server frame as an event. Raises ProtocolError when it is no JSON object with a type, or a known type lacks a field."""
    try:
        kind = _HEAD.decode(frame).type
        if (decoder := _BY_TYPE.get(kind)) is not None:
            return decoder.decode(frame)
        data = _ANY.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the server sent an event that cannot be read: {error}") from error
    return Unknown(event_id=str(data.get("event_id") or ""), type=kind, data=data)


def number(event: Event) -> int | None:
    """The event's place in its session, from 1: the integer after the last `_` of its id. None: it has none."""
    digits = event.event_id.rpartition("_")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def response_of(event: Event) -> str | None:
    """Id of the response that an event belongs to."""
    if isinstance(event, ResponseCreated | ResponseDone):
        return event.response.id
    return getattr(event, "response_id", None)
