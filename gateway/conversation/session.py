"""The aggregate root of a conversation: commands in, effects out. It never waits, reads no clock and does no I/O.

`receive` is the only way in. One call is one transition; its effects are to be performed in order, `Relay`, `Grant` and `Mute` at once,
the rest after the commit of a checkpoint. A restored conversation that is told the same goes on alike: ids come from (session, counter),
deadlines are milliseconds of the session's own elapsed time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from gateway.graph import Edges, Graph

from . import camera, client, early_close, events, failover, hearing, moving, native, outputs, overlap, speaking
from .commands import (
    Client,
    ClientCommand,
    Command,
    Drain,
    Idle,
    InputAppend,
    InputClear,
    InputCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    Refused,
    ResponseCancel,
    ResponseCreate,
    Resume,
    SessionUpdate,
    StageAccepted,
    StageChunk,
    StageDraining,
    StageFailed,
    StageGone,
    StageLost,
    StagePlaced,
    StageUnit,
    StageUpdated,
    Start,
    Tick,
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
from .state import MAX_OVERTAKERS, State
from .unit_log import UnitLog

_CONTROL = (ResponseCancel, OutputClear)
_FROM_A_STAGE = (StageChunk, StageUnit, StageAccepted, StageUpdated, StageFailed, StageLost)


class Conversation:
    """One live session. `deadline` tells when it wants a Tick; `effects` of a call are complete when receive returns."""

    def __init__(self, session_id: str, config: SessionConfig, graph: Graph, limits: Limits | None = None) -> None:
        self.session_id, self.config, self.graph = session_id, config, graph
        self.limits = limits or Limits()
        self.conversation_id = f"conv_{session_id.removeprefix('sess_')}"
        self.state, self.fence, self.input = State(), Fence(), InputLedger()
        self.outbox, self.playback, self.history = Outbox(), Playback(), History()
        self.responses, self.dialog, self.edges = Responses(), Dialog(), Edges(graph)
        self.native, self.memory, self.unit_log = native.Native(), native.Memory(), UnitLog()
        self.held = Held()
        self.received: dict[str, int] = {}
        self.leaving: set[str] = set()
        """Stages whose replica drains: each is placed anew at its next quiet point."""
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
        if isinstance(command, _FROM_A_STAGE) and command.stage in self.state.lost:
            return []  # of a placement that is given up
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
        overtakes = isinstance(command, _CONTROL) and self.speaking and len(self.state.overtaken) < MAX_OVERTAKERS
        if not waits or overtakes or (isinstance(command, Refused) and command.client_seq is None):
            self.obey(command, overtakes=bool(waits))
        elif len(held) >= self.limits.max_held_commands or held_bytes([*held, command]) > self.limits.max_pending_input_bytes:
            self.obey(_refused_for_want_of_room(command), overtakes=True)
        else:
            held.append(cast(Client, command))

    def obey(self, command: ClientCommand, *, overtakes: bool = False) -> None:
        """Once for each number: one that is refused was decided, too. `overtakes`: commands of lower numbers are still to be decided."""
        if (number := command.client_seq) is not None:
            if self.state.has_decided(number):
                return
            self.state.decide(number, overtakes=overtakes)
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
        self.unit_log.item_gone(item_id, self.history.delete(item_id))
        self.dialog.hearing.pop(item_id, None)
        self.emit(events.ItemDeleted(item_id))

    def emit(self, event: events.Event) -> None:
        self.state.seq += 1
        self.effects.append(Emit(self.state.seq, event))

    def order(self, stage: str, body: OrderBody, *, append: bool) -> None:
        """Tell a stage. One that is lost is told nothing: its next placement opens with what holds then."""
        if stage not in self.state.lost:
            self.effects.append(self.outbox.issue(stage, self.fence, body, append=append))

    def relay(self, source: str, kind: str, position: int, payload: Any, chunk: StageChunk | None = None) -> tuple[str, ...]:
        """Pass something on to all stages that read it, and answer who they are.

        All other readers of the source hear of its last output, too; but a native model ends its text and its thought each by itself.
        """
        readers, last = self.graph.readers(source, kind), chunk is not None and chunk.last
        live = self.responses.of(chunk) if chunk is not None else None
        turn = live.turn if live is not None else self.fence.turn
        told = self.graph.all_readers(source) if last and not (kind and source == self.graph.model_stage) else readers
        for reader in told:
            if position <= self.edges.watermark(source, reader):
                continue  # sent again after a takeover, and this one has it
            if reader in self.state.lost and (chunk is not None or source == camera.SOURCE):
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
        return told

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
            native.continue_at(self),
            overlap.deadline(self),
            watch[0] if watch else None,
            hearing.late_at(self),
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
        overlap.due(self)
        early_close.settle(self)
        native.continue_in_silence(self)
        hearing.await_user(self)
        for stage, consumed in self.state.consumed.items():
            acked = self._acked.get(stage, 0)
            if consumed > acked and (position := self.edges.acknowledgeable(stage, consumed)) > acked:
                self._acked[stage] = position
                self.effects.append(Ack(stage, position))
        if self.leaving:
            moving.settle(self)
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


def held_bytes(commands: Sequence[ClientCommand]) -> int:
    """Audio among commands that wait."""
    return sum(len(command.audio) for command in commands if isinstance(command, InputAppend))


def _refused_for_want_of_room(command: ClientCommand) -> Refused:
    if isinstance(command, Refused):
        return command
    refusal = Refusal("update_refused", None, why="too much waits behind a session.update")
    return Refused(
        code=refusal.code, message=refusal.message, param=refusal.param, event_id=command.event_id, client_seq=command.client_seq
    )


def _start(c: Conversation, _: Start) -> None:
    c.set_deadline("session", c.now + c.limits.max_session_ms)
    native.present_epoch(c)
    c.emit(events.SessionCreated(c.session_id, c.config.told))


def _refused(c: Conversation, refused: Refused) -> None:
    c.emit(events.Error(refused.code, refused.message, refused.param, refused.event_id))


def _drain(c: Conversation, _: Drain) -> None:
    c.state.draining = True


def _idle(c: Conversation, _: Idle) -> None:
    if not c.speaking:
        client.close_unused(c)


_STAGE_HANDLERS: dict[type, Any] = {
    Start: _start,
    Drain: _drain,
    Idle: _idle,
    Tick: lambda c, _: c.ticked(),
    StageChunk: outputs.chunk,
    StageUnit: native.unit_done,
    StageAccepted: outputs.accepted,
    StageUpdated: client.stage_updated,
    StageFailed: outputs.failed,
    StageLost: failover.lost,
    StageDraining: moving.draining,
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
    Refused: _refused,
}
