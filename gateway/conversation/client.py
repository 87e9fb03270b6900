"""What the client asks for, but for its voice: items, responses, configuration. Each either happens whole or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from . import events, policy, speaking
from .commands import (
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    StageUpdated,
)
from .config import SessionConfig
from .effects import UpdateOrder
from .errors import Refusal

if TYPE_CHECKING:
    from .session import Conversation


class Updating(msgspec.Struct):
    """A session.update that stages are still looking at. Client commands wait behind it, in order."""

    generation: int
    config: SessionConfig
    waiting: set[str]
    deadline: int
    event_id: str | None
    refusal: str | None = None


def item_create(c: Conversation, command: ItemCreate) -> None:
    if len(c.history.items) >= c.limits.max_items:
        raise Refusal("conversation_full", None, limit=c.limits.max_items)
    item = command.item
    if len(item.text) + len(item.arguments or "") + len(item.output or "") > c.limits.max_item_chars:
        raise Refusal("invalid_item", "item", why=f"it holds more than {c.limits.max_item_chars} characters")
    c.history.check_place(item.id, command.previous_item_id, c.limits.max_items)
    if not item.id:
        c.state.items += 1
        item = msgspec.structs.replace(item, id=c.make_id("item_c", c.state.items))
    previous = c.history.insert(item, command.previous_item_id)
    c.emit(events.ItemAdded(item, previous))
    c.emit(events.ItemDone(item, previous))


def item_retrieve(c: Conversation, command: ItemRetrieve) -> None:
    c.emit(events.ItemRetrieved(c.history.get(command.item_id)))


def item_delete(c: Conversation, command: ItemDelete) -> None:
    live = c.responses.live
    if live is not None and command.item_id in (live.item_id, *(i.id for i in live.outputs)):
        raise Refusal("item_in_progress", "item_id", item_id=command.item_id)
    c.history.delete(command.item_id)
    hearing_gone = c.dialog.hearing.pop(command.item_id, None)
    c.emit(events.ItemDeleted(command.item_id))
    if hearing_gone is not None:
        speaking.answer_if_owed(c)
        speaking.prompt_if_ready(c)


def item_truncate(c: Conversation, command: ItemTruncate) -> None:
    playing = c.playback.sound if c.responses.live is not None else None
    c.history.truncate(command.item_id, command.content_index, command.audio_end_ms, playing)
    c.emit(events.ItemTruncated(command.item_id, command.content_index, command.audio_end_ms))


def response_create(c: Conversation, command: ResponseCreate) -> None:
    speaking.start(c, command.options)


def response_cancel(c: Conversation, command: ResponseCancel) -> None:
    live = c.responses.live
    if live is None or command.response_id not in (None, live.id):
        raise Refusal("response_cancel_not_active", "response_id" if command.response_id else None)
    speaking.mute(c)
    speaking.interrupt(c, "client_cancelled")
    speaking.answer_if_owed(c)


def output_clear(c: Conversation, command: OutputClear) -> None:
    """Stop the sound: the live response is cancelled, a finished one that still plays is cut where it was heard."""
    live = c.responses.live
    if live is None and c.playback.lead_ms(c.now) == 0:
        raise Refusal("response_cancel_not_active")
    response_id = live.id if live is not None else c.make_id("resp", c.responses.count)
    speaking.mute(c)
    speaking.interrupt(c, "client_cancelled")
    c.emit(events.OutputCleared(response_id))
    speaking.answer_if_owed(c)


def session_update(c: Conversation, command: SessionUpdate) -> None:
    speaking_now = c.responses.live is not None or c.input.open_item is not None
    config = policy.apply(c.config, command.patch, voice_used=c.responses.voice_used, speaking=speaking_now)
    concerned = [stage for stage in c.graph.stages if _changes(c, stage, config)]
    if not concerned:
        _adopt(c, config, c.fence.config_generation)
        return
    generation = c.fence.config_generation + 1 + c.state.refused_updates
    c.state.updating = Updating(generation, config, set(concerned), c.now + c.limits.update_timeout_ms, command.event_id)
    for stage in concerned:
        formats = _formats(c, stage, config)
        c.order(stage, UpdateOrder(generation, policy.stage_config_json(stage, config), *formats), append=False)


def _changes(c: Conversation, stage: str, config: SessionConfig) -> bool:
    same = policy.stage_config(stage, config) == policy.stage_config(stage, c.config)
    return not same or any(_formats(c, stage, config))


def _formats(c: Conversation, stage: str, config: SessionConfig):  # type: ignore[no-untyped-def]
    hears = stage in c.graph.readers("client", "audio") and config.input_format != c.config.input_format
    speaks = stage == c.graph.audio_stage and config.output_format != c.config.output_format
    return (config.input_format if hears else None, config.output_format if speaks else None)


def stage_updated(c: Conversation, answer: StageUpdated) -> None:
    updating = c.state.updating
    if updating is None or answer.config_generation != updating.generation or answer.stage not in updating.waiting:
        return
    updating.waiting.discard(answer.stage)
    if answer.error_message is not None:
        _settle_update(c, answer.error_message, answer.error_param)
    elif not updating.waiting:
        c.state.updating = None
        _adopt(c, updating.config, updating.generation)
        release_held(c)


def update_late(c: Conversation) -> None:
    updating = c.state.updating
    if updating is not None and updating.deadline <= c.now:
        _settle_update(c, f"{', '.join(sorted(updating.waiting))} did not answer", None)


def _settle_update(c: Conversation, why: str, param: str | None) -> None:
    """Refused: no append is ever stamped with this generation, so the old configuration stands everywhere."""
    updating, c.state.updating = c.state.updating, None
    assert updating is not None
    c.state.refused_updates += 1
    c.refuse(Refusal("update_refused", f"session.{param}" if param else "session", why=why), updating.event_id)
    release_held(c)


def _adopt(c: Conversation, config: SessionConfig, generation: int) -> None:
    if config.input_format != c.config.input_format:
        c.input.change_format(c.config.input_format)
    c.config = config
    c.fence.config_generation = generation
    c.emit(events.SessionUpdated(c.session_id, config))


def release_held(c: Conversation) -> None:
    """Obey what waited behind the update, until another update makes it wait again."""
    while c.state.held_commands and c.state.updating is None:
        c.obey(c.state.held_commands.pop(0))


def close_by_expiry(c: Conversation) -> None:
    c.refuse(Refusal("session_expired"), None)
    c.close(1001, "session_expired")
