"""The aggregate root of a conversation: commands in, effects out. It never waits, reads no clock and does no I/O.

`receive` is the only way in. One call is one transition; its effects are to be performed in order, `Relay`, `Grant` and `Mute` at once,
the rest after the commit of a checkpoint. A restored conversation that is told the same goes on alike: ids come from (session, counter),
deadlines are milliseconds of the session's own elapsed time.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from gateway.graph import Edges, Graph

from . import client, events, hearing, speaking
from .client import Updating
from .commands import (
    AudioOut,
    Client,
    ClientCommand,
    Command,
    DecisionOut,
    Drain,
    InputAppend,
    InputClear,
    InputCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OpaqueOut,
    OutputClear,
    Refused,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    StageAccepted,
    StageChunk,
    StageFailed,
    StageLost,
    StageUpdated,
    Start,
    TextOut,
    Tick,
    ToolOut,
    TranscriptOut,
)
from .config import SessionConfig
from .dialog import Dialog
from .effects import Ack, Close, Effect, Emit, Order, OrderBody, Relay
from .errors import ERRORS, Refusal
from .fence import Fence
from .history import History
from .input import InputLedger
from .limits import Limits
from .orders import Outbox
from .playback import Held, Playback
from .response import Responses

SCHEMA = 1
_CONTROL = (ResponseCancel, OutputClear)


class State(Struct):
    """The rest of what a checkpoint's hot part holds."""

    schema: int = SCHEMA
    seq: int = 0
    items: int = 0
    consumed: dict[str, int] = {}
    deadlines: dict[str, int] = {}
    partial: str = ""
    """Last partial transcript of the open utterance."""
    told: str = ""
    """How much of it the client knows."""
    refused_updates: int = 0
    updating: Updating | None = None
    held_commands: list[Client] = []
    closing: bool = False
    draining: bool = False


