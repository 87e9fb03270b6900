"""A conversation as bytes: a small hot part that changes with every commit, and fields that are written only when they change."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.graph import Edges, Graph
from gateway.graph.edges import EdgesState

from .client import Updating
from .commands import Client
from .config import SessionConfig
from .dialog import Dialog
from .fence import Fence
from .history import History
from .input import InputLedger
from .items import Item
from .limits import Limits
from .native import Memory, Native
from .orders import Outbox
from .playback import Playback, Sound
from .response import Asked, Live, Responses
from .session import Conversation
from .state import SCHEMA, State
from .unit_log import Note, UnitLog

READABLE_SCHEMAS = (SCHEMA - 1, SCHEMA)


class UnreadableCheckpoint(Exception):
    """The checkpoint was written by a version that this one does not read."""


class Hot(Struct):
    state: State
    fence: Fence
    input: InputLedger
    playback: Playback
    responses: Responses
    elapsed_ms: int
    native: Native | None = None
    """None in a conversation with a dialog."""


class Checkpoint(Struct, frozen=True):
    """hot: msgpack. fields: changed ones only; None deletes."""

    hot: bytes
    fields: dict[str, bytes | None]


class Aside(Struct):
    """Parts kept out of `hot` because they grow with what is said."""

    live: Live | None
    sounds: list[Sound]
    updating: Updating | None
    held_commands: list[Client]
    coming: list[Live] = []


_encode = msgspec.msgpack.encode
_NOTE = "unit:"


def _without_asked(live: Live | None) -> Live | None:
    return live and msgspec.structs.replace(live, asked=Asked())


class Checkpointer:
    """Encodes a conversation and remembers what it wrote, so that the next time only changes are written."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation
        self._written: dict[str, bytes] = {}
        self._config: SessionConfig | None = None
        self._told: tuple[str, ...] = ()

    def take(self) -> Checkpoint:
        """The checkpoint as of now; `hot` whole, fields that differ from the last one taken."""
        c, fields = self._c, {}
        for item_id in c.history.changed:
            item = c.history.items.get(item_id)
            fields[f"item:{item_id}"] = None if item is None else _encode(item)
        for number in c.unit_log.changed:
            note = c.unit_log.notes.get(number)
            fields[f"{_NOTE}{number}"] = None if note is None else _encode(note)
        parts: dict[str, Any] = {
            "aside": Aside(
                _without_asked(c.responses.live),
                c.playback.sounds,
                c.state.updating,
                list(c.state.held_commands),
                c.responses.coming,
            ),
            "asked": c.responses.live and c.responses.live.asked,
            "outbox": c.outbox,
            "dialog": c.dialog,
            "edges": c.edges.state,
        }
        if c.graph.model_stage:
            parts |= self._of_a_model(c.memory)
        if c.history.changed:
            parts["history"] = msgspec.structs.replace(c.history, items={}, changed=set())
        if c.config is not self._config:
            parts["config"], self._config = c.config, c.config
        for name, part in parts.items():
            data = _encode(part)
            if self._written.get(name) != data:
                fields[name] = self._written[name] = data
        c.history.changed.clear()
        c.unit_log.changed.clear()
        return Checkpoint(self._hot(), fields)

    def _of_a_model(self, memory: Memory) -> dict[str, Any]:
        """What a model was told when it was placed anew is written once, apart from what changes."""
        log, recap = self._c.unit_log, memory.recap
        parts: dict[str, Any] = {"memory": memory, "unit_log": msgspec.structs.replace(log, notes={}, changed=set())}
        told = () if recap is None else recap.unit_log
        if recap is not None and told:
            parts["memory"] = msgspec.structs.replace(memory, recap=msgspec.structs.replace(recap, unit_log=()))
        if told is not self._told:
            parts["told"] = self._told = told
        return parts

    def forget(self) -> None:
        """What was taken did not become durable: the next checkpoint is a full one."""
        self._written.clear()
        self._config, self._told = None, ()
        self._c.history.changed.update(self._c.history.items)
        self._c.unit_log.changed.update(self._c.unit_log.notes)

    def _hot(self) -> bytes:
        c = self._c
        return _encode(
            Hot(
                msgspec.structs.replace(c.state, updating=None, held_commands=[]),
                c.fence,
                c.input,
                msgspec.structs.replace(c.playback, sounds=[]),
                msgspec.structs.replace(c.responses, live=None, coming=[]),
                c.now,
                c.native if c.graph.model_stage else None,
            )
        )


def restore(session_id: str, graph: Graph, limits: Limits, hot: bytes, fields: dict[str, bytes]) -> Conversation:
    """The conversation as it was committed. Stage outputs above its consumed positions are to be sent to it again."""
    schema = msgspec.msgpack.decode(hot)["state"].get("schema")
    if schema not in READABLE_SCHEMAS:
        raise UnreadableCheckpoint(f"schema {schema}")
    h = msgspec.msgpack.decode(hot, type=Hot)
    aside = msgspec.msgpack.decode(fields["aside"], type=Aside)
    c = Conversation(session_id, msgspec.msgpack.decode(fields["config"], type=SessionConfig), graph, limits)
    c.state, c.fence, c.input, c.playback, c.responses, c.now = h.state, h.fence, h.input, h.playback, h.responses, h.elapsed_ms
    c.responses.live, c.responses.coming, c.playback.sounds = aside.live, aside.coming, aside.sounds
    c.native = h.native or Native()
    _restore_model(c, fields)
    if c.responses.live is not None:
        c.responses.live.asked = msgspec.msgpack.decode(fields["asked"], type=Asked)
    c.state.updating, c.state.held_commands = aside.updating, aside.held_commands
    c.outbox = msgspec.msgpack.decode(fields["outbox"], type=Outbox)
    c.dialog = msgspec.msgpack.decode(fields["dialog"], type=Dialog)
    c.edges = Edges(graph, msgspec.msgpack.decode(fields["edges"], type=EdgesState))
    if "history" in fields:
        c.history = msgspec.msgpack.decode(fields["history"], type=History)
        c.history.items = {i: msgspec.msgpack.decode(fields[f"item:{i}"], type=Item) for i in c.history.order}
    return c


def _restore_model(c: Conversation, fields: dict[str, bytes]) -> None:
    if "memory" in fields:
        c.memory = msgspec.msgpack.decode(fields["memory"], type=Memory)
    if c.memory.recap is not None and "told" in fields:
        told = msgspec.msgpack.decode(fields["told"], type=tuple[str, ...])
        c.memory.recap = msgspec.structs.replace(c.memory.recap, unit_log=told)
    if "unit_log" in fields:
        c.unit_log = msgspec.msgpack.decode(fields["unit_log"], type=UnitLog)
        numbers = sorted(int(name.removeprefix(_NOTE)) for name in fields if name.startswith(_NOTE))
        c.unit_log.notes = {number: msgspec.msgpack.decode(fields[f"{_NOTE}{number}"], type=Note) for number in numbers}
