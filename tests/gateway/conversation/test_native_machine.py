"""Arbitrary interleavings of a client, a native model, what sings and sounds for it, losses and time: the invariants hold, and a restored
twin goes on alike."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.conversation import commands, events
from gateway.conversation.commands import AudioOut, ClientCommand, DecisionOut, Frame, InputAppend, OpaqueOut, StageChunk, TextOut, Tick
from gateway.conversation.config import Overlap, OverlapPatch, SessionConfig, SessionPatch
from gateway.conversation.early_close import ONSET_MS
from gateway.conversation.effects import CancelOrder, CloseUnitOrder, Order, Relay, SkipSilenceOrder
from gateway.graph import Graph

from .duplex import CONFIG, DUPLEX, EAGER, FORGETFUL, NO_VAD, WORDY, YIELDING, Duplex
from .support import RATE, Voice, names, pcm, state_of
from .test_machine import Twins

GRAPHS = [
    (DUPLEX, CONFIG),
    (DUPLEX, NO_VAD),
    (DUPLEX, YIELDING),
    (DUPLEX, msgspec.structs.replace(CONFIG, output_modalities=("text",))),
    (FORGETFUL, CONFIG),
    (EAGER, CONFIG),
    (EAGER, YIELDING),
    (WORDY, msgspec.structs.replace(CONFIG, overlap=Overlap("interrupt", ("yes", "mhm"), 300))),
]
FRAME = Frame("image/png", b"\x89PNG")
BEHIND = ("singer", "sounder")


class DuplexTwins(Duplex, Twins):
    """A native world with a twin."""


class Model:
    """The epoch that each stage knows, and the model's turn in it."""

    def __init__(self) -> None:
        self.epochs = dict.fromkeys(("seer", *BEHIND), 0)
        self.turn = 0
        self.open: tuple[int, int] | None = None
        """Epoch and number of the turn in progress."""

    def obey(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Order) and isinstance(effect.body, CancelOrder) and effect.stage in self.epochs:
                self.epochs[effect.stage] = max(self.epochs[effect.stage], effect.body.next_epoch)
        if self.open is not None and self.open[0] < self.epochs["seer"]:
            self.open = None


