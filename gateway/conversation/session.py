"""The aggregate root of a conversation: commands in, effects out. It never waits, reads no clock and does no I/O.

`receive` is the only way in. One call is one transition; its effects are to be performed in order, `Relay`, `Grant` and `Mute` at once,
the rest after the commit of a checkpoint. A restored conversation that is told the same goes on alike: ids come from (session, counter),
deadlines are milliseconds of the session's own elapsed time.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from gateway.graph import Edges, Graph

from . import client, events, failover, hearing, speaking
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
    Resume,
    SessionUpdate,
    StageAccepted,
    StageChunk,
    StageFailed,
    StageGone,
    StageLost,
    StagePlaced,
    StageUpdated,
    Start,
    TextOut,
    Tick,
    ToolOut,
    TranscriptOut,
)
from .config import SessionConfig
from .dialog import Dialog
from .effects import Ack, Close, Effect, Emit, OrderBody, Relay
from .errors import Refusal
from .fence import Fence
from .history import History
from .input import InputLedger
from .items import Item
from .limits import Limits
from .orders import Outbox
from .playback import Held, Playback
from .response import Responses

SCHEMA = 1
_CONTROL = (ResponseCancel, OutputClear)
MAX_OVERTAKERS = 16
"""Numbered commands that may overtake others: the checkpoint holds each."""
_KINDS: dict[type, str] = {
    TextOut: "text", ToolOut: "tool", TranscriptOut: "transcript", DecisionOut: "decision", AudioOut: "audio", type(None): ""
}  # fmt: skip


class State(Struct):
    """The rest of what a checkpoint's hot part holds."""

    schema: int = SCHEMA
    seq: int = 0
    items: int = 0
    consumed: dict[str, int] = {}
    deadlines: dict[str, int] = {}
    updates: int = 1
    """Configuration generations used so far."""
    misled: list[str] = []
    """Stages that may have staged a refused configuration."""
    updating: Updating | None = None
    held_commands: list[Client] = []
    closing: bool = False
    draining: bool = False
    client_seq: int = 0
    """All client commands up to this number were obeyed."""
    overtook: list[int] = []
    """Numbers above it that were obeyed, too, before those that wait behind an update."""
    lost: list[str] = []
    """Stages that are being placed anew."""
    bases: dict[str, int] = {}
    """Output positions that a stage's earlier placements used up."""


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
        if self.state.closing and not isinstance(command, Resume):
            return []
        if isinstance(command, ClientCommand):
            self._client(command)
        else:
            _STAGE_HANDLERS[type(command)](self, command)
        if not self.state.closing:
            self._settle()
        return self.effects

    def _client(self, command: ClientCommand) -> None:
        held = self.state.held_commands
        waits = self.state.updating is not None or held or (self.state.lost and isinstance(command, SessionUpdate))
        overtakes = isinstance(command, _CONTROL) and self.speaking and len(self.state.overtook) < MAX_OVERTAKERS
        if not waits or overtakes:
            self.obey(command, overtakes=bool(waits))
            return
        if len(held) >= self.limits.max_held_commands or _held_bytes([*held, command]) > self.limits.max_pending_input_bytes:
            self.refuse(Refusal("update_refused", None, why="too much waits behind a session.update"), command.event_id)
        else:
            held.append(cast(Client, command))

    def obey(self, command: ClientCommand, *, overtakes: bool = False) -> None:
        """Once for each number. `overtakes`: commands of lower numbers are still to be obeyed."""
        number, state = command.client_seq, self.state
        if number is not None:
            if number <= state.client_seq or number in state.overtook:
                return  # sent again after a resume: it was obeyed before
            if overtakes:
                state.overtook = [*state.overtook, number]
            else:
                state.client_seq, state.overtook = number, [each for each in state.overtook if each > number]
        try:
            _CLIENT_HANDLERS[type(command)](self, command)
        except Refusal as refusal:
            self.refuse(refusal, command.event_id)

    def refuse(self, refusal: Refusal, event_id: str | None) -> None:
        self.emit(events.Error(refusal.code, refusal.message, refusal.param, event_id))

    # what ledgers and modules use

    def make_id(self, kind: str, number: int) -> str:
        return f"{kind}_{self.session_id.removeprefix('sess_')}_{number}"

    def new_item_id(self, kind: str) -> str:
        """kind: u for the user's, a for the assistant's, f for function calls, c for those that the client made."""
        while True:
            self.state.items += 1
            item_id = self.make_id(f"item_{kind}", self.state.items)
            if item_id not in self.history.items:
                return item_id

    def add_item(self, item: Item) -> str | None:
        """Append to the history; the oldest items make room, and the client is told. Answers the id before it."""
        while len(self.history.items) >= self.limits.max_items and (oldest := self.history.oldest()) is not None:
            self.delete_item(oldest)
        return self.history.insert(item)

    def delete_item(self, item_id: str) -> None:
        self.history.delete(item_id)
        self.dialog.hearing.pop(item_id, None)
        self.emit(events.ItemDeleted(item_id))

    def emit(self, event: events.Event) -> None:
        self.state.seq += 1
        self.effects.append(Emit(self.state.seq, event))

    def order(self, stage: str, body: OrderBody, *, append: bool) -> None:
        """Tell a stage. One that is lost is told nothing: its next placement opens with what holds then."""
        if stage not in self.state.lost:
            self.effects.append(self.outbox.issue(stage, self.fence, body, append=append))

    def relay(self, source: str, kind: str, position: int, payload: Any, chunk: StageChunk | None = None) -> None:
        """Pass something on to all stages that read it. All other readers of the source hear of its last output, too."""
        readers, last = self.graph.readers(source, kind), chunk is not None and chunk.last
        live = self.responses.live
        turn = live.turn if live is not None and chunk is not None and chunk.response_id == live.id else self.fence.turn
        for reader in self.graph.all_readers(source) if last else readers:
            if position <= self.edges.watermark(source, reader):
                continue  # sent again after a takeover, and this one has it
            if reader in self.state.lost and chunk is not None:
                continue  # its successor begins behind it; only what the client says is heard again
            previous = self.edges.sent(source, reader, position)
            self.effects.append(
                Relay(
                    reader,
                    source,
                    position,
                    previous,
                    self.graph.lane(source, kind, reader),
                    self.fence.epoch if chunk is None else chunk.epoch,
                    turn,
                    "" if chunk is None else chunk.response_id,
                    payload if reader in readers else None,
                    last,
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
            self.playback.ends_at() if self.state.draining and self.playback.lead_us(self.now) else None,
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
        """After every transition: let sound leave, go on with what may go on now, acknowledge, close a drained session when it is quiet."""
        speaking.pump(self)
        speaking.prompt_if_ready(self)
        speaking.answer_if_owed(self)
        hearing.await_user(self)
        for stage, consumed in self.state.consumed.items():
            acked = self._acked.get(stage, 0)
            if consumed > acked and (position := self.edges.acknowledgeable(stage, consumed)) > acked:
                self._acked[stage] = position
                self.effects.append(Ack(stage, position))
        if self.state.draining and self.quiet:
            self.close(1012, "server_draining")

    @property
    def speaking(self) -> bool:
        """A response is being made, or its sound still heard."""
        return self.responses.live is not None or self.playback.lead_us(self.now) > 0

    @property
    def quiet(self) -> bool:
        """Nobody speaks and nothing is awaited."""
        return not self.speaking and self.input.open_item is None and not self.dialog.waiting() and self.state.updating is None


def _held_bytes(commands: list[ClientCommand]) -> int:
    return sum(len(command.audio) for command in commands if isinstance(command, InputAppend))


def _start(c: Conversation, _: Start) -> None:
    c.set_deadline("session", c.now + c.limits.max_session_ms)
    c.emit(events.SessionCreated(c.session_id, c.config))


def _refused(c: Conversation, refused: Refused) -> None:
    c.emit(events.Error(refused.code, refused.message, refused.param, refused.event_id))


def _drain(c: Conversation, _: Drain) -> None:
    c.state.draining = True


def _chunk(c: Conversation, chunk: StageChunk) -> None:
    """An output of a stage, in order: passed along its edges at once, then judged, then consumed. Audio waits for its time."""
    if chunk.position <= c.received.get(chunk.stage, 0):
        return
    c.received[chunk.stage] = chunk.position
    live = c.responses.live
    current = live is not None and c.fence.admits(chunk.epoch) and chunk.response_id == live.id
    output = chunk.output
    consumed = chunk.position <= c.state.consumed.get(chunk.stage, 0)
    if not (isinstance(output, DecisionOut | TranscriptOut) or current) or not _pass_on(c, chunk, again=consumed):
        c.edges.withdraw(chunk.stage, chunk.position)
    if consumed:
        return  # before a takeover; some reader may not have had it
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
        if chunk.failed:
            speaking.fail(c, "stage_failed", chunk.stage)
        elif chunk.last and chunk.stage == c.graph.text_stage:
            speaking.text_ended(c, live, chunk)
    elif chunk.failed:
        _input_failed(c, chunk.stage)
    c.consumed(chunk)


def _pass_on(c: Conversation, chunk: StageChunk, *, again: bool) -> bool:
    """False when it goes no further: the words of a written reply are not spoken. `again`: nothing new is owed for it."""
    live = c.responses.live
    if live is not None and live.modality == "text" and chunk.response_id == live.id:
        return False
    kind = chunk.output.kind if isinstance(chunk.output, OpaqueOut) else _KINDS[type(chunk.output)]
    c.relay(chunk.stage, kind, chunk.position, chunk.wire, chunk)
    fed = c.graph.all_readers(chunk.stage) if chunk.last else c.graph.readers(chunk.stage, kind)
    if live is not None and not again and chunk.response_id == live.id and c.graph.audio_stage in fed:
        live.owed_since = c.now if live.owed_since is None else live.owed_since
        live.sound_fed = live.sound_fed or chunk.last
    return True


def _accepted(c: Conversation, mark: StageAccepted) -> None:
    c.edges.accepted(mark.stage, mark.edges)
    c.outbox.obeyed(mark.stage, mark.command_number)


def _failed(c: Conversation, failure: StageFailed) -> None:
    live = c.responses.live
    if failure.stage not in c.graph.response_stages:
        _input_failed(c, failure.stage)
    elif live is not None and failure.response_id in ("", live.id) and c.fence.admits(failure.epoch or c.fence.epoch):
        speaking.fail(c, "stage_failed", failure.stage)


def _input_failed(c: Conversation, stage: str) -> None:
    """A stage that hears failed at something: no words will come, or a turn may be missed."""
    if stage == c.graph.transcript_stage:
        for item_id in list(c.dialog.hearing):
            hearing.transcript_failed(c, item_id)
    elif stage not in c.graph.response_stages:
        c.refuse(Refusal("stage_failed", stage=stage), None)


_STAGE_HANDLERS: dict[type, Any] = {
    Start: _start,
    Drain: _drain,
    Refused: _refused,
    Tick: lambda c, _: c.ticked(),
    StageChunk: _chunk,
    StageAccepted: _accepted,
    StageUpdated: client.stage_updated,
    StageFailed: _failed,
    StageLost: failover.lost,
    StagePlaced: failover.placed,
    StageGone: failover.gone,
    Resume: failover.resumed,
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
