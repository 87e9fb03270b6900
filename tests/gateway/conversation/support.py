"""A conversation with its surroundings: a clock that is moved by hand, a client, and stages that answer what the script says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.conversation import commands, events
from gateway.conversation.checkpoint import Checkpointer, restore
from gateway.conversation.commands import (
    AudioOut,
    Command,
    DecisionOut,
    Drain,
    FinishOut,
    InputAppend,
    MarkOut,
    OpaqueOut,
    Output,
    ResponseCreate,
    SessionUpdate,
    StageChunk,
    Start,
    TextOut,
    Tick,
    TranscriptOut,
)
from gateway.conversation.config import ResponseOptions, ServerVad, SessionConfig, SessionPatch, Transcription
from gateway.conversation.effects import Effect, Emit, Grant, Order, PromptOrder, Relay, UpdateOrder
from gateway.conversation.items import Item, Part, Response
from gateway.conversation.limits import Limits
from gateway.conversation.session import Conversation
from gateway.graph import Graph
from gateway.profile_file import load_profile_file

from .invariants import Invariants

GRAPH = Graph(load_profile_file(Path(__file__).parents[3] / "profiles" / "embedded.yaml"))
CONFIG = SessionConfig("parley-embedded", transcription=Transcription("whisper-1"))
RATE = 24_000
PIECE_MS = 100
SESSION = "sess_abc"

E = TypeVar("E")


def pcm(ms: int, fill: int = 0) -> bytes:
    """Client audio in the default format."""
    return bytes([fill]) * (ms * RATE // 1000 * 2)


def user_text(text: str, item_id: str = "") -> Item:
    return Item(item_id, role="user", content=(Part("input_text", text=text),))


class Voice:
    """The audio stage: sends pieces as far as its credit goes, in order."""

    def __init__(self) -> None:
        self.waiting: deque[StageChunk] = deque()
        self.granted = 0
        self.sent_ms = 0.0

    def next(self) -> StageChunk | None:
        if not self.waiting:
            return None
        output = self.waiting[0].output
        duration = output.samples * 1000 / output.rate if isinstance(output, AudioOut) else 0.0
        if duration and self.sent_ms + duration > self.granted:
            return None
        self.sent_ms += duration
        return self.waiting.popleft()


class World:
    """Everything that a conversation was told and did. `do` answers the events of one command, in order."""

    graph = GRAPH

    def __init__(self, config: SessionConfig = CONFIG, limits: Limits | None = None, *, started: bool = True) -> None:
        self.limits = limits or Limits()
        self.c = Conversation(SESSION, config, self.graph, self.limits)
        self.now = 0
        self.effects: list[Effect] = []
        self.positions: dict[str, int] = {}
        self.voice = Voice()
        self.checks = Invariants(self.limits)
        self.checkpointer = Checkpointer(self.c)
        self.stored: dict[str, bytes] = {}
        self.hot = b""
        if started:
            self.do(Start())

    # the clock and the way in

    def do(self, command: Command) -> list[Any]:
        before = len(self.effects)
        self._receive(command)
        while (chunk := self.voice.next()) is not None:
            self._receive(self._positioned(chunk))
        return [effect.event for effect in self.effects[before:] if isinstance(effect, Emit)]

    def _receive(self, command: Command) -> None:
        for effect in self.c.receive(command, self.now):
            self.effects.append(effect)
            self.checks.see(effect, self.now, consumed=self.c.state.consumed, rate=self.c.config.output_format.rate)
            if isinstance(effect, Grant):
                assert effect.granted_ms <= self.c.playback.passed_us // 1000 + self.limits.max_output_lead_ms + self.limits.credit_extra_ms
                self.voice.granted = effect.granted_ms
        if not self.c.playback.lead_us(self.now):
            self.checks.silenced(self.now)
        self.commit()

    def wait(self, ms: int) -> list[Any]:
        """Let time pass, with a tick whenever the core asked for one."""
        told: list[Any] = []
        until = self.now + ms
        while (deadline := self.c.deadline) is not None and deadline <= until and not self.c.state.closing:
            assert deadline > self.now or self.now == 0, "a deadline that has come does not stay"
            self.now = max(self.now, deadline)
            told += self.do(Tick())
        self.now = until
        return told

    # durability

    def commit(self) -> None:
        """One checkpoint, as the actor takes it: hot bounded, fields merged."""
        checkpoint = self.checkpointer.take()
        assert len(checkpoint.hot) < 1024, f"hot has {len(checkpoint.hot)} bytes"
        self.hot = checkpoint.hot
        for name, data in checkpoint.fields.items():
            if data is None:
                self.stored.pop(name, None)
            else:
                self.stored[name] = data

    def restored(self) -> Conversation:
        return restore(SESSION, self.graph, self.limits, self.hot, dict(self.stored))

    # the client

    def append(self, ms: int) -> list[Any]:
        return self.do(InputAppend(audio=pcm(ms)))

    def say(self, ms: int) -> list[Any]:
        """Client audio as fast as it is spoken."""
        told: list[Any] = []
        for _ in range(ms // 20):
            self.now += 20
            told += self.append(20)
        return told

    def create(self, text: str, item_id: str = "", **fields: Any) -> Item:
        self.do(commands.ItemCreate(item=user_text(text, item_id), **fields))
        return self.of(events.ItemAdded)[-1].item

    def respond(self, **options: Any) -> list[Any]:
        return self.do(ResponseCreate(options=ResponseOptions(**options)))

    def update(self, *, answer: Iterable[str] | None = None, **patch: Any) -> list[Any]:
        """session.update; `answer` names the stages that stage it (None: all that were asked)."""
        told = self.do(SessionUpdate(patch=SessionPatch(**patch)))
        if (updating := self.c.state.updating) is not None:
            for stage in [stage for stage in updating.waiting if answer is None or stage in answer]:
                told += self.do(commands.StageUpdated(stage, updating.generation))
        return told

    def drain(self) -> list[Any]:
        return self.do(Drain())

    # the stages

    def _positioned(self, chunk: StageChunk) -> StageChunk:
        self.positions[chunk.stage] = self.positions.get(chunk.stage, 0) + 1
        return msgspec.structs.replace(chunk, position=self.positions[chunk.stage])

    def chunk(self, stage: str, output: Output | None = None, **fields: Any) -> list[Any]:
        return self.do(self._positioned(self._labelled(stage, output, **fields)))

    def _labelled(self, stage: str, output: Output | None, **fields: Any) -> StageChunk:
        live = self.c.responses.live
        fields.setdefault("epoch", self.c.fence.epoch)
        fields.setdefault("response_id", live.id if live is not None else "")
        return StageChunk(stage, 0, output=output, wire=output, **fields)

    def decide(self, kind: str, t_ms: int, decided_at_ms: int | None = None) -> list[Any]:
        heard_ms = self.c.input.end_ms(self.c.config.input_format)
        return self.chunk("turn", DecisionOut(kind, t_ms, heard_ms if decided_at_ms is None else decided_at_ms), response_id="")

    def transcribe(self, text: str, item_id: str | None = None, *, final: bool = True, **fields: Any) -> list[Any]:
        if item_id is None:
            item_id = next(iter(self.c.dialog.hearing)) if final else ""
        return self.chunk("asr", TranscriptOut(item_id, text, final, **fields), response_id="")

    def partial(self, text: str) -> list[Any]:
        return self.transcribe(text, final=False, audio_start_ms=self.c.input.open_start_ms)

    def write(self, *texts: str, last: bool = True, finish: FinishOut | None = None) -> list[Any]:
        """The language model writes."""
        told = [event for text in texts for event in self.chunk("llm", TextOut(text))]
        return told + (self.chunk("llm", last=True, finish=finish or FinishOut("stop", 12, 7)) if last else [])

    def voiced(self, ms: int, marks: tuple[MarkOut, ...] = (), *, last: bool = False, finish: FinishOut | None = None) -> list[Any]:
        """The vocoder has this much more sound: it comes as its credit allows."""
        for start in range(0, ms, PIECE_MS):
            count = min(PIECE_MS, ms - start)
            ends = marks if start + count == ms else ()
            audio = AudioOut(pcm(count, 1), count * RATE // 1000, RATE, ends)
            self.voice.waiting.append(self._labelled("vocoder", audio))
        if last:
            self.voice.waiting.append(self._labelled("vocoder", None, last=True, finish=finish))
        return self._flow()

    def _flow(self) -> list[Any]:
        chunk = self.voice.next()
        return [] if chunk is None else self.do(self._positioned(chunk))

    def latents(self, *, last: bool = False) -> list[Any]:
        return self.chunk("talker", OpaqueOut("latents")) + (self.chunk("talker", last=True) if last else [])

    # whole stretches

    def utter(self, ms: int = 600) -> str:
        """The user speaks, and the turn ends: its item, whose words are awaited."""
        start = self.c.input.end_ms(self.c.config.input_format)
        self.say(200)
        self.decide("speech_started", start)
        self.say(ms)
        self.decide("speech_stopped", self.c.input.end_ms(self.c.config.input_format) - 100)
        return self.of(events.InputCommitted)[-1].item_id

    def ask(self, text: str = "What is it?") -> str:
        """A whole spoken turn: a response is live after it."""
        item_id = self.utter()
        self.transcribe(text, item_id)
        return item_id

    def answer(self, *sentences: tuple[str, int]) -> None:
        """The reply, whole: sentences with their durations; its sound follows as it may."""
        self.write(*(text for text, _ in sentences))
        self.latents(last=True)
        chars = audio_ms = 0
        for text, ms in sentences:
            chars, audio_ms = chars + len(text), audio_ms + ms
            self.voiced(ms, (MarkOut(chars, audio_ms, True),))
        if self.c.responses.live is not None:
            self.voiced(0, last=True)

    # what came of it

    def of(self, kind: type[E]) -> list[E]:
        return [effect.event for effect in self.effects if isinstance(effect, Emit) and isinstance(effect.event, kind)]

    def orders(self, kind: type[E], stage: str | None = None) -> list[E]:
        return [e.body for e in self.effects if isinstance(e, Order) and isinstance(e.body, kind) and stage in (None, e.stage)]

    def told_stages(self) -> list[tuple[str, UpdateOrder]]:
        """Every update that a stage was sent."""
        return [(e.stage, e.body) for e in self.effects if isinstance(e, Order) and isinstance(e.body, UpdateOrder)]

    def relays(self, stage: str) -> list[Relay]:
        return [effect for effect in self.effects if isinstance(effect, Relay) and effect.stage == stage]

    def performed(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def done(self) -> Response:
        """The response that ended last."""
        return self.of(events.ResponseDone)[-1].response

    @property
    def error(self) -> events.Error:
        return self.of(events.Error)[-1]

    @property
    def sent_ms(self) -> int:
        return sum(len(event.data) for event in self.of(events.AudioDelta)) * 1000 // 2 // RATE

    def history(self) -> list[str]:
        """The text of every item, in order."""
        return [self.c.history.items[item_id].text for item_id in self.c.history.order]

    def prompted(self) -> list[tuple[str, str]]:
        """The last prompt as (role, content)."""
        return [(message.role, message.content) for message in self.orders(PromptOrder)[-1].messages]


def names(told: Iterable[object]) -> list[str]:
    return [type(event).__name__ for event in told]


def state_of(c: Conversation) -> bytes:
    """Everything that a checkpoint holds, but for the counter of events."""
    fresh = Checkpointer(c)
    changed = set(c.history.changed)
    fresh.forget()
    seq, c.state.seq = c.state.seq, 0
    checkpoint = fresh.take()
    c.state.seq = seq
    c.history.changed.update(changed)
    return msgspec.msgpack.encode((checkpoint.hot, sorted(checkpoint.fields.items())))


VAD_OFF = msgspec.structs.replace(CONFIG, turn_detection=None)
TEXT = msgspec.structs.replace(CONFIG, output_modalities=("text",))
DEFERRING = msgspec.structs.replace(CONFIG, turn_detection=ServerVad(interrupt_response=False))