class Conversation:
    """One live session. `deadline` tells when it wants a Tick; `effects` of a call are complete when receive returns."""

    def __init__(self, session_id: str, config: SessionConfig, graph: Graph, limits: Limits | None = None) -> None:
        self.session_id, self.config, self.graph = session_id, config, graph
        self.limits = limits or Limits()
        self.conversation_id = f"conv_{session_id.removeprefix('sess_')}"
        self.state, self.fence, self.input = State(), Fence(), InputLedger()
        self.outbox, self.playback, self.history = Outbox(), Playback(), History()
        self.responses, self.dialog, self.edges = Responses(), Dialog(), Edges(graph)
        self.held = Held()
        self.received: dict[str, int] = {}
        self._acked: dict[str, int] = {}
        self.now = 0
        self.effects: list[Effect] = []

    # the way in

    def receive(self, command: Command, now: int) -> list[Effect]:
        """One transition. `now` is the session's elapsed time in ms and never goes back."""
        self.now = max(self.now, now)
        self.effects = []
        if self.state.closing:
            return []
        if isinstance(command, ClientCommand):
            self._client(command)
        else:
            _STAGE_HANDLERS[type(command)](self, command)
        if not self.state.closing:
            self._settle()
        return self.effects

    def _client(self, command: ClientCommand) -> None:
        if self.state.updating is None or isinstance(command, _CONTROL):
            self.obey(command)
        elif len(self.state.held_commands) < self.limits.max_held_commands:
            self.state.held_commands.append(cast(Client, command))
        else:
            self.refuse(Refusal("update_refused", None, why="too many events wait behind a session.update"), command.event_id)

    def obey(self, command: ClientCommand) -> None:
        try:
            _CLIENT_HANDLERS[type(command)](self, command)
        except Refusal as refusal:
            self.refuse(refusal, command.event_id)

    def refuse(self, refusal: Refusal, event_id: str | None) -> None:
        self.emit(events.Error(refusal.code, refusal.message, refusal.param, event_id))

    # what ledgers and modules use

    def make_id(self, kind: str, number: int) -> str:
        return f"{kind}_{self.session_id.removeprefix('sess_')}_{number}"

    def emit(self, event: events.Event) -> None:
        self.state.seq += 1
        self.effects.append(Emit(self.state.seq, event))

    def order(self, stage: str, body: OrderBody, *, append: bool) -> Order:
        order = self.outbox.issue(stage, self.fence, body, append=append)
        self.effects.append(order)
        return order

    def relay(self, source: str, kind: str, position: int, payload: Any, chunk: StageChunk | None = None) -> None:
        """Pass something on to all stages that read it; an empty kind reaches whoever reads anything of the source."""
        for reader in self.graph.readers(source, kind) if kind else self.graph.all_readers(source):
            previous = self.edges.sent(source, reader, position)
            self.effects.append(
                Relay(
                    reader,
                    source,
                    position,
                    previous,
                    self.graph.lane(source, kind, reader),
                    self.fence.epoch if chunk is None else chunk.epoch,
                    self.fence.turn,
                    "" if chunk is None else chunk.response_id,
                    payload,
                    chunk.last if chunk is not None else False,
                    self.input.generations.get(reader, 0),
                    self.fence.config_generation,
                )
            )

    def consumed(self, chunk: StageChunk) -> None:
        self.state.consumed[chunk.stage] = chunk.position

    def set_deadline(self, name: str, at: int) -> None:
        self.state.deadlines[name] = at

    def cancel_deadline(self, name: str) -> None:
        self.state.deadlines.pop(name, None)

    def close(self, code: int, reason: str) -> None:
        self.state.closing = True
        self.effects.append(Close(code, reason))

    # time

    @property
    def deadline(self) -> int | None:
        """Elapsed ms at which a Tick is due."""
        watch = speaking.watch_at(self)
        times = [
            *self.state.deadlines.values(),
            speaking.pace_at(self),
            watch[0] if watch else None,
            self.dialog.deadline(),
            self.state.updating.deadline if self.state.updating else None,
            self.playback.play_end_us // 1000 + 1 if self.state.draining else None,
        ]
        return min((t for t in times if t is not None), default=None)

    def ticked(self) -> None:
        if self.state.deadlines.get("session", self.now + 1) <= self.now:
            client.close_by_expiry(self)
            return
        hearing.transcripts_late(self)
        client.update_late(self)
        speaking.watch(self)
        if self.state.deadlines.get("idle", self.now + 1) <= self.now:
            hearing.idle(self)

    def _settle(self) -> None:
        """After every transition: let sound leave, acknowledge, and close a drained session at its quiet point."""
        speaking.pump(self)
        for stage, consumed in self.state.consumed.items():
            position = self.edges.acknowledgeable(stage, consumed)
            if position > self._acked.get(stage, 0):
                self._acked[stage] = position
                self.effects.append(Ack(stage, position))
        if self.state.draining and self.quiet:
            self.close(1012, "server_draining")

    @property
    def quiet(self) -> bool:
        """Nobody speaks and nothing is awaited."""
        return (
            self.responses.live is None
            and self.input.open_item is None
            and not self.dialog.waiting()
            and self.playback.lead_ms(self.now) == 0
        )


def _start(c: Conversation, _: Start) -> None:
    c.set_deadline("session", c.now + c.limits.max_session_ms)
    c.emit(events.SessionCreated(c.session_id, c.config))


def _refused(c: Conversation, refused: Refused) -> None:
    c.emit(events.Error(refused.code, refused.message, refused.param, refused.event_id))


def _drain(c: Conversation, _: Drain) -> None:
    c.state.draining = True


