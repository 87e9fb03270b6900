"""A native conversation with its surroundings: a model of a made-up name whose units the test writes by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.conversation import events
from gateway.conversation.commands import AudioOut, DecisionOut, FinishOut, NoteOut, OpaqueOut, StageChunk, StageUnit, TextOut
from gateway.conversation.config import Overlap, ServerVad, SessionConfig
from gateway.conversation.effects import Emit
from gateway.conversation.limits import Limits
from gateway.graph import Graph, load_profile

from .support import PIECE_MS, RATE, World, pcm
from .tale import Tale

PROFILE = """
model: any-native
native: {unit_ms: 1000, first_unit_ms: 1030, continuation_slack_ms: 200, overlap: {policy: interrupt}}
stages:
  seer: {reads: [audio, image, control], makes: [text, thought, decision], requires: [audio], ends_turns: true}
  singer: {reads: [thought], makes: [codes]}
  sounder: {reads: [codes], makes: [audio], ends_turns: true}
configure:
  seer:
    session: {system: instructions, sounds_like: voice, sample: reference_voice, sample_hz: reference_rate_hz, before: history,
              known_ms: heard_until_ms, notes: unit_log}
    options: {heat: temperature, k: top_k}
    values: {mode: duplex}
  singer: {options: [temperature]}
  sounder: {session: {sounds_like: voice}}
nodes:
  turn: {stages: [turn], inputs: ["input:audio", "input:control"]}
  seer: {stages: [seer], inputs: [input]}
  singer: {stages: [singer], inputs: ["seer:thought"]}
  sounder: {stages: [sounder], inputs: [singer]}
publish: {turn: [decision], seer: [text, decision], sounder: [audio]}
"""
WITH_WORDS = PROFILE.replace("nodes:", "nodes:\n  asr: {stages: [asr], inputs: [input, turn]}").replace(
    "publish: {", "publish: {asr: [transcript], "
)
DUPLEX, WORDY = Graph(load_profile(PROFILE, "duplex")), Graph(load_profile(WITH_WORDS, "wordy"))
FORGETFUL = Graph(load_profile(PROFILE.replace("native: {", "native: {unit_log_ms: 3000, "), "forgetful"))
"""Three units of its log are kept."""
EAGER = Graph(load_profile(PROFILE.replace("native: {", "native: {early_close_ms: 200, "), "eager"))
"""Units are closed early."""
CONFIG = SessionConfig("any-native", instructions="Be kind.", overlap=Overlap())
NO_VAD = msgspec.structs.replace(CONFIG, turn_detection=None)
YIELDING = msgspec.structs.replace(CONFIG, turn_detection=ServerVad(interrupt_response=False))


class Duplex(World):
    """`speaks` and `listens` are whole units of the model; one that is `noting` leaves a note of each."""

    graph = DUPLEX
    noting = False
    noted = 0

    def __init__(
        self, config: SessionConfig = CONFIG, limits: Limits | None = None, *, graph: Graph = DUPLEX, started: bool = True
    ) -> None:
        self.graph = graph
        self.model_turn = self.units = 0
        super().__init__(config, limits)

    # the model

    def listens(self, end_ms: int | None = None, *, epoch: int | None = None) -> list[Any]:
        return self._decides("listen", "", end_ms, epoch) + self.unit_done(end_ms)

    def speaks(self, text: str = "", *, begins: bool = False, ends: bool = False, end_ms: int | None = None) -> list[Any]:
        """A unit of its turn: decided, written, thought, received."""
        told = self.begins(end_ms) if begins else self._decides("speak", self.label, end_ms)
        if text or ends:
            told += self.thinks(TextOut(text), last=ends)
        return told + self.thought(ends=ends, end_ms=end_ms)

    def begins(self, end_ms: int | None = None, *, epoch: int | None = None) -> list[Any]:
        self.model_turn += 1
        return self._decides("speak", self.label, end_ms, epoch)

    def thought(self, *, ends: bool = False, end_ms: int | None = None) -> list[Any]:
        told = self.thinks(OpaqueOut("thought"), last=ends, finish=FinishOut("stop", 20, 4) if ends else None)
        if ends:
            told += self._decides("turn_end", self.label, end_ms)
        return told + self.unit_done(end_ms)

    @property
    def label(self) -> str:
        return f"t{self.model_turn}"

    def thinks(self, output: Any = None, **fields: Any) -> list[Any]:
        return self.chunk("seer", output, response_id=self.label, turn=self.model_turn, **fields)

    def _decides(self, kind: str, label: str, end_ms: int | None, epoch: int | None = None) -> list[Any]:
        end = self.heard_ms if end_ms is None else end_ms
        decision = DecisionOut(kind, max(0, end - 1000), end)
        fields: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
        return self.chunk("seer", decision, response_id=label, turn=self.model_turn if label else 0, **fields)

    def unit_done(self, end_ms: int | None = None) -> list[Any]:
        told = self.note(end_ms) if self.noting else []
        self.units += 1
        return told + self.do(StageUnit("seer", self.units - 1))

    def note(self, end_ms: int | None = None, data: bytes | None = None, **fields: Any) -> list[Any]:
        """Notes are told apart by their data: "0", "1" and so on over the session."""
        end = self.heard_ms if end_ms is None else end_ms
        self.noted += 1
        output = NoteOut(max(0, end - 1000), end, b"%d" % (self.noted - 1) if data is None else data)
        return self.chunk("seer", output, **{"response_id": "", "turn": self.model_turn, **fields})

    # what comes behind it

    def sings(self, *, last: bool = False, turn: int | None = None) -> list[Any]:
        number = self.model_turn if turn is None else turn
        return self.chunk("singer", OpaqueOut("codes"), last=last, response_id=f"t{number}", turn=number)

    def sounds(self, ms: int, *, last: bool = False, turn: int | None = None, finish: FinishOut | None = None) -> list[Any]:
        """Sound of a turn, as its credit allows; nothing of it may have left when this returns."""
        number = self.model_turn if turn is None else turn
        for start in range(0, ms, PIECE_MS):
            count = min(PIECE_MS, ms - start)
            audio = AudioOut(pcm(count, 1), count * RATE // 1000, RATE)
            self.voice.waiting.append(self._of_turn(number, audio))
        if last:
            self.voice.waiting.append(self._of_turn(number, None, last=True, finish=finish))
        return self._flow()

    def _of_turn(self, number: int, output: Any, **fields: Any) -> StageChunk:
        return StageChunk("sounder", 0, self.c.fence.epoch, f"t{number}", output, wire=output, turn=number, **fields)

    # what came of it

    @property
    def heard_ms(self) -> int:
        return self.c.input.end_ms(self.c.config.input_format)

    @property
    def decisions(self) -> list[tuple[int, str]]:
        return [(event.unit, event.decision) for event in self.of(events.UnitDecided)]


class DuplexTale(Duplex, Tale):
    """The same with a gateway that may die at any moment."""

    def __init__(
        self, config: SessionConfig = CONFIG, limits: Limits | None = None, *, graph: Graph = DUPLEX, started: bool = True
    ) -> None:
        self.graph = graph
        self.model_turn = self.units = 0
        Tale.__init__(self, config, limits)

    def say(self, ms: int) -> list[Any]:
        """What `speak` says, as fast as it is spoken."""
        before = len(self.effects)
        for _ in range(ms // 20):
            self.now += 20
            self.speak(20)
        return [effect.event for effect in self.effects[before:] if isinstance(effect, Emit)]