class NativeInterleavings(RuleBasedStateMachine):
    @initialize(which=st.sampled_from(GRAPHS), noting=st.booleans())
    def begin(self, which: tuple[Graph, SessionConfig], noting: bool) -> None:
        graph, config = which
        self.world = DuplexTwins(config, graph=graph)
        self.world.noting = noting
        self.model, self.seen, self.taken = Model(), 0, dict.fromkeys(BEHIND, 0)
        self.silences: list[tuple[int, int]] = []
        """On the input timeline, as the detector told."""
        self.obeyed()

    def obeyed(self) -> None:
        """Stages hear what was ordered, at once."""
        self.model.obey(self.world.effects[self.seen :])
        bodies = [effect.body for effect in self.world.effects[self.seen :] if isinstance(effect, Order)]
        early = [body for body in bodies if isinstance(body, CloseUnitOrder | SkipSilenceOrder)]
        assert not early or self.world.graph is EAGER
        for skip in early:
            if isinstance(skip, SkipSilenceOrder):
                assert any(start <= skip.start_ms < skip.end_ms <= end - ONSET_MS for start, end in self.silences), (
                    "no voice is passed over"
                )
                assert skip.end_ms - skip.start_ms < self.world.graph.native.unit_ms + 30
        self.seen = len(self.world.effects)

    # the client

    def tell(self, command: ClientCommand) -> None:
        """A refused command changes nothing but the count of events."""
        world = self.world
        world.do(Tick())
        before = state_of(world.c)
        if names(world.do(msgspec.structs.replace(command, event_id="evt"))) == ["Error"]:
            assert world.error.client_event_id == "evt" and state_of(world.c) == before
        self.obeyed()

    @rule(ms=st.sampled_from([0, 20, 500, 1000, 1000, 3000]), frames=st.integers(0, 3), t_ms=st.sampled_from([None, None, 0, 1500]))
    def append(self, ms: int, frames: int, t_ms: int | None) -> None:
        self.tell(InputAppend(audio=pcm(ms), frames=(FRAME,) * frames, frames_t_ms=t_ms))

    @rule(
        command=st.sampled_from(
            [
                commands.InputCommit(),
                commands.InputClear(),
                commands.OutputClear(),
                commands.ResponseCancel(),
                commands.ResponseCreate(),
                commands.ItemTruncate(item_id="item_a_abc_1", content_index=0, audio_end_ms=100),
            ]
        )
    )
    def buffers(self, command: ClientCommand) -> None:
        self.tell(command)

    @rule(
        patch=st.sampled_from(
            [
                SessionPatch(overlap=OverlapPatch("model")),
                SessionPatch(overlap=OverlapPatch("ignore")),
                SessionPatch(overlap=OverlapPatch("interrupt")),
                SessionPatch(turn_detection=None),
                SessionPatch(model_options={"temperature": 0.3}),
                SessionPatch(instructions="Other."),
                SessionPatch(output_modalities=("audio",)),
            ]
        )
    )
    def session_update(self, patch: SessionPatch) -> None:
        self.tell(commands.SessionUpdate(patch=patch))
        while (updating := self.world.c.state.updating) is not None:
            self.world.do(commands.StageUpdated(updating.waiting[0], updating.generation))
        self.obeyed()

    # the model

    def lost(self, stage: str) -> bool:
        return stage in self.world.c.state.lost

    @precondition(lambda self: not self.lost("seer") and self.model.open is None)
    @rule()
    def listens(self) -> None:
        self.world.listens(epoch=self.model.epochs["seer"])
        self.obeyed()

    @precondition(lambda self: not self.lost("seer"))
    @rule(text=st.sampled_from(["", "On and on. ", "so "]), ends=st.sampled_from([False, False, True]), back=st.sampled_from([0, 0, 700]))
    def speaks(self, text: str, ends: bool, back: int) -> None:
        """A unit of a turn, begun if need be; a cancel may come in the middle of it."""
        if self.model.open is None:
            self.model.turn += 1
            self.model.open = (self.model.epochs["seer"], self.model.turn)
        end_ms = max(0, self.world.heard_ms - back)
        self.say(DecisionOut("speak", max(0, end_ms - 1000), end_ms))
        if text:
            self.say(TextOut(text), last=ends)
        self.say(OpaqueOut("thought"), last=ends)
        if ends:
            self.say(DecisionOut("turn_end", max(0, end_ms - 1000), end_ms))
            self.model.open = None
        self.world.unit_done()

    def say(self, output: object, *, last: bool = False) -> None:
        if self.model.open is not None:
            epoch, turn = self.model.open
            self.world.chunk("seer", output, epoch=epoch, turn=turn, response_id=f"t{turn}", last=last)  # type: ignore[arg-type]
            self.obeyed()

    @precondition(lambda self: not self.world.c.state.lost)
    @rule(kind=st.sampled_from(["listen", "speak"]), notes=st.booleans())
    def is_lost_within_a_unit(self, kind: str, notes: bool) -> None:
        """What it decided was told; its receipt never comes."""
        if kind == "speak" or self.model.open is not None:
            if self.model.open is None:
                self.model.turn += 1
                self.model.open = (self.model.epochs["seer"], self.model.turn)
            self.say(DecisionOut("speak", max(0, self.world.heard_ms - 1000), self.world.heard_ms))
            self.say(TextOut("so "))
        else:
            decision = DecisionOut("listen", max(0, self.world.heard_ms - 1000), self.world.heard_ms)
            self.world.chunk("seer", decision, epoch=self.model.epochs["seer"], response_id="")
        if notes and self.world.noting:
            self.world.note()
        self.obeyed()
        self.loses("seer")

    # what comes behind it

    def next(self, stage: str) -> Relay | None:
        """What the stage reads next, of its epoch."""
        relays = self.world.relays(stage)
        while self.taken[stage] < len(relays):
            relay = relays[self.taken[stage]]
            self.taken[stage] += 1
            if relay.epoch >= self.model.epochs[stage]:
                return relay
        return None

    @precondition(lambda self: not self.lost("singer"))
    @rule(fails=st.sampled_from([False] * 9 + [True]))
    def sings(self, fails: bool) -> None:
        if (relay := self.next("singer")) is not None:
            codes, finish = None if fails else OpaqueOut("codes"), commands.FinishOut("failed") if fails else None
            label = {"epoch": relay.epoch, "turn": relay.turn, "response_id": relay.response_id}
            self.world.chunk("singer", codes, last=relay.last or fails, finish=finish, **label)  # type: ignore[arg-type]
            self.obeyed()

    @precondition(lambda self: not self.lost("sounder"))
    @rule(ms=st.sampled_from([0, 100, 1000, 2500]))
    def sounds(self, ms: int) -> None:
        if (relay := self.next("sounder")) is None:
            return
        audio = [AudioOut(pcm(100, 1), RATE // 10, RATE)] * (ms // 100)
        outputs = [*audio, *([None] if relay.last else [])]
        for at, output in enumerate(outputs, 1):
            ends = relay.last and at == len(outputs)
            made = StageChunk("sounder", 0, relay.epoch, relay.response_id, output, last=ends, wire=output, turn=relay.turn)
            self.world.voice.waiting.append(made)
        self.flow()

    def flow(self) -> None:
        """Sound that was cancelled at the stage never leaves it."""
        voice, epoch = self.world.voice, self.model.epochs["sounder"]
        voice.waiting = type(voice.waiting)(chunk for chunk in voice.waiting if chunk.epoch >= epoch)
        self.world._flow()
        self.obeyed()

    # the user, losses, time

    @precondition(lambda self: not self.lost("turn"))
    @rule(kind=st.sampled_from(["speech_started", "pause", "speech_resumed", "speech_stopped"]), back=st.sampled_from([0, 100, 200, 900]))
    def decision(self, kind: str, back: int) -> None:
        end = self.world.heard_ms
        if kind in ("pause", "speech_stopped"):
            self.silences.append((max(0, end - back), end))
        elif kind == "speech_resumed" and self.silences:
            self.silences.append((self.silences[-1][0], max(0, end - back)))
        self.world.chunk("turn", DecisionOut(kind, max(0, end - back), end), epoch=0, response_id="")
        self.obeyed()

    @precondition(lambda self: self.world.c.dialog.hearing and not self.lost("asr"))
    @rule(text=st.sampled_from(["", "Yes.", "Stop it."]))
    def transcript(self, text: str) -> None:
        self.world.transcribe(text)
        self.obeyed()

    @precondition(lambda self: self.world.graph is WORDY and self.world.c.input.open_item is not None and not self.lost("asr"))
    @rule(text=st.sampled_from(["ye", "yes", "stop"]))
    def partial(self, text: str) -> None:
        self.world.partial(text)
        self.obeyed()

    @precondition(lambda self: not self.world.c.state.lost)
    @rule(stage=st.sampled_from(["seer", *BEHIND, "turn"]))
    def loses(self, stage: str) -> None:
        if stage == "sounder":
            self.world.checks.granted = 0  # what is granted meanwhile reaches nobody
        self.world.do(commands.StageLost(stage, "gone"))
        if stage in self.taken:
            self.taken[stage] = len(self.world.relays(stage))
        if stage == "sounder":
            self.world.voice = Voice()
        if stage == "seer":
            self.model.open, self.model.turn, self.world.units = None, 0, 0
        if stage in self.model.epochs:
            self.model.epochs[stage] = 0
        self.obeyed()

    @precondition(lambda self: self.world.c.state.lost)
    @rule()
    def placed(self) -> None:
        (stage,) = self.world.c.state.lost
        self.world.positions[stage] = self.world.c.state.bases[stage]
        if stage == "sounder":
            self.world.checks.granted = 0
        if stage in self.taken:
            self.taken[stage] = len(self.world.relays(stage))
        self.world.do(commands.StagePlaced(stage))
        self.obeyed()

    @rule(ms=st.sampled_from([1, 99, 250, 1000, 1000, 4000]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)
        self.obeyed()
        self.flow()

    @precondition(lambda self: not self.world.c.state.lost)
    @rule()
    def restart(self) -> None:
        self.world.fork()

    # what holds always

    @invariant()
    def ledgers_agree(self) -> None:
        c = self.world.c
        assert (c.responses.live.id if c.responses.live else None) == self.world.checks.live
        assert not c.responses.coming or c.responses.live is not None, "one waits only behind another"
        assert all(live.epoch == c.fence.epoch for live in (c.responses.live, *c.responses.coming) if live is not None)
        assert c.native.turn == 0 or (c.native.epoch == c.fence.epoch and not self.lost("seer"))
        units = [event.unit for event in self.world.of(events.UnitDecided) if event.decision != "turn_end"]
        assert units == sorted(set(units)), "no unit is told twice"
        assert c.native.frames <= c.limits.max_unit_frames
        assert c.native.closing is None or self.world.graph is EAGER
        assert c.native.boundary_ms <= self.world.heard_ms + 2030, "no unit ends later than a whole one from now"
        numbers = list(c.unit_log.notes)
        assert numbers == list(range(c.unit_log.count - len(numbers), c.unit_log.count)), "an unbroken run"
        assert sorted(f"unit:{number}" for number in numbers) == sorted(name for name in self.world.stored if name.startswith("unit:"))
        assert self.world.checks.in_history == set(c.history.items)

    @invariant()
    def deadline_is_ahead(self) -> None:
        deadline = self.world.c.deadline
        assert deadline is None or deadline > self.world.now, "a deadline that has come does not stay"

    def teardown(self) -> None:
        """Whatever happened: when the stages are there and the model ends its turn, all that began ends."""
        if not hasattr(self, "world"):
            return
        if self.world.c.state.lost:
            self.placed()
        if self.model.open is not None:
            self.speaks("The end.", ends=True, back=0)
        for _ in range(200):
            if self.world.c.responses.live is None:
                break
            self.sings(fails=False)
            self.sounds(100)
            self.wait(1000)
        assert self.world.c.responses.live is None and self.world.c.native.turn == 0
        created, done = len(self.world.of(events.ResponseCreated)), len(self.world.of(events.ResponseDone))
        assert created == done, "each response has its one end"


TestNativeInterleavings = pytest.mark.behaviour("O1", "O3", "F9", "F10", "R2", "T3", "T4", "T5")(NativeInterleavings.TestCase)
TestNativeInterleavings.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
