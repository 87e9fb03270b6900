"""The three engines in one process and one thread, called as the kit's loop calls them, one after the other."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from parley_stage.v1 import stage_pb2

from benchmarks.native.material import VOICE, Samples
from benchmarks.native.timing import wait
from minicpmo45.config import SAMPLE_RATE_OUT
from stage_kit import Append, Engine, Label, Slot
from stage_kit.audio import Format
from stage_kit.audio_out import AudioOut
from stage_kit.outputs import Output
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine

KEPT_BYTES = 1 << 40
PCM = Format(stage_pb2.AUDIO_ENCODING_PCM_S16LE, SAMPLE_RATE_OUT)


class UnitTimes(msgspec.Struct):
    """Of one session, milliseconds since its unit was complete. NaN: it made none."""

    text: float = float("nan")
    thought: float = float("nan")
    codes: float = float("nan")
    first_sample: float = float("nan")
    last_sample: float = float("nan")

    def mark(self, name: str, ms: float) -> None:
        """The first time counts, but for the last sample."""
        if name == "last_sample" or math.isnan(getattr(self, name)):
            setattr(self, name, ms)


class Recording(Slot):
    """A slot that keeps the floats of what it speaks."""

    def __init__(self, name: str, config: Any, wake: Any, *, speaks: bool = False) -> None:
        self.outputs: deque[tuple[float, Output]] = deque()
        self.sound: list[Samples] = []
        audio_out = AudioOut(PCM, SAMPLE_RATE_OUT, 100) if speaks else None
        super().__init__(name, config, lambda output: self.outputs.append((time.perf_counter(), output)), wake, KEPT_BYTES, audio_out)

    def emit_audio(self, samples: Samples, label: Label, **fields: Any) -> None:
        self.sound.append(samples)
        super().emit_audio(samples, label, **fields)


class Line:
    """One session."""

    def __init__(self, house: House, name: str, seed: int, thinker: dict[str, Any], talker: dict[str, Any]) -> None:
        self.thoughts: list[stage_pb2.Thought] = []
        self.codes: list[list[int]] = []
        self._noise = np.random.default_rng(seed)
        self._ms = 0
        self._positions = {"client": 0, "camera": 0, "thinker": 0, "talker": 0}
        self.slots = {
            "thinker": Recording(name, house.thinker.validate({"force_listen_count": 0, "voice": VOICE, **thinker}), house.wake),
            "talker": Recording(name, house.talker.validate(talker), house.wake),
            "vocoder": Recording(name, house.vocoder.validate({"voice": VOICE}), house.wake, speaks=True),
        }
        for stage, engine in house.engines.items():
            engine.open(self.slots[stage])

    def append(self, edge: str, payload: stage_pb2.Payload | None = None, label: Label | None = None, **fields: Any) -> Append:
        self._positions[edge] += 1
        return Append(edge, self._positions[edge], label or Label(), fields.pop("last", False), payload, **fields)

    def frame(self, jpeg: bytes) -> Append:
        return self.append("camera", stage_pb2.Payload(image=stage_pb2.Image(media_type="image/jpeg", data=jpeg, t_ms=self._ms)))

    def unit(self) -> Append:
        """The sound that completes the next unit."""
        count = FIRST_SAMPLES if self._ms == 0 else UNIT_SAMPLES
        start, self._ms = self._ms, self._ms + count // 16
        samples = (0.1 * self._noise.standard_normal(count)).astype(np.float32)
        return self.append("client", samples=samples, start_ms=start, end_ms=self._ms)


class House:
    """`busy`: milliseconds that each stage computed since it was set to zero, the device's included; `steps`: how many steps that were."""

    def __init__(self, thinker: MiniCpmThinkerEngine, talker: MiniCpmTalkerEngine, vocoder: MiniCpmVocoderEngine) -> None:
        self.thinker, self.talker, self.vocoder = thinker, talker, vocoder
        self.engines: dict[str, Engine] = {"thinker": thinker, "talker": talker, "vocoder": vocoder}
        self._woken = threading.Event()
        self.busy = dict.fromkeys(self.engines, 0.0)
        self.steps = dict.fromkeys(self.engines, 0)

    def wake(self) -> None:
        self._woken.set()

    @contextmanager
    def open(self, count: int, thinkers: Iterable[dict[str, Any]] = (), talkers: Iterable[dict[str, Any]] = ()) -> Iterator[list[Line]]:
        """Sessions whose prefix is made and whose voice is set up; closed in the end."""
        configs = [*thinkers, *[{}] * count][:count], [*talkers, *[{}] * count][:count]
        lines = [Line(self, f"session {row}", row, *each) for row, each in enumerate(zip(*configs, strict=True))]
        self._idle("thinker", lines)
        while any(line.slots["vocoder"].state.voice.prompt is None for line in lines):
            self._woken.wait(0.05)
            if error := next((e for line in lines if (e := line.slots["vocoder"].state.voice.error) is not None), None):
                raise error
        try:
            yield lines
        finally:
            for line in lines:
                for stage, engine in self.engines.items():
                    engine.close(line.slots[stage])

    def unit(self, lines: list[Line], jpeg: bytes | None = None) -> list[UnitTimes]:
        """One unit of all sessions at once; their pictures come before and are not counted."""
        if jpeg is not None:
            for line in lines:
                self.thinker.receive(line.slots["thinker"], line.frame(jpeg))
            self._idle("thinker", lines)
        self.busy = dict.fromkeys(self.engines, 0.0)
        self.steps = dict.fromkeys(self.engines, 0)
        units = [line.unit() for line in lines]
        times = {id(line): UnitTimes() for line in lines}
        began = time.perf_counter()
        for line, unit in zip(lines, units, strict=True):
            self.thinker.receive(line.slots["thinker"], unit)
        for stage in self.engines:
            self._idle(stage, lines)
            for line in lines:
                self._pass_on(line, stage, times[id(line)], began)
        return list(times.values())

    def _pass_on(self, line: Line, stage: str, times: UnitTimes, began: float) -> None:
        """What the stage made goes to the next."""
        outputs = line.slots[stage].outputs
        while outputs:
            at, output = outputs.popleft()
            if output.finish is not None and output.finish.HasField("error"):
                raise RuntimeError(f"{stage}: {output.finish.error.message}")
            ms = (at - began) * 1000
            kind = output.kind
            if kind in ("text", "thought", "codes"):
                times.mark(kind, ms)
            if kind == "thought" and output.payload is not None:
                line.thoughts.append(output.payload.thought)
                self.talker.receive(line.slots["talker"], line.append("thinker", output.payload, output.label, last=output.last))
            elif stage == "talker":
                line.codes.append(list(output.payload.codes.codes) if output.payload is not None else [])
                self.vocoder.receive(line.slots["vocoder"], line.append("talker", output.payload, output.label, last=output.last))
            elif kind == "audio":
                times.mark("first_sample", ms)
                times.mark("last_sample", ms)

    def _idle(self, stage: str, lines: list[Line]) -> None:
        """Steps a stage until no session of it is ready; frames that are being decoded are waited for."""
        engine = self.engines[stage]
        slots: list[Slot] = [line.slots[stage] for line in lines]
        while True:
            if stage == "thinker":
                for slot in slots:
                    for frame in slot.state.camera.frames:
                        frame.decoded.exception()
            ready = [slot for slot in slots if engine.ready(slot) is not None]
            if not ready:
                engine.rest()
                return
            began = time.perf_counter()
            engine.step(ready)
            wait(self.thinker._device)
            self.busy[stage] += (time.perf_counter() - began) * 1000
            self.steps[stage] += 1
