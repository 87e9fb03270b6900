"""The peer: the same engines, called one after the other in one process, from the end of the user's words to the first sound."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2 as pb

from stage_kit import Append, Engine, Label
from talker_svc.engine import TalkerEngine
from thinker_svc.embedded.asr_recognizer import Recognizer
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.llm import LlmEngine
from vocoder_svc.engine import VocoderEngine


class Slot:
    """Stands where the kit's slot stands, for one session without a wire."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.session_id, self.state, self.epoch = engine, "sequential", None, 0
        self.config: Any = engine.validate({})
        self.working = Label()
        self.made: list[pb.Payload] = []
        self.sounds = 0
        self.done = False
        engine.open(self)  # type: ignore[arg-type]

    def wake(self) -> None: ...

    def has_room(self) -> bool:
        return True

    def has_failed(self, label: Label) -> bool:
        return False

    def emit(self, payload: pb.Payload | None, label: Label, *, last: bool = False, finish: pb.Finish | None = None) -> None:
        if payload is not None:
            self.made.append(payload)
        self.done = self.done or last

    def emit_audio(
        self, samples: NDArray[np.float32], label: Label, *, marks: Iterable[pb.Mark] = (), last: bool = False, finish: Any = None
    ) -> None:
        self.sounds += len(samples)
        self.done = self.done or last

    def fail(self, label: Label, message: str, **_: object) -> None:
        raise RuntimeError(message)

    def give(self, position: int, label: Label, payload: pb.Payload | None, last: bool = False) -> None:
        self.engine.receive(self, Append("peer", position, label, last, payload))  # type: ignore[arg-type]

    def step(self) -> bool:
        """False when there is nothing to do."""
        if self.engine.ready(self) is None:  # type: ignore[arg-type]
            return False
        self.engine.step([self])  # type: ignore[list-item]
        return True


class Sequential:
    def __init__(self) -> None:
        self._recognizer = Recognizer(AsrSettings())
        self._recognizer.warm_up()
        self._engines = LlmEngine(), TalkerEngine(), VocoderEngine()
        for engine in self._engines:
            engine.load()

    def turn(self, heard: NDArray[np.float32], number: int) -> dict[str, float]:
        """heard: float32 at 16 kHz, from the first to the last voiced sample. Milliseconds by stage, and in all."""
        label = Label(1, number, f"resp_{number}")
        llm, talker, vocoder = (Slot(engine) for engine in self._engines)
        began = time.perf_counter()
        text = self._recognizer.text(heard)
        asr = time.perf_counter()
        messages = pb.Messages(messages=[pb.Message(role="user", content=text)])
        llm.give(1, label, pb.Payload(messages=messages), last=True)
        passed = 0
        while not talker.made:
            llm.step()
            for payload in llm.made[passed:]:
                passed += 1
                talker.give(passed, label, payload)
            if llm.done:
                talker.give(passed + 1, label, None, last=True)
            if talker.engine.ready(talker) is not None:  # type: ignore[arg-type]
                break
        first_clause = time.perf_counter()
        while not talker.made and talker.step():
            pass
        latents = time.perf_counter()
        for position, payload in enumerate(talker.made):
            vocoder.give(position + 1, label, payload)
        while not vocoder.sounds and vocoder.step():
            pass
        ended = time.perf_counter()
        while not llm.done:
            llm.step()
        steps = {"asr": asr - began, "llm": first_clause - asr, "talker": latents - first_clause, "vocoder": ended - latents}
        return {name: seconds * 1000 for name, seconds in steps.items()} | {"total": (ended - began) * 1000}
