"""What the client is told, in domain terms. A dialect in `wire/` renders each to its own names; the journal keeps them as msgpack.

Every event is a tagged Struct; `EVENTS` is the closed union. Ids are deterministic: (session, counter).
"""

from __future__ import annotations

from .config import SessionConfig
from .items import Item, Part, Response
from .quiet import Quiet


class _Event(Quiet, frozen=True, tag=True, omit_defaults=True):
    pass


class SessionCreated(_Event, frozen=True, tag=True):
    session_id: str
    config: SessionConfig


class SessionUpdated(_Event, frozen=True, tag=True):
    session_id: str
    config: SessionConfig


class Error(_Event, frozen=True, tag=True):
    """code is a row of errors.ERRORS."""

    code: str
    message: str
    param: str | None = None
    client_event_id: str | None = None


class SpeechStarted(_Event, frozen=True, tag=True):
    item_id: str
    audio_start_ms: int


class SpeechStopped(_Event, frozen=True, tag=True):
    item_id: str
    audio_end_ms: int


class InputCommitted(_Event, frozen=True, tag=True):
    item_id: str
    previous_item_id: str | None


class InputCleared(_Event, frozen=True, tag=True):
    pass


class IdleTimeout(_Event, frozen=True, tag=True):
    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class ItemAdded(_Event, frozen=True, tag=True):
    item: Item
    previous_item_id: str | None


class ItemDone(_Event, frozen=True, tag=True):
    item: Item
    previous_item_id: str | None


class ItemRetrieved(_Event, frozen=True, tag=True):
    item: Item


class ItemDeleted(_Event, frozen=True, tag=True):
    item_id: str


class ItemTruncated(_Event, frozen=True, tag=True):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(_Event, frozen=True, tag=True):
    item_id: str
    delta: str


class TranscriptionCompleted(_Event, frozen=True, tag=True):
    item_id: str
    transcript: str
    audio_ms: int


class TranscriptionFailed(_Event, frozen=True, tag=True):
    item_id: str
    code: str
    message: str


class ResponseCreated(_Event, frozen=True, tag=True):
    response: Response


class OutputItemAdded(_Event, frozen=True, tag=True):
    response_id: str
    output_index: int
    item: Item


class ContentPartAdded(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    part: Part


class AudioDelta(_Event, frozen=True, tag=True):
    """data: raw bytes in the session's output format, whole samples."""

    response_id: str
    item_id: str
    output_index: int
    data: bytes


class TranscriptDelta(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    delta: str


class TextDelta(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    delta: str


class AudioDone(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int


class TranscriptDone(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    transcript: str


class TextDone(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    text: str


class ContentPartDone(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    part: Part


class OutputItemDone(_Event, frozen=True, tag=True):
    response_id: str
    output_index: int
    item: Item


class ArgumentsDelta(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str


class ArgumentsDone(_Event, frozen=True, tag=True):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str


class ResponseDone(_Event, frozen=True, tag=True):
    response: Response


class RateLimits(_Event, frozen=True, tag=True):
    pass


class OutputCleared(_Event, frozen=True, tag=True):
    response_id: str


class ResyncRequired(_Event, frozen=True, tag=True):
    """Something that the client was told is not so any more, or is lost to it: what it knows holds from event first_seq on."""

    reason: str
    first_seq: int


class UnitDecided(_Event, frozen=True, tag=True):
    """A native model decided over the input from t_ms to end_ms: to listen, to speak, or that its turn ends here. Units count from 0."""

    unit: int
    decision: str
    t_ms: int
    end_ms: int
    response_id: str | None = None


Event = (
    SessionCreated | SessionUpdated | Error | SpeechStarted | SpeechStopped | InputCommitted | InputCleared | IdleTimeout
    | ItemAdded | ItemDone | ItemRetrieved | ItemDeleted | ItemTruncated
    | TranscriptionDelta | TranscriptionCompleted | TranscriptionFailed
    | ResponseCreated | OutputItemAdded | ContentPartAdded | AudioDelta | TranscriptDelta | TextDelta
    | AudioDone | TranscriptDone | TextDone | ContentPartDone | OutputItemDone | ArgumentsDelta | ArgumentsDone
    | ResponseDone | RateLimits | OutputCleared | ResyncRequired | UnitDecided
)  # fmt: skip

EXTENSION = (ResyncRequired, UnitDecided)
"""Told only to clients that asked for more than the dialect; numbered and kept like all others."""
