"""The JSON shapes of the eleven client events, and of items and responses in them, as typed structs.

Unknown fields are tolerated, known ones are typed strictly. For an optional field `null` means "not given", except where the contract
gives null a meaning (default UNSET). Bounds that depend on settings are checked after the decode.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .ga_fields import EventId, Id, Metadata, Milliseconds, Modalities, Name, Tokens
from .ga_session_shapes import AudioOut, PromptShape, Reasoning, SessionShape, ToolChoiceShape, ToolShape
from .problems import MAX_CLIENT_SEQ


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class InputAudio(Struct, tag_field="type", tag="input_audio"):
    audio: str | None = None
    transcript: str | None = None


class InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    detail: str | None = None


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str


class OutputAudio(Struct, tag_field="type", tag="output_audio"):
    audio: str | None = None
    transcript: str | None = None


class BetaText(Struct, tag_field="type", tag="text"):
    text: str | None = None


class BetaAudio(Struct, tag_field="type", tag="audio"):
    transcript: str | None = None


Content = InputText | InputAudio | InputImage | OutputText | OutputAudio | BetaText | BetaAudio


class _ItemShape(Struct, tag_field="type", kw_only=True):
    id: Id | None = None
    object: str | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class MessageShape(_ItemShape, tag="message", kw_only=True):
    role: Literal["system", "user", "assistant"]
    content: list[Content]


class CallShape(_ItemShape, tag="function_call", kw_only=True):
    name: Name
    arguments: str
    call_id: Id


class CallOutputShape(_ItemShape, tag="function_call_output", kw_only=True):
    call_id: Id
    output: str


ItemShape = MessageShape | CallShape | CallOutputShape


class ResponseAudio(Struct):
    output: AudioOut | None = None


class ResponseShape(Struct):
    """response.create's options; the beta fields by name only."""

    instructions: str | None = None
    output_modalities: Modalities | None = None
    audio: ResponseAudio | None = None
    conversation: str | None = None
    input: list[ItemShape] | None = None
    max_output_tokens: Tokens | None = None
    metadata: Metadata | None = None
    tools: list[ToolShape] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    prompt: PromptShape | None = None
    reasoning: Reasoning | None = None
    modalities: Raw | UnsetType = UNSET
    voice: Raw | UnsetType = UNSET
    output_audio_format: Raw | UnsetType = UNSET
    max_response_output_tokens: Raw | UnsetType = UNSET
    temperature: Raw | UnsetType = UNSET


BETA_RESPONSE_FIELDS = ("modalities", "voice", "output_audio_format", "max_response_output_tokens", "temperature")


class _ClientEvent(Struct, tag_field="type", kw_only=True):
    event_id: EventId | None = None
    client_seq: Annotated[int, Meta(ge=1, le=MAX_CLIENT_SEQ)] | None = None
    """Our client numbers what it wants obeyed once."""


class Append(_ClientEvent, tag="input_audio_buffer.append", kw_only=True, gc=False):
    """Extension for models that see: pictures in base64, taken when the audio begins, or at a time of the open unit."""

    audio: str
    video_frames: list[str] | None = None
    video_frames_t_ms: Milliseconds | None = None
    max_slice_nums: Annotated[int, Meta(ge=1, le=9)] | None = None


class Commit(_ClientEvent, tag="input_audio_buffer.commit", kw_only=True):
    pass


class Clear(_ClientEvent, tag="input_audio_buffer.clear", kw_only=True):
    pass


class ClearOutput(_ClientEvent, tag="output_audio_buffer.clear", kw_only=True):
    pass


class CreateItem(_ClientEvent, tag="conversation.item.create", kw_only=True):
    item: ItemShape
    previous_item_id: Id | None = None


class RetrieveItem(_ClientEvent, tag="conversation.item.retrieve", kw_only=True):
    item_id: Id


class DeleteItem(_ClientEvent, tag="conversation.item.delete", kw_only=True):
    item_id: Id


class TruncateItem(_ClientEvent, tag="conversation.item.truncate", kw_only=True):
    item_id: Id
    content_index: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    audio_end_ms: Milliseconds


class CreateResponse(_ClientEvent, tag="response.create", kw_only=True):
    response: ResponseShape | None = None


class CancelResponse(_ClientEvent, tag="response.cancel", kw_only=True):
    response_id: Id | None = None


class UpdateSession(_ClientEvent, tag="session.update", kw_only=True):
    session: SessionShape


class BetaUpdateTranscription(_ClientEvent, tag="transcription_session.update", kw_only=True):
    pass


ClientEvent = (
    Append | Commit | Clear | ClearOutput | CreateItem | RetrieveItem | DeleteItem | TruncateItem
    | CreateResponse | CancelResponse | UpdateSession | BetaUpdateTranscription
)  # fmt: skip
