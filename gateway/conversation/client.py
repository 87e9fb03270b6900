"""What the client asks for, but for its voice: items, responses, configuration. Each either happens whole or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from . import camera, events, policy, speaking, terms
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
from .config import AudioFormat, SessionConfig
from .effects import UpdateOrder
from .errors import Refusal

if TYPE_CHECKING:
    from .session import Conversation


class Updating(msgspec.Struct):
    """A session.update that stages are still looking at. Client commands wait behind it, in order."""

    generation: int
    config: SessionConfig
    concerned: list[str]
    waiting: list[str]
    deadline: int
    event_id: str | None


def item_create(c: Conversation, command: ItemCreate) -> None:
    item, live = command.item, c.responses.live
    terms.check_item(c, command)
    if len(item.text) + len(item.arguments or "") + len(item.output or "") > c.limits.max_item_chars:
        raise Refusal("invalid_item", "item", why=f"it holds more than {c.limits.max_item_chars} characters")
    if item.id and item.id in (c.input.open_item, live.item_id if live else None):
        raise Refusal("item_already_exists", "item.id", item_id=item.id)
    c.history.check_place(item.id, command.previous_item_id, c.limits.max_items)
    images = camera.judged(c, command.frames, None, "item.content")
    if not item.id:
        item = msgspec.structs.replace(item, id=c.new_item_id("c"))
    camera.show(c, images, command.event_id)
    previous = c.history.insert(item, command.previous_item_id)
    c.emit(events.ItemAdded(item, previous))
    c.emit(events.ItemDone(item, previous))


def item_retrieve(c: Conversation, command: ItemRetrieve) -> None:
    c.emit(events.ItemRetrieved(c.history.get(command.item_id)))


def item_delete(c: Conversation, command: ItemDelete) -> None:
    live = c.responses.live
    if live is not None and command.item_id in (live.item_id, *(i.id for i in live.outputs)):
        raise Refusal("item_in_progress", "item_id", item_id=command.item_id)
    c.delete_item(command.item_id)


def item_truncate(c: Conversation, command: ItemTruncate) -> None:
    live = c.responses.live
    playing = c.playback.sounds[-1] if live is not None and live.modality == "audio" else None
    c.history.truncate(command.item_id, command.content_index, command.audio_end_ms, playing)
    c.emit(events.ItemTruncated(command.item_id, command.content_index, command.audio_end_ms))


def response_create(c: Conversation, command: ResponseCreate) -> None:
    terms.check_response(c)
    speaking.start(c, command.options)


def response_cancel(c: Conversation, command: ResponseCancel) -> None:
    live = c.responses.live
    if live is None or command.response_id not in (None, live.id):
        raise Refusal("response_cancel_not_active", "response_id" if command.response_id else None)
    speaking.mute(c)
    speaking.interrupt(c, "client_cancelled")


def output_clear(c: Conversation, command: OutputClear) -> None:
    """Stop the sound: the live response is cancelled, a finished one that still plays is cut where it was heard."""
    live = c.responses.live
    if live is None and c.playback.lead_us(c.now) == 0:
        raise Refusal("response_cancel_not_active")
    response_id = live.id if live is not None else c.make_id("resp", c.responses.count)
    speaking.mute(c)
    speaking.interrupt(c, "client_cancelled")
    c.emit(events.OutputCleared(response_id))


def session_update(c: Conversation, command: SessionUpdate) -> None:
    speaking_now = c.responses.live is not None or c.input.open_item is not None
    config = policy.apply(c.config, command.patch, voice_used=c.responses.voice_used, speaking=speaking_now)
    config = terms.agreed(c, command.patch, config)
    changing = [stage for stage in c.graph.stages if _told(c, stage, config) != _told(c, stage, c.config)]
    if not changing:
        _adopt(c, config, c.fence.config_generation)
        return
    c.state.updates += 1
    generation = c.state.updates
    concerned = [stage for stage in c.graph.stages if stage in changing or stage in c.state.misled]
    deadline = c.now + c.limits.update_timeout_ms
    c.state.updating = Updating(generation, config, concerned, list(concerned), deadline, command.event_id)
    for stage in concerned:
        config_json, hears, speaks = _told(c, stage, config)
        if stage not in c.state.misled:
            hears = hears if config.input_format != c.config.input_format else None
            speaks = speaks if config.output_format != c.config.output_format else None
        c.order(stage, UpdateOrder(generation, config_json, hears, speaks), append=False)


def _told(c: Conversation, stage: str, config: SessionConfig) -> tuple[str, AudioFormat | None, AudioFormat | None]:
    """All that a stage is told of a configuration: its own JSON, the format it hears, the format it speaks."""
    hears = config.input_format if stage in c.graph.readers("client", "audio") else None
    speaks = config.output_format if stage == c.graph.audio_stage else None
    return policy.stage_config_json(c.graph, stage, config, c.memory.recap), hears, speaks


def stage_updated(c: Conversation, answer: StageUpdated) -> None:
    updating = c.state.updating
    if updating is None or answer.config_generation != updating.generation or answer.stage not in updating.waiting:
        return
    updating.waiting.remove(answer.stage)
    if answer.error_message is not None:
        param = answer.error_param and policy.session_param(c.graph, answer.stage, answer.error_param).removeprefix("session.")
        _settle_update(c, answer.error_message, param)
    elif not updating.waiting:
        c.state.updating, c.state.misled = None, []
        _adopt(c, updating.config, updating.generation)
        release_held(c)


def update_interrupted(c: Conversation, stage: str) -> None:
    """A stage that was to judge the update is lost: refused, as a stage that does not answer."""
    updating = c.state.updating
    if updating is not None and stage in updating.waiting:
        _settle_update(c, f"{stage} was lost", None)


def update_late(c: Conversation) -> None:
    updating = c.state.updating
    if updating is not None and updating.deadline <= c.now:
        _settle_update(c, f"{', '.join(sorted(updating.waiting))} did not answer", None)


def _settle_update(c: Conversation, why: str, param: str | None) -> None:
    """Refused: no append is stamped with this generation. Stages that staged it are told better with the next one, before it could hold."""
    updating, c.state.updating = c.state.updating, None
    assert updating is not None
    c.state.misled = sorted({*c.state.misled, *updating.concerned})
    c.refuse(Refusal("update_refused", f"session.{param}" if param else "session", why=why), updating.event_id)
    release_held(c)


def _adopt(c: Conversation, config: SessionConfig, generation: int) -> None:
    if config.input_format != c.config.input_format:
        c.input.change_format(c.config.input_format, config.input_format)
    if config.turn_detection is None and c.config.turn_detection is not None and c.input.open_item is None:
        c.input.forget_until(c.input.end_ms(config.input_format))  # the silence before is nobody's
    if policy.idle_timeout_ms(config) != policy.idle_timeout_ms(c.config):
        c.cancel_deadline("idle")
    c.config = config
    c.fence.config_generation = generation
    c.emit(events.SessionUpdated(c.session_id, config.told))


def release_held(c: Conversation) -> None:
    """Obey what waited behind the update, until another update makes it wait again."""
    held = c.state.held_commands
    while held and c.state.updating is None and not (c.state.lost and isinstance(held[0], SessionUpdate)):
        c.obey(held.pop(0))


def close_by_expiry(c: Conversation) -> None:
    speaking.fail(c, "session_expired", "")
    c.refuse(Refusal("session_expired"), None)
    c.close(1001, "session_expired")


def close_unused(c: Conversation) -> None:
    """With a code after which no client comes back by itself."""
    c.refuse(Refusal("idle_timeout"), None)
    c.close(1000, "idle_timeout")
