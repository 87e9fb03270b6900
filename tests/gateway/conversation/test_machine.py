"""Arbitrary interleavings of client, stages and time: the invariants hold, and a restored twin goes on alike."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.conversation import commands
from gateway.conversation.commands import (
    AudioOut,
    ClientCommand,
    Command,
    DecisionOut,
    FinishOut,
    InputAppend,
    MarkOut,
    OpaqueOut,
    Output,
    StageAccepted,
    StageChunk,
    StageFailed,
    StageUpdated,
    TextOut,
    Tick,
    ToolOut,
    TranscriptOut,
)
from gateway.conversation.config import ResponseOptions, SemanticVad, ServerVad, SessionConfig, SessionPatch, Tool
from gateway.conversation.effects import Ack, Effect, Grant, Relay
from gateway.conversation.items import Item
from gateway.conversation.limits import Limits
from gateway.conversation.session import Conversation

from .support import CONFIG, RATE, World, names, state_of, user_text

LIMITS = Limits(
    max_pending_input_bytes=60_000,
    max_items=6,
    max_item_chars=30,
    max_prompt_chars=60,
    max_output_lead_ms=400,
    credit_extra_ms=200,
    transcript_timeout_ms=900,
    update_timeout_ms=300,
    first_output_timeout_ms=2000,
    stall_timeout_ms=500,
    response_timeout_ms=4000,
    max_session_ms=600_000,
    max_held_commands=3,
)
CONFIGS = [
    CONFIG,
    msgspec.structs.replace(CONFIG, turn_detection=None),
    msgspec.structs.replace(CONFIG, output_modalities=("text",), instructions="Be brief."),
    msgspec.structs.replace(CONFIG, turn_detection=ServerVad(interrupt_response=False, idle_timeout_ms=700)),
    msgspec.structs.replace(CONFIG, turn_detection=SemanticVad(create_response=False), transcription=None),
]
PATCHES = [
    SessionPatch(instructions="New."),
    SessionPatch(turn_detection=None),
    SessionPatch(turn_detection=SemanticVad()),
    SessionPatch(turn_detection=ServerVad(idle_timeout_ms=500)),
    SessionPatch(turn_detection=ServerVad(interrupt_response=False)),
    SessionPatch(output_modalities=("text",)),
    SessionPatch(output_modalities=("audio",)),
    SessionPatch(speed=1.5, turn_detection=ServerVad(threshold=0.9)),
    SessionPatch(speed=1.0),
    SessionPatch(voice="amy"),
    SessionPatch(model="other"),
]
OPTIONS = [
    ResponseOptions(),
    ResponseOptions(output_modalities=("text",)),
    ResponseOptions(instructions="Say it.", metadata={"k": "v"}, max_output_tokens=3),
    ResponseOptions(out_of_band=True, input=(user_text("Sort this."),)),
    ResponseOptions(out_of_band=True),
    ResponseOptions(input=()),
    ResponseOptions(tools=(Tool("f"),), tool_choice="required"),
]
WORDS = ["", " ", "Yes. ", "And then ", "so", "é 🦜 "]
FINISHES = [None, FinishOut(), FinishOut("length", 3, 4), FinishOut("failed")]
UNKNOWN = "item_nobody"


class Twins(World):
    """A world with a twin, restored from the last commit, that is told the same and must do the same."""

    twin: Conversation | None = None

    def __init__(self, config: SessionConfig, limits: Limits | None = None) -> None:
        self.sent: dict[str, list[StageChunk]] = {}
        super().__init__(config, limits or LIMITS)

    def fork(self) -> None:
        self.twin = self.restored()
        assert state_of(self.twin) == state_of(self.c)
        for stage, chunks in self.sent.items():
            consumed = self.twin.state.consumed.get(stage, 0)
            for chunk in chunks:
                # what was consumed is at most passed on again, what is held comes again and is held again
                expected = (Ack, Grant) if chunk.position > consumed else (Ack, Grant, Relay)
                assert all(isinstance(effect, expected) for effect in self.twin.receive(chunk, self.now))

    def _receive(self, command: Command) -> None:
        if isinstance(command, StageChunk):
            self.sent.setdefault(command.stage, []).append(command)
        before = len(self.effects)
        super()._receive(command)
        if self.twin is not None:
            mine = _alike(self.effects[before:])
            assert _alike(self.twin.receive(command, self.now)) == mine
            assert self.twin.deadline == self.c.deadline


def _alike(effects: list[Effect]) -> list[Effect]:
    """What has to be the same: not receipts and flow control, which are grand totals, nor what an edge had in flight before a restart."""
    told = [effect for effect in effects if not isinstance(effect, Ack | Grant)]
    return [msgspec.structs.replace(effect, previous=0) if isinstance(effect, Relay) else effect for effect in told]


class Interleavings(RuleBasedStateMachine):
    @initialize(config=st.sampled_from(CONFIGS))
    def begin(self, config: SessionConfig) -> None:
        self.world = Twins(config)
        self.labels: list[tuple[int, str]] = [(0, ""), (1, "resp_other")]

    # the client

    def tell(self, command: ClientCommand) -> None:
        """A refused command changes nothing but the count of events."""
        world = self.world
        world.do(Tick())
        before = state_of(world.c)
        told = world.do(msgspec.structs.replace(command, event_id="evt"))
        if names(told) == ["Error"]:
            assert world.error.client_event_id == "evt"
            assert state_of(world.c) == before

    @rule(size=st.sampled_from([0, 1, 3, 960, 4801, 4801, 40_000]))
    def append(self, size: int) -> None:
        self.tell(InputAppend(audio=bytes(size)))

    @rule(command=st.sampled_from([commands.InputCommit(), commands.InputCommit(), commands.InputClear(), commands.OutputClear()]))
    def buffers(self, command: ClientCommand) -> None:
        self.tell(command)

    @rule(text=st.sampled_from(WORDS), data=st.data())
    def item_create(self, text: str, data: st.DataObject) -> None:
        item = user_text(text, data.draw(st.sampled_from(["", "", *self.item_ids()])))
        self.tell(commands.ItemCreate(item=item, previous_item_id=data.draw(st.sampled_from([None, None, "root", *self.item_ids()]))))

    @rule(data=st.data(), kind=st.sampled_from([commands.ItemDelete, commands.ItemRetrieve]))
    def item_delete_or_retrieve(self, data: st.DataObject, kind: type[commands.ItemDelete] | type[commands.ItemRetrieve]) -> None:
        self.tell(kind(item_id=data.draw(st.sampled_from(self.item_ids()))))

    @precondition(lambda self: self.world.c.playback.sounds or self.world.c.history.sounds)
    @rule(data=st.data(), index=st.sampled_from([0, 0, 0, 1]), at=st.sampled_from([0, 1, 99, 100, 200, 900, 9000]))
    def item_truncate(self, data: st.DataObject, index: int, at: int) -> None:
        item_id = data.draw(st.sampled_from([*self.world.c.history.sounds, *(s.item_id for s in self.world.c.playback.sounds), UNKNOWN]))
        before = self.world.c.history.cuts.get(item_id)
        self.tell(commands.ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=at))
        after = self.world.c.history.cuts.get(item_id)
        assert before is None or after is None or after <= before, "a cut never moves later"

    @rule(options=st.sampled_from(OPTIONS))
    def response_create(self, options: ResponseOptions) -> None:
        self.tell(commands.ResponseCreate(options=options))

    @precondition(lambda self: self.world.c.responses.live is not None)
    @rule(which=st.sampled_from([None, "live", "resp_other"]))
    def response_cancel(self, which: str | None) -> None:
        live = self.world.c.responses.live
        self.tell(commands.ResponseCancel(response_id=live.id if which == "live" and live else which))

    @rule(patch=st.sampled_from(PATCHES), answered=st.booleans())
    def session_update(self, patch: SessionPatch, answered: bool) -> None:
        self.tell(commands.SessionUpdate(patch=patch))
        while answered and (updating := self.world.c.state.updating) is not None:
            self.world.do(StageUpdated(updating.waiting[0], updating.generation))

    @rule(
        command=st.sampled_from(
            [
                commands.ResponseCancel(response_id="resp_other"),
                commands.ItemCreate(item=Item("", "function_call_output", call_id="c", output="x" * 31)),
                commands.ItemDelete(item_id=UNKNOWN),
                commands.SessionUpdate(patch=SessionPatch(model="other")),
            ]
        )
    )
    def hopeless(self, command: ClientCommand) -> None:
        self.world.do(commands.Refused(code="invalid_json", message="no"))
        self.tell(command)

    # the stages

    def put(self, stage: str, output: Output | None, data: st.DataObject, *, last: bool = False, finish: FinishOut | None = None) -> None:
        """An output with the live label most of the time, else with one of the past or of nobody."""
        live = self.world.c.responses.live
        labels = self.labels if live is None else [*self.labels, *[(live.epoch, live.id)] * 30]
        epoch, response_id = data.draw(st.sampled_from(labels))
        self.world.chunk(stage, output, epoch=epoch, response_id=response_id, last=last, finish=finish)

    @rule(data=st.data(), text=st.sampled_from(WORDS), last=st.booleans(), finish=st.sampled_from(FINISHES))
    def llm_text(self, data: st.DataObject, text: str, last: bool, finish: FinishOut | None) -> None:
        self.put("llm", TextOut(text), data, last=last, finish=finish if last else None)

    @precondition(lambda self: self.world.c.responses.live is not None)
    @rule(data=st.data(), last=st.booleans())
    def llm_tool(self, data: st.DataObject, last: bool) -> None:
        self.put("llm", ToolOut("c", "f", '{"a":1}'), data, last=last)

    @rule(data=st.data(), stage=st.sampled_from(["llm", "talker", "vocoder", "vocoder"]), finish=st.sampled_from(FINISHES))
    def last(self, data: st.DataObject, stage: str, finish: FinishOut | None) -> None:
        self.put(stage, None, data, last=True, finish=finish)

    @precondition(lambda self: self.world.c.responses.live is not None)
    @rule(data=st.data(), last=st.booleans())
    def latents(self, data: st.DataObject, last: bool) -> None:
        self.put("talker", OpaqueOut("latents"), data, last=last)

    @rule(data=st.data(), ms=st.sampled_from([0, 20, 100, 100, 500]), chars=st.integers(0, 20), last=st.booleans())
    def sound(self, data: st.DataObject, ms: int, chars: int, last: bool) -> None:
        if self.world.voice.sent_ms + ms > self.world.voice.granted:
            return
        self.world.voice.sent_ms += ms
        marks = (MarkOut(chars, self.world.sent_ms + ms, True),) if chars else ()
        self.put("vocoder", AudioOut(bytes(ms * RATE // 1000 * 2), ms * RATE // 1000, RATE, marks), data, last=last)

    @precondition(lambda self: self.world.c.responses.live is not None)
    @rule(ms=st.sampled_from([80, 300, 1500]), last=st.booleans())
    def reply(self, ms: int, last: bool) -> None:
        """A sentence, written and spoken as far as credit goes."""
        self.world.write("All is well. ", last=last)
        if (live := self.world.c.responses.live) is not None:
            self.world.latents(last=last)
            self.world.voiced(ms, (MarkOut(len(live.text), live.output_tokens + ms, True),), last=last)

    @rule(kind=st.sampled_from(["speech_started", "speech_stopped", "pause", "listen"]), back=st.sampled_from([0, 100, 500, 5000]))
    def decision(self, kind: str, back: int) -> None:
        end = self.world.c.input.end_ms(self.world.c.config.input_format)
        self.world.chunk("turn", DecisionOut(kind, max(0, end - back), end), epoch=0, response_id="")

    @rule(ms=st.sampled_from([100, 300]))
    def user_speaks(self, ms: int) -> None:
        start = self.world.c.input.end_ms(self.world.c.config.input_format)
        self.world.append(ms)
        self.world.decide("speech_started", start)
        self.world.append(ms)
        self.world.decide("speech_stopped", start + 2 * ms - 20)

    @precondition(lambda self: self.world.c.dialog.hearing)
    @rule(data=st.data(), text=st.sampled_from(["", "Hello there.", "So?"]))
    def transcript(self, data: st.DataObject, text: str) -> None:
        self.world.transcribe(text, data.draw(st.sampled_from([*self.world.c.dialog.hearing] * 4 + [UNKNOWN])))

    @precondition(lambda self: self.world.c.input.open_item is not None)
    @rule(words=st.integers(0, 30), start=st.sampled_from([0, None, None]))
    def partial(self, words: int, start: int | None) -> None:
        start_ms = self.world.c.input.open_start_ms if start is None else start
        self.world.chunk("asr", TranscriptOut("", "word " * words, False, start_ms, start_ms + 100), epoch=0, response_id="")

    @rule(stage=st.sampled_from(["turn", "asr", "llm", "talker", "vocoder"]))
    def fails(self, stage: str) -> None:
        self.world.do(StageFailed(stage, "no"))

    @rule(stage=st.sampled_from(["turn", "asr", "llm", "talker", "vocoder"]), back=st.integers(1, 3))
    def sent_twice(self, stage: str, back: int) -> None:
        chunks = self.world.sent.get(stage, [])
        if len(chunks) >= back:
            before = len(self.world.effects)
            self.world.do(chunks[-back])
            assert all(not hasattr(effect, "event") for effect in self.world.effects[before:]), "a duplicate tells nothing"

    @rule(reader=st.sampled_from(["turn", "asr", "llm", "talker", "vocoder"]), back=st.integers(0, 2))
    def accepted(self, reader: str, back: int) -> None:
        lines = self.world.c.edges.state.lines
        marks = {source: max(0, readers[reader].sent - back) for source, readers in lines.items() if reader in readers}
        orders = self.world.c.outbox.stages.get(reader)
        self.world.do(StageAccepted(reader, marks, max(0, orders.issued - back) if orders else 0))

    @precondition(lambda self: self.world.c.state.updating is not None)
    @rule(data=st.data(), refuses=st.sampled_from([False, False, False, True]))
    def updated(self, data: st.DataObject, refuses: bool) -> None:
        updating = self.world.c.state.updating
        assert updating is not None
        stage = data.draw(st.sampled_from(sorted(updating.waiting)))
        self.world.do(StageUpdated(stage, updating.generation, "no" if refuses else None))

    # time and restarts

    @rule(ms=st.sampled_from([1, 20, 99, 100, 333, 1000]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)

    @rule()
    def restart(self) -> None:
        self.world.fork()

    # what holds always

    def item_ids(self) -> list[str]:
        c = self.world.c
        live = [c.responses.live.item_id] if c.responses.live else []
        return [*c.history.order[-6:], *live, c.make_id("item_u", c.state.items + 1), UNKNOWN]

    @invariant()
    def ledgers_agree(self) -> None:
        c = self.world.c
        if (live := c.responses.live) is not None and (live.epoch, live.id) not in self.labels:
            self.labels = [*self.labels[-6:], (live.epoch, live.id)]
        assert sorted(c.history.order) == sorted(c.history.items) and len(set(c.history.order)) == len(c.history.order)
        assert set(c.dialog.hearing) <= set(c.history.items)
        assert len(c.history.items) <= LIMITS.max_items + 1
        assert c.input.pending_bytes <= LIMITS.max_pending_input_bytes
        assert (c.responses.live.id if c.responses.live else None) == self.world.checks.live
        assert self.world.checks.in_history == set(c.history.items)
        for readers in c.edges.state.lines.values():
            for line in readers.values():
                assert line.in_flight == sorted(set(line.in_flight))
                assert all(line.watermark < position <= line.sent for position in line.in_flight)

    @invariant()
    def deadline_is_ahead(self) -> None:
        deadline = self.world.c.deadline
        assert deadline is None or deadline > self.world.now, "a deadline that has come does not stay"

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            self.world.do(commands.StageGone("llm"))
            assert self.world.c.state.closing and self.world.checks.live is None, "no response is left without its end"


TestInterleavings = pytest.mark.behaviour("M1", "M2", "O1", "O3", "F9", "F10", "P1", "B1", "R2")(Interleavings.TestCase)
TestInterleavings.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
