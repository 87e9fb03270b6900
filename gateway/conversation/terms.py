"""What may be asked of a conversation with a native model, and what only of such: anything else is refused by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from .commands import ItemCreate
from .config import ServerVad, SessionConfig, SessionPatch
from .errors import Refusal
from .policy import session_param

if TYPE_CHECKING:
    from .session import Conversation

_OURS = (
    ("overlap", "session.overlap"),
    ("model_options", "session.model_options"),
    ("reference_voice", "session.audio.output.reference_voice"),
)
_VAD = "session.audio.input.turn_detection"


def check_response(c: Conversation) -> None:
    if c.graph.model_stage:
        raise Refusal("native_unsupported", None, what="response.create")


def check_item(c: Conversation, command: ItemCreate) -> None:
    """A native model sees pictures and hears sound; it reads nothing."""
    if c.graph.model_stage and (not command.frames or any(part.kind != "input_image" for part in command.item.content)):
        raise Refusal("native_unsupported", "item", what="An item that is no picture")
    if command.frames and not c.graph.model_stage:
        raise Refusal("invalid_item", "item.content", why="no model here reads images")


def agreed(c: Conversation, patch: SessionPatch, config: SessionConfig) -> SessionConfig:
    """The configuration `config`, which the patch would make, as it can be had: without the user's words where nobody writes them.

    Raises Refusal: it is not for this model, or not any more.
    """
    if not c.graph.model_stage:
        for field, param in _OURS:
            if getattr(patch, field) not in (UNSET, None):
                raise Refusal("unsupported_value", param, why="it is for native models only")
        return config
    _check_words(c, config)
    _check_turns(c, patch, config)
    _check_options(c, patch)
    _check_frozen(c, config)
    return config if c.graph.transcript_stage else msgspec.structs.replace(config, transcription=None)


def _check_words(c: Conversation, config: SessionConfig) -> None:
    if config.tools:
        raise Refusal("unsupported_value", "session.tools", why="this model calls no functions")
    if config.max_output_tokens is not None:
        raise Refusal("unsupported_value", "session.max_output_tokens", why="the model itself decides when it has said enough")
    if config.speed != c.config.speed and not _mapped(c, "speed"):
        raise Refusal("unsupported_value", "session.audio.output.speed", why="this model speaks at its own speed")
    if config.reference_voice is not None and not _mapped(c, "reference_voice"):
        raise Refusal("unsupported_value", "session.audio.output.reference_voice", why="this model has its own voices")


def _check_turns(c: Conversation, patch: SessionPatch, config: SessionConfig) -> None:
    vad, overlap = config.turn_detection, config.overlap
    if vad is not None and not c.graph.decision_stage:
        raise Refusal("unsupported_value", _VAD, why="nobody here detects turns but the model")
    if vad is not None and not vad.create_response:
        raise Refusal("unsupported_value", f"{_VAD}.create_response", why="the model itself decides when it replies")
    if isinstance(vad, ServerVad) and vad.idle_timeout_ms is not None:
        raise Refusal("unsupported_value", f"{_VAD}.idle_timeout_ms", why="nobody can make the model speak")
    if patch.overlap is UNSET or overlap is None:
        return
    if overlap.policy == "interrupt" and (vad is None or not vad.interrupt_response):
        raise Refusal("unsupported_value", "session.overlap.policy", why="without turn detection that interrupts nobody can")
    if overlap.acknowledgements and not c.graph.transcript_stage:
        raise Refusal("unsupported_value", "session.overlap.acknowledgements", why="nobody here knows the user's words")


def _check_options(c: Conversation, patch: SessionPatch) -> None:
    known = {name for mapping in c.graph.mappings.values() for name in mapping.options.values()}
    given = patch.model_options if patch.model_options is not UNSET else {}
    for name, value in given.items():
        if name not in known:
            raise Refusal("unsupported_value", "session.model_options", why=f"its options are {', '.join(sorted(known)) or 'none'}")
        if not isinstance(value, str | int | float | bool | None):
            raise Refusal("unsupported_value", f"session.model_options.{name}", why="an option is a text, a number or a truth value")


def _check_frozen(c: Conversation, config: SessionConfig) -> None:
    """What the model was told before it first heard something holds for the session."""
    if not c.native.units and c.input.end_ms(c.config.input_format) < c.graph.native.first_ms:
        return
    for field in c.graph.native.frozen:
        if getattr(config, field, None) != getattr(c.config, field, None):
            stage = c.graph.model_stage
            names = c.graph.mappings[stage].session if stage in c.graph.mappings else {}
            name = next((name for name, source in names.items() if source == field), field)
            raise Refusal("frozen_after_first_unit", session_param(c.graph, stage, name))


def _mapped(c: Conversation, field: str) -> bool:
    return any(field in mapping.session.values() for mapping in c.graph.mappings.values())
