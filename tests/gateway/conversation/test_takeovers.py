"""Arbitrary interleavings with deaths of the gateway and losses of stages: every sample, command, event and order once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.conversation import commands, events
from gateway.conversation.commands import AudioOut, FinishOut, OpaqueOut, Output, StageUpdated, TextOut
from gateway.conversation.config import SemanticVad, ServerVad, SessionConfig, SessionPatch
from gateway.conversation.limits import Limits

from .support import CONFIG, DEFERRING, RATE, TEXT, VAD_OFF
from .tale import HEARS, STAGES, Tale

LIMITS = Limits(
    max_items=400,
    max_output_lead_ms=400,
    credit_extra_ms=200,
    transcript_timeout_ms=900,
    update_timeout_ms=300,
    first_output_timeout_ms=2000,
    stall_timeout_ms=500,
    response_timeout_ms=4000,
    max_held_commands=10_000,
)
COMMANDS = [
    commands.InputCommit(),
    commands.InputClear(),
    commands.ResponseCreate(),
    commands.ResponseCreate(),
    commands.ResponseCancel(),
    commands.OutputClear(),
    commands.SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad())),
    commands.SessionUpdate(patch=SessionPatch(turn_detection=ServerVad(interrupt_response=False))),
    commands.SessionUpdate(patch=SessionPatch(instructions="New.")),
]
stages = st.sampled_from(STAGES)


class Takeovers(RuleBasedStateMachine):
    @initialize(config=st.sampled_from([CONFIG, VAD_OFF, TEXT, DEFERRING]))
    def begin(self, config: SessionConfig) -> None:
        self.tale = Tale(config, LIMITS)

    # the client

    @rule(ms=st.sampled_from([1, 20, 100, 400]))
    def speak(self, ms: int) -> None:
        self.tale.speak(ms)

    @rule()
    def item(self) -> None:
        self.tale.tell("hello")

    @rule(command=st.sampled_from(COMMANDS))
    def command(self, command: commands.ClientCommand) -> None:
        self.tale.say_command(command)

    # the stages

    def there(self, stage: str) -> bool:
        return stage in self.tale.stages

    def put(self, stage: str, output: Output | None, last: bool = False, finish: FinishOut | None = None) -> None:
        if self.there(stage):
            self.tale.chunk(stage, output, last=last, finish=finish)

    @rule(kind=st.sampled_from(["speech_started", "speech_stopped"]), back=st.sampled_from([0, 100, 500]))
    def decision(self, kind: str, back: int) -> None:
        end = self.tale.c.input.end_ms(self.tale.c.config.input_format)
        if self.there("turn"):
            self.tale.decide(kind, max(0, end - back), end)

    @precondition(lambda self: self.tale.c.dialog.hearing)
    @rule(text=st.sampled_from(["", "Hello there."]))
    def transcript(self, text: str) -> None:
        if self.there("asr"):
            self.tale.transcribe(text)

    @rule(last=st.booleans())
    def text(self, last: bool) -> None:
        self.put("llm", TextOut("All is well. "), last, FinishOut() if last else None)

    @rule(last=st.booleans())
    def latents(self, last: bool) -> None:
        self.put("talker", OpaqueOut("latents"), last)

    @rule(ms=st.sampled_from([20, 100, 300]), last=st.booleans())
    def sound(self, ms: int, last: bool) -> None:
        voice = self.tale.voice
        if self.there("vocoder") and voice.sent_ms + ms <= voice.granted:
            voice.sent_ms += ms
            self.put("vocoder", AudioOut(bytes(ms * RATE // 1000 * 2), ms * RATE // 1000, RATE), last)

    @precondition(lambda self: self.tale.c.state.updating is not None)
    @rule(refuses=st.sampled_from([False, False, True]))
    def updated(self, refuses: bool) -> None:
        updating = self.tale.c.state.updating
        assert updating is not None
        stage = sorted(updating.waiting)[0]
        if self.there(stage):
            self.tale.do(StageUpdated(stage, updating.generation, "no" if refuses else None))

    @rule(stage=stages, count=st.sampled_from([1, 2, 5, None]))
    def arrive(self, stage: str, count: int | None) -> None:
        self.tale.arrive(stage, count)

    @rule(stage=stages, count=st.integers(1, 4))
    def arrive_unsaid(self, stage: str, count: int) -> None:
        """The stage has it, and its receipt is still on its way."""
        if self.there(stage):
            self.tale.stages[stage].arrive(count)

    # time, commits and deaths

    @rule(ms=st.sampled_from([1, 20, 100, 333, 1000]))
    def wait(self, ms: int) -> None:
        self.tale.wait(ms)

    @rule(late=st.booleans())
    def commits(self, late: bool) -> None:
        self.tale.late = late
        if not late:
            self.tale.commit_now()

    @rule(lost=st.sampled_from([(), (), (), *[(stage,) for stage in STAGES], ("turn", "asr"), STAGES]))
    def die(self, lost: tuple[str, ...]) -> None:
        self.tale.die(lost)

    @rule(stage=stages)
    def lose(self, stage: str) -> None:
        if self.there(stage):
            self.tale.lose(stage)

    @precondition(lambda self: self.tale.wanted)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        self.tale.place(data.draw(st.sampled_from(sorted(self.tale.wanted))))

    # what holds always

    @invariant()
    def nobody_hears_anything_twice_or_out_of_place(self) -> None:
        for name in HEARS:
            if self.there(name):
                self.tale.stages[name].check_heard()

    @invariant()
    def the_client_knows_what_was_committed(self) -> None:
        tale = self.tale
        if tale._unperformed:
            return
        live = tale.c.responses.live
        assert (live.id if live else None) == tale.checks.live
        assert tale.checks.in_history == set(tale.c.history.items)
        assert tale.of(events.ResyncRequired) == [], "nothing is ever forgotten here"

    def teardown(self) -> None:
        if not hasattr(self, "tale"):
            return
        tale = self.tale
        tale.settle()
        while (updating := tale.c.state.updating) is not None:
            for stage in list(updating.waiting):
                tale.do(StageUpdated(stage, updating.generation))
        tale.check()
        for name, stage in tale.stages.items():
            assert tale.c.outbox.stages.get(name) is None or tale.c.outbox.stages[name].waiting == [], "nothing is owed to a stage"
            assert [order.number for order in stage.orders] == sorted({order.number for order in stage.orders})


TestTakeovers = pytest.mark.behaviour("X1", "X2", "X3", "F9", "F10", "M4", "L4")(Takeovers.TestCase)
TestTakeovers.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
