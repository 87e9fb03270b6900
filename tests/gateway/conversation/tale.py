"""A conversation whose gateway may die at any moment, with stages that count what they accept, and a client that sends again."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from gateway.conversation import commands, events
from gateway.conversation.commands import (
    Command,
    InputAppend,
    Resume,
    StageAccepted,
    StageAttached,
    StageChunk,
    StageLost,
    StagePlaced,
    Tick,
)
from gateway.conversation.config import SessionConfig
from gateway.conversation.effects import CancelOrder, Effect, Emit, Grant, InputAudio, Mute, Order, Relay, Replace, UpdateOrder
from gateway.conversation.failover import input_position
from gateway.conversation.limits import Limits
from gateway.rehearsal import REHEARD_BYTES, Rehearsal

from .support import CONFIG, GRAPH, Voice, World, user_text

STAGES = GRAPH.stages
HEARS = GRAPH.readers("client", "audio")
SAMPLES_PER_MS = 24


def sound(first: int, count: int) -> bytes:
    """The client's samples first to first + count of the session: each is known by its value."""
    return ((np.arange(first, first + count, dtype=np.int64) * 7919) & 0xFFFF).astype("<u2").tobytes()


class Stage:
    """The receiving end of one placement: accepts in order, drops what it has, obeys each number once."""

    def __init__(self, name: str, base: int = 0, resume_after: dict[str, int] | None = None) -> None:
        self.name, self.base = name, base
        self.marks = dict(resume_after or {})
        self.heard_from = self.marks.get("client", 0)
        self.audio = bytearray()
        self.number = self.epoch = 0
        self.orders: list[Order] = []
        self.relays: list[Relay] = []
        self.holes = False
        """Its client sends nothing again: what was on its way is missing."""
        self.coming: deque[Relay | Order] = deque()
        """Sent and not arrived: lost with the sender."""
        self.sent: list[StageChunk] = []
        """Outputs of this placement, as far as they are kept."""

    def arrive(self, count: int | None = None) -> None:
        for _ in range(len(self.coming) if count is None else min(count, len(self.coming))):
            message = self.coming.popleft()
            if isinstance(message, Relay):
                self._relay(message)
            else:
                self._order(message)

    def _relay(self, relay: Relay) -> None:
        mark = self.marks.get(relay.edge, 0)
        if relay.position <= mark:
            return
        assert relay.previous <= mark, f"{self.name} has {relay.edge} up to {mark}, and is sent {relay.position} after {relay.previous}"
        if isinstance(relay.payload, InputAudio):
            new = relay.position - mark
            assert relay.payload.samples == new or (self.holes and relay.payload.samples < new), "a piece is new as a whole or not at all"
            self.audio += relay.payload.data
        self.marks[relay.edge] = relay.position
        if relay.lane == "response":
            self.epoch = max(self.epoch, relay.epoch)
        self.relays.append(relay)

    def _order(self, order: Order) -> None:
        if order.number <= self.number:
            return
        if isinstance(order.body, CancelOrder):
            self.epoch = max(self.epoch, order.body.next_epoch)
        elif not isinstance(order.body, UpdateOrder):
            assert order.previous <= self.marks.get("core", 0)
            self.marks["core"] = order.number
        self.number = order.number
        self.orders.append(order)

    def attached(self) -> StageAttached:
        return StageAttached(self.name, self.epoch, dict(self.marks), self.number)

    def check_heard(self) -> None:
        """Every sample once, in its place, since this placement was to hear."""
        assert bytes(self.audio) == sound(self.heard_from, len(self.audio) // 2)


class Tale(World):
    """`late` holds commits back: what needs one is not performed until `commit_now`, and a death forgets it."""

    def __init__(self, config: SessionConfig = CONFIG, limits: Limits | None = None) -> None:
        self.stages = {name: Stage(name) for name in self.graph.stages}
        self.wanted: dict[str, Replace] = {}
        """Stages that are to be placed anew."""
        self.rehearsal = Rehearsal(REHEARD_BYTES)
        self.late = False
        self._unperformed: list[tuple[Effect, int]] = []
        self.said: list[InputAppend | commands.ClientCommand] = []
        """By the client, in order: audio by its place in the session, commands by their number."""
        self.samples = self.commands = self.items = 0
        super().__init__(config, limits)

    # the gateway

    def _receive(self, command: Command) -> None:
        if isinstance(command, StageChunk) and command.stage in self.stages and command not in self.stages[command.stage].sent:
            self.stages[command.stage].sent.append(command)
        for effect in self.c.receive(command, self.now):
            match effect:
                case Relay() | Grant() | Mute():
                    self._perform(effect, self.now)
                case _:
                    self._unperformed.append((effect, self.now))
        if not self.late:
            self.commit_now()

    def commit_now(self) -> None:
        self.commit()
        due, self._unperformed = self._unperformed, []
        for effect, at in due:
            self._perform(effect, at)
        if not self.c.playback.lead_us(self.now):
            self.checks.silenced(self.now)

    def _perform(self, effect: Effect, at: int) -> None:
        if isinstance(effect, Grant) and effect.stage not in self.stages:
            return
        self.effects.append(effect)
        if isinstance(effect, Relay | Grant | Mute | Emit):
            self.checks.see(effect, at, consumed=self.c.state.consumed, rate=self.c.config.output_format.rate)
        match effect:
            case Relay():
                if effect.edge == "client":
                    self.rehearsal.keep(effect)
                self._send(effect)
            case Order():
                self._send(effect)
            case Grant(_, granted_ms):
                self.voice.granted = granted_ms
            case Replace():
                self.stages.pop(effect.stage, None)
                self.wanted[effect.stage] = effect

    def _send(self, message: Relay | Order) -> None:
        if (stage := self.stages.get(message.stage)) is not None:
            stage.coming.append(message)

    def arrive(self, stage: str | None = None, count: int | None = None) -> None:
        """What is on its way gets there, and the stages say what they have."""
        for name in [stage] if stage else list(self.stages):
            if name in self.stages:
                self.stages[name].arrive(count)
                self.do(StageAccepted(name, dict(self.stages[name].marks), self.stages[name].number))

    # losses

    def lose(self, stage: str) -> None:
        self._forget_stage(stage)
        self.do(StageLost(stage, "gone"))

    def _forget_stage(self, stage: str) -> None:
        self.stages.pop(stage, None)
        if stage == self.graph.audio_stage:
            self.voice = Voice()

    def place(self, stage: str) -> None:
        """Another replica takes the stage over, and hears again what it is to hear."""
        wanted = self.wanted.pop(stage)
        after = dict(wanted.resume_after)
        if "client" in after:
            after["client"] = self.rehearsal.begins(after["client"], self.c.input.position)
        made = self.stages[stage] = Stage(stage, self.c.state.bases[stage], after)
        self.positions[stage] = made.base
        position = after.get("client", 0)
        for relay in self.rehearsal.after(position) if "client" in after else ():
            made.coming.append(msgspec.structs.replace(relay, stage=stage, previous=position))
            position = relay.position
        if stage == self.graph.audio_stage:
            self.checks.granted = 0
        self.do(StagePlaced(stage))

    def die(self, lost: tuple[str, ...] = (), *, resends: bool = True) -> None:
        """The gateway is killed; another takes the session over from the last commit, and the client comes back."""
        self._unperformed.clear()
        for name in lost:
            self._forget_stage(name)
        for stage in self.stages.values():
            stage.coming.clear()
            stage.holes = not resends
        self.wanted.clear()
        self.c = self.restored()
        self.checkpointer = type(self.checkpointer)(self.c)
        self.rehearsal = Rehearsal(REHEARD_BYTES)
        gone = tuple(name for name in self.graph.stages if name not in self.stages and name not in self.c.state.lost)
        for name in self.c.state.lost:
            self._forget_stage(name)
        resume = Resume(tuple(stage.attached() for stage in self.stages.values()), gone, resends, self.checks.seq)
        assert self.checks.seq == self.c.state.seq, "the client was told what was committed, and nothing else"
        self.checks.granted = 0
        samples, number = input_position(self.c, resume), self.c.state.client_seq
        consumed = {name: self.c.edges.acknowledged(name) for name in self.stages}
        self.do(resume)
        if (deadline := self.c.deadline) is not None and deadline <= self.now:
            self.do(Tick())
        for name, stage in list(self.stages.items()):
            for chunk in [chunk for chunk in stage.sent if chunk.position > consumed[name]]:
                self.do(chunk)
        if resends:
            self._say_again(samples, number)

    # the client

    def speak(self, ms: int) -> None:
        self._hear(self.samples, ms * SAMPLES_PER_MS)
        self.samples += ms * SAMPLES_PER_MS

    def _hear(self, first: int, count: int) -> None:
        append = InputAppend(audio=sound(first, count), event_id=f"at {first}")
        self.said.append(append)
        self.do(append)

    def say_command(self, command: commands.ClientCommand) -> None:
        """Numbered: it is said again until the gateway has obeyed it."""
        self.commands += 1
        numbered = msgspec.structs.replace(command, client_seq=self.commands)
        self.said.append(numbered)
        self.do(numbered)

    def tell(self, text: str) -> None:
        """An item of the client's own."""
        self.items += 1
        self.say_command(commands.ItemCreate(item=user_text(text, f"mine{self.items}")))

    def _say_again(self, samples: int, number: int) -> None:
        """In the old order, in other pieces: audio from the announced sample on, commands above the announced number."""
        said, self.said = self.said, []
        at = 0
        for each in said:
            if not isinstance(each, InputAppend):
                if (each.client_seq or 0) > number:
                    self.said.append(each)
                    self.do(each)
                continue
            count = len(each.audio) // 2
            first = max(at, samples)
            for start in range(first, at + count, 10 * SAMPLES_PER_MS + 1):
                self._hear(start, min(10 * SAMPLES_PER_MS + 1, at + count - start))
            if first > at:
                self.said.insert(0, InputAppend(audio=bytes(2 * min(count, first - at))))
            at += count

    # what came of it

    def settle(self) -> None:
        """Everything that is on its way arrives, and every lost stage is there again."""
        self.late = False
        self.commit_now()
        for _ in range(3):
            for stage in list(self.wanted):
                self.place(stage)
            self.arrive()

    def check(self) -> None:
        """Every sample and every command once, at whoever is to have it."""
        self.settle()
        for name in self.graph.readers("client", "audio"):
            stage = self.stages[name]
            stage.check_heard()
            assert stage.heard_from + len(stage.audio) // 2 == self.samples == stage.marks.get("client", 0) or not self.samples
        made = [e.item.id for e in self.of(events.ItemAdded) if e.item.id.startswith("mine")]
        assert made == [f"mine{n}" for n in range(1, self.items + 1)], "each command was obeyed once, in order"


def asked(config: SessionConfig = CONFIG, limits: Limits | None = None) -> Tale:
    """The user spoke, and a reply is being made."""
    tale = Tale(config, limits)
    tale.speak(300)
    tale.decide("speech_started", 0)
    tale.speak(300)
    tale.decide("speech_stopped", 500)
    tale.transcribe("What is it?")
    assert tale.c.responses.live is not None
    return tale


__all__ = ["HEARS", "STAGES", "Stage", "Tale", "asked", "sound"]