def _chunk(c: Conversation, chunk: StageChunk) -> None:
    """An output of a stage, in order: passed along its edges at once, then judged, then consumed. Audio waits for its time."""
    if chunk.position <= c.received.get(chunk.stage, c.state.consumed.get(chunk.stage, 0)):
        return
    c.received[chunk.stage] = chunk.position
    live = c.responses.live
    current = live is not None and c.fence.admits(chunk.epoch) and chunk.response_id == live.id
    output = chunk.output
    if isinstance(output, DecisionOut | TranscriptOut) or current:
        _pass_on(c, chunk)
    if chunk.stage == c.graph.audio_stage:
        c.held.push(chunk)
        return
    match output:
        case DecisionOut():
            hearing.decided(c, output)
        case TranscriptOut():
            hearing.heard(c, output)
    if live is not None and current and c.responses.live is live:
        live.progress_at = c.now
        match output:
            case TextOut():
                speaking.text(c, live, output)
            case ToolOut():
                speaking.tool(c, live, output)
        if chunk.last and chunk.finish is not None and chunk.finish.reason == "failed":
            speaking.fail(c, "stage_failed", chunk.stage)
        elif chunk.last and chunk.stage == c.graph.text_stage:
            speaking.text_ended(c, live, chunk)
    c.consumed(chunk)


def _pass_on(c: Conversation, chunk: StageChunk) -> None:
    live = c.responses.live
    if live is not None and live.modality == "text" and chunk.response_id == live.id:
        return
    kind = "" if chunk.output is None else _kind(chunk)
    c.relay(chunk.stage, kind, chunk.position, chunk.wire, chunk)
    feeds_audio = bool(kind) and c.graph.audio_stage in c.graph.readers(chunk.stage, kind)
    if live is not None and feeds_audio and live.owed_since is None:
        live.owed_since = c.now


def _kind(chunk: StageChunk) -> str:
    match chunk.output:
        case TextOut():
            return "text"
        case ToolOut():
            return "tool"
        case TranscriptOut():
            return "transcript"
        case DecisionOut():
            return "decision"
        case AudioOut():
            return "audio"
        case OpaqueOut(kind):
            return kind
    raise AssertionError("a chunk without output has no kind")


def _accepted(c: Conversation, mark: StageAccepted) -> None:
    c.edges.accepted(mark.stage, mark.edges)
    c.outbox.obeyed(mark.stage, mark.command_number)


def _failed(c: Conversation, failure: StageFailed) -> None:
    live = c.responses.live
    if failure.stage == c.graph.transcript_stage:
        for item_id in list(c.dialog.hearing):
            hearing.transcript_failed(c, item_id)
    elif live is not None and failure.response_id in ("", live.id) and c.fence.admits(failure.epoch or c.fence.epoch):
        speaking.fail(c, "stage_failed", failure.stage)


def _lost(c: Conversation, loss: StageLost) -> None:
    """Without a stage the conversation cannot go on: the open response ends as failed, then the session, by type."""
    speaking.fail(c, "stage_lost", loss.stage)
    message = ERRORS["stage_lost"].message.format(stage=loss.stage)
    c.emit(events.Error("stage_lost", message))
    c.close(1011, "stage_lost")


_STAGE_HANDLERS: dict[type, Any] = {
    Start: _start,
    Drain: _drain,
    Refused: _refused,
    Tick: lambda c, _: c.ticked(),
    StageChunk: _chunk,
    StageAccepted: _accepted,
    StageUpdated: client.stage_updated,
    StageFailed: _failed,
    StageLost: _lost,
}

_CLIENT_HANDLERS: dict[type, Any] = {
    InputAppend: hearing.append,
    InputCommit: lambda c, _: hearing.commit_by_client(c),
    InputClear: lambda c, _: hearing.clear(c),
    OutputClear: client.output_clear,
    ItemCreate: client.item_create,
    ItemRetrieve: client.item_retrieve,
    ItemDelete: client.item_delete,
    ItemTruncate: client.item_truncate,
    ResponseCreate: client.response_create,
    ResponseCancel: client.response_cancel,
    SessionUpdate: client.session_update,
}
