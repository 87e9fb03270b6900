"""What each session should sound like: its codes, spoken by a vocoder that has nobody else."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from benchmarks.native.house import Recording
from benchmarks.native.material import VOICE
from benchmarks.native.soak_plan import Plan, Unit
from minicpmo45.config import CODE_RATE, read_config
from stage_kit import Append, Label
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings


class Alone:
    """One engine, one session at a time."""

    def __init__(self, settings: MiniCpmVocoderSettings, script: list[Unit]) -> None:
        """`settings`: one slot, the rest as it was served."""
        self._engine = MiniCpmVocoderEngine(settings)
        self._engine.load()
        codes = read_config(settings.checkpoint).flow.codes
        self.plan = cache(lambda session: Plan(session, script, codes))
        self.reference = cache(self._reference)

    def _reference(self, session: str, turn: int, units: int, ended: bool) -> NDArray[np.float32]:
        """Samples of a turn of so many units; `ended`: the last one ends it."""
        return self._speak(self.plan(session).messages(turn, units, ended=ended), ended=ended)

    def _speak(self, messages: list[list[int]], *, ended: bool) -> NDArray[np.float32]:
        engine, woken = self._engine, threading.Event()
        slot = Recording("alone", engine.validate({"voice": VOICE}), woken.set, speaks=True)
        engine.open(slot)
        try:
            while slot.state.voice.prompt is None:
                if slot.state.voice.error is not None:
                    raise slot.state.voice.error
                woken.wait(0.05)
            for number, codes in enumerate(messages, 1):
                payload = stage_pb2.Payload(codes=stage_pb2.Codes(codes=codes, rate_hz=CODE_RATE))
                engine.receive(slot, Append("talker", number, Label(0, 1, "t1"), ended and number == len(messages), payload))
            while engine.ready(slot) is not None:
                engine.step([slot])
            engine.rest()
        finally:
            engine.close(slot)
        return np.concatenate(slot.sound) if slot.sound else np.zeros(0, np.float32)


def heard(file: str) -> NDArray[np.float32]:
    """PCM16 as floats."""
    return np.fromfile(file, "<i2").astype(np.float32) / 32768
