"""The OpenAI Realtime GA dialect: client JSON to commands, events to server JSON. Frames are text; limits are settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.conversation import commands
from gateway.conversation.commands import ClientCommand

from . import ga_items_in, ga_session_in, pictures
from . import ga_shapes as shapes
from .ga_events_out import SessionView, render
from .limits import WireLimits
from .problems import WireRefusal, from_validation, invalid, read_head, unknown_type

__all__ = ["SessionView", "parse", "render"]

_events: msgspec.json.Decoder[shapes.ClientEvent] = msgspec.json.Decoder(shapes.ClientEvent)


def parse(frame: str | bytes, limits: WireLimits) -> ClientCommand:
    """One client event as a command.

    Raises WireRefusal (an errors.Refusal) with code, dotted param, client_event_id and client_seq; never anything else. Of a key that
    appears twice the last one counts.
    """
    try:
        if isinstance(frame, bytes):
            raise WireRefusal("binary_frame_unsupported")
        _check_size(frame, limits.max_event_bytes)
        event = _decode(frame)
        command = _COMMANDS[type(event)](event, limits)
        return command if event.client_seq is None else msgspec.structs.replace(command, client_seq=event.client_seq)
    except WireRefusal as refusal:
        head = read_head(frame)
        refusal.client_event_id, refusal.client_seq = refusal.client_event_id or head.event_id, head.client_seq
        raise


def _check_size(frame: str, limit: int) -> None:
    size = len(frame)
    if size <= limit and not frame.isascii():
        size = len(frame.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise WireRefusal("event_too_large", size=size, limit=limit)


def _decode(frame: str) -> shapes.ClientEvent:
    try:
        return _events.decode(frame)
    except msgspec.ValidationError as error:
        refusal = from_validation(error)
        if refusal.param == "type" and refusal.code == "invalid_field":
            refusal = _untyped(read_head(frame).type)
        raise refusal from error
    except RecursionError as error:
        raise WireRefusal("nesting_too_deep") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise WireRefusal("invalid_json") from error


def _untyped(name: str | None) -> WireRefusal:
    return invalid("type", "expected str") if name is None else unknown_type(name)


def _append(event: shapes.Append, limits: WireLimits) -> commands.InputAppend:
    if not event.audio and not event.video_frames:
        raise invalid("audio", "it is empty")
    audio = ga_items_in.decode_audio(event.audio, "audio")
    if event.video_frames is None:
        return commands.InputAppend(audio=audio, event_id=event.event_id)
    seen = enumerate(event.video_frames)
    frames = tuple(pictures.frame(text, event.max_slice_nums, limits, f"video_frames[{index}]") for index, text in seen)
    return commands.InputAppend(audio=audio, frames=frames, frames_t_ms=event.video_frames_t_ms, event_id=event.event_id)


def _beta_transcription(event: shapes.BetaUpdateTranscription, limits: WireLimits) -> ClientCommand:
    raise WireRefusal("beta_api_unsupported", "type")


_COMMANDS: dict[type[Any], Callable[[Any, WireLimits], ClientCommand]] = {
    shapes.Append: _append,
    shapes.Commit: lambda event, limits: commands.InputCommit(event_id=event.event_id),
    shapes.Clear: lambda event, limits: commands.InputClear(event_id=event.event_id),
    shapes.ClearOutput: lambda event, limits: commands.OutputClear(event_id=event.event_id),
    shapes.CreateItem: lambda event, limits: commands.ItemCreate(
        item=ga_items_in.item(event.item, limits, "item"),
        previous_item_id=event.previous_item_id,
        frames=ga_items_in.frames(event.item, limits, "item"),
        event_id=event.event_id,
    ),
    shapes.RetrieveItem: lambda event, limits: commands.ItemRetrieve(item_id=event.item_id, event_id=event.event_id),
    shapes.DeleteItem: lambda event, limits: commands.ItemDelete(item_id=event.item_id, event_id=event.event_id),
    shapes.TruncateItem: lambda event, limits: commands.ItemTruncate(
        item_id=event.item_id, content_index=event.content_index, audio_end_ms=event.audio_end_ms, event_id=event.event_id
    ),
    shapes.CreateResponse: lambda event, limits: commands.ResponseCreate(
        options=ga_items_in.response_options(event.response, limits), event_id=event.event_id
    ),
    shapes.CancelResponse: lambda event, limits: commands.ResponseCancel(response_id=event.response_id, event_id=event.event_id),
    shapes.UpdateSession: lambda event, limits: commands.SessionUpdate(
        patch=ga_session_in.session_patch(event.session, limits), event_id=event.event_id
    ),
    shapes.BetaUpdateTranscription: _beta_transcription,
}
