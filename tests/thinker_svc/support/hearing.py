"""A slot that records, and a client that drives a real AsrEngine with it as the kit would."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Label
from thinker_svc.embedded.asr import AsrEngine

AUDIO = Path(__file__).resolve().parents[4] / "shared" / "audio"
RATE = 16_000

TRANSCRIPTS = {
    "librivox_sense_0870": (
        "and mister john dashwood had then leisure to consider how much there might be prudently in his power to do for them"
    ),
    "librivox_sense_0880": "he was not an ill disposed young man",
    "librivox_sense_0890": "unless to be rather cold hearted and rather selfish is to be ill disposed",
    "cards_001": "ten of clubs",
    "goforward": "go forward ten meters",
}


def recording(name: str) -> NDArray[np.float32]:
    """Float32 at 16 kHz; the test is skipped where the recordings are absent."""
    path = AUDIO / f"{name}.wav"
    if not path.exists():
        pytest.skip(f"recording {name} is not here")
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def silence(ms: int) -> NDArray[np.float32]:
    return np.zeros(ms * RATE // 1000, np.float32)


def words(text: str) -> str:
    """Lower case, no punctuation; "Mr." read out as the transcripts have it."""
    plain = "".join(character if character.isalnum() else " " for character in text.lower())
    return " ".join("mister" if word == "mr" else word for word in plain.split())


class RecordingSlot:
    """Keeps what an engine says."""

    def __init__(self, session_id: str, config: Any) -> None:
        self.session_id = session_id
        self.config = config
        self.state: Any = None
        self.epoch = 0
        self.transcripts: list[stage_pb2.Transcript] = []
        self.labels: list[Label] = []
        self.failures: list[Label] = []

    def emit(self, payload: stage_pb2.Payload, label: Label) -> None:
        self.transcripts.append(payload.transcript)
        self.labels.append(label)

    def fail(self, label: Label, message: str) -> None:
        self.failures.append(label)


class Clock:
    """A wall clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Caller:
    """One session: its audio, the turn stage's decisions, and the core's controls."""

    def __init__(self, engine: AsrEngine, name: str = "s", **config: Any) -> None:
        self.engine = engine
        self.slot: Any = RecordingSlot(name, engine.validate(config))
        engine.open(self.slot)
        self.sent = 0
        self._positions: dict[str, int] = {}

    @property
    def now_ms(self) -> int:
        return self.sent * 1000 // RATE

    def speak(self, samples: NDArray[np.float32], append_ms: int = 100) -> None:
        """Audio arrives; the engine does not work yet."""
        size = append_ms * RATE // 1000
        for start in range(0, samples.size, size):
            piece, begin = samples[start : start + size], self.now_ms
            self.sent += piece.size
            append = self._append("client", None)
            append.samples, append.start_ms, append.end_ms = piece, begin, self.now_ms
            self.engine.receive(self.slot, append)

    def decide(self, kind: str, t_ms: int, label: Label = Label()) -> None:
        number = stage_pb2.Decision.Kind.Value(f"KIND_{kind.upper()}")
        decision = stage_pb2.Decision(kind=number, t_ms=t_ms, decided_at_ms=self.now_ms)  # type: ignore[arg-type]
        self.engine.receive(self.slot, self._append("turn", stage_pb2.Payload(decision=decision), label))

    def commit(self, item_id: str, start_ms: int, end_ms: int, label: Label = Label()) -> None:
        control = stage_pb2.Control(kind=stage_pb2.Control.KIND_COMMIT, item_id=item_id, start_ms=start_ms, end_ms=end_ms)
        self.engine.receive(self.slot, self._append("core", stage_pb2.Payload(control=control), label))

    def end(self) -> None:
        control = stage_pb2.Control(kind=stage_pb2.Control.KIND_END)
        self.engine.receive(self.slot, self._append("core", stage_pb2.Payload(control=control)))

    @property
    def finals(self) -> list[stage_pb2.Transcript]:
        return [transcript for transcript in self.slot.transcripts if transcript.final]

    @property
    def partials(self) -> list[stage_pb2.Transcript]:
        return [transcript for transcript in self.slot.transcripts if not transcript.final]

    def _append(self, edge: str, payload: stage_pb2.Payload | None, label: Label = Label()) -> Append:
        self._positions[edge] = self._positions.get(edge, 0) + 1
        return Append(edge, self._positions[edge], label, False, payload, None, 0, 0)


def settle(engine: AsrEngine, *callers: Caller) -> list[str]:
    """Steps the most urgent slot until none is ready. Returns the session of each step."""
    order: list[str] = []
    while True:
        urgencies = [(urgency, number) for number, caller in enumerate(callers) if (urgency := engine.ready(caller.slot)) is not None]
        if not urgencies:
            return order
        chosen = callers[min(urgencies)[1]]
        engine.step([chosen.slot])
        order.append(chosen.slot.session_id)
        assert len(order) < 1000, "the engine does not come to rest"
