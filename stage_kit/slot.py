"""A session at a stage, as its engine sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from parley_stage.v1 import stage_pb2

from stage_kit.audio import NOTHING, WIDTH
from stage_kit.audio_out import AudioOut
from stage_kit.engine import Label, Samples
from stage_kit.outputs import OVERHEAD_BYTES, Output

NO_LABEL = Label()
AUDIO_BYTES, MARK_BYTES = 40, 32
"""More than a piece of sound takes besides its data, and than each mark of it."""
REMEMBERED_RESPONSES = 16
"""That failed, and that ended: an engine that looks ahead may end another one before it is told of the first."""


class Slot:
    """What an engine holds of one session. `state` is the engine's own; everything made leaves through `emit`, from any thread."""

    def __init__(
        self,
        session_id: str,
        config: Any,
        deliver: Callable[[Output], None],
        wake: Callable[[], None],
        kept_bytes: int,
        audio_out: AudioOut | None,
    ) -> None:
        self.session_id = session_id
        self.config = config
        self.state: Any = None
        self.epoch = 0
        self.working = NO_LABEL
        """Label of the append taken last: what a failing step is charged to."""
        self.audio_out = audio_out
        self._deliver = deliver
        self.wake = wake
        """Has the kit ask `ready` again; for results that an engine gets on a thread of its own. From any thread."""
        self._bound = kept_bytes
        self._lock = threading.Lock()
        self._made = 0
        self._freed = 0
        self._ended: tuple[Label, ...] = ()
        self._failed: tuple[Label, ...] = ()
        self._waiters: list[asyncio.Future[None]] = []
        self._asked = NO_LABEL
        self._asked_at = 0.0

    def __repr__(self) -> str:
        return f"Slot({self.session_id!r}, epoch={self.epoch})"

    def emit(self, payload: stage_pb2.Payload | None, label: Label, *, last: bool = False, finish: stage_pb2.Finish | None = None) -> None:
        """Sends one output. With `last`, the label's work here is complete; the payload may be None then. Below the epoch: dropped."""
        if last and self.audio_out is not None and self.audio_out.speaks(label):
            for sound in self.audio_out.push(NOTHING, label, (), last=True):
                self._send_audio(sound, label, last=False, finish=None)
        size = OVERHEAD_BYTES + (payload.ByteSize() if payload is not None else 0)
        self._send(Output(label, payload, last, finish, size=size))

    def emit_audio(
        self,
        samples: Samples,
        label: Label,
        *,
        marks: Iterable[stage_pb2.Mark] = (),
        last: bool = False,
        finish: stage_pb2.Finish | None = None,
    ) -> None:
        """Speaks float32 [n] at card.output_rate in the session's output format. Raises RuntimeError at a stage without one."""
        if self.audio_out is None:
            raise RuntimeError("this stage makes no client audio: its card has no output_rate")
        if label.epoch < self.epoch:
            return
        pieces = self.audio_out.push(samples, label, marks, last=last)
        for index, sound in enumerate(pieces, 1):
            ends = last and index == len(pieces)
            self._send_audio(sound, label, last=ends, finish=finish if ends else None)
        if last and not pieces:
            self._send(Output(label, None, True, finish))

    def decide(self, kind: int, t_ms: int, *, decided_at_ms: int, label: Label = NO_LABEL, score: float = 0.0, reason: str = "") -> None:
        """Sends a decision (Decision.Kind) about the input timeline; a label without a response is never dropped by a cancel."""
        name = stage_pb2.Decision.Kind.Name(kind)
        decision = stage_pb2.Decision(kind=name, t_ms=t_ms, decided_at_ms=decided_at_ms, score=score, reason=reason)
        self.emit(stage_pb2.Payload(decision=decision), label)

    def unit_done(self, unit: int, consumed_ms: int, label: Label = NO_LABEL, *, complete_at: float = 0.0) -> None:
        """Receipt of a native unit; leaves after all that was emitted before it. `consumed_ms` excludes padding. `complete_at`: monotonic
        second at which its last append came (`Append.arrived`); 0.0: its lag is not measured."""
        self._send(Output(label, unit=stage_pb2.UnitDone(unit=unit, consumed_ms=consumed_ms), since=complete_at))

    def asked(self, label: Label, at: float) -> None:
        """An append of a response, come at this monotonic second, is to be worked on (the kit's own call)."""
        if label.response_id and label != self._asked:
            self._asked, self._asked_at = label, at

    def fail(self, label: Label, message: str, *, code: int = stage_pb2.StageError.CODE_ENGINE_FAILED, param: str = "") -> None:
        """Ends this label's work here: `last` with Finish(FAILED). `message` is one line without text, audio or secrets."""
        if label in self._ended or label in self._failed:
            return
        if self.audio_out is not None and self.audio_out.speaks(label):
            self.audio_out.abort()
        self._send(Output(label, None, True, _failure(label, message, code, param)))
        self._failed = _remembered(self._failed, label)

    def has_failed(self, label: Label) -> bool:
        """True after `fail`: whatever else is emitted for this response is dropped."""
        return label in self._failed

    def has_room(self) -> bool:
        """False: kept outputs reached their bound, the kit skips this slot until acks free some."""
        return self._made - self._freed < self._bound

    async def room(self) -> None:
        """Waits until `has_room`; for engines on the event loop."""
        while not self.has_room():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def freed(self, size: int) -> bool:
        """Kept outputs were forgotten (event loop only). True when there is room again for the first time."""
        # else an output that takes the last room meanwhile is not seen here, and what is freed not by its engine, which nobody wakes
        with self._lock:
            had_room = self.has_room()
            self._freed += size
        if had_room or not self.has_room():
            return False
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        return True

    def _send_audio(self, payload: stage_pb2.Payload, label: Label, *, last: bool, finish: stage_pb2.Finish | None) -> None:
        audio = payload.audio
        audio_ms = audio.samples * 1000 / audio.format.sample_rate_hz
        # ByteSize would serialise it, with its sound, to count it
        size = AUDIO_BYTES + len(audio.marks) * MARK_BYTES + audio.samples * WIDTH[audio.format.encoding]
        self._send(Output(label, payload, last, finish, audio_ms=audio_ms, size=OVERHEAD_BYTES + size))

    def _send(self, output: Output) -> None:
        if output.below(self.epoch):
            return
        with self._lock:
            if self.has_failed(output.label):
                return
            if self._made - self._freed >= 2 * self._bound:
                # an engine that goes on without room must not take the whole service's memory
                self._failed = _remembered(self._failed, output.label)
                error = _failure(
                    output.label, "outputs were not read in time", stage_pb2.StageError.CODE_LIMIT_EXCEEDED, "kept_output_bytes"
                )
                output = Output(output.label, None, True, error)
            if self._asked_at and output.label == self._asked and output.unit is None:
                output.since, self._asked_at = self._asked_at, 0.0
            self._made += output.size
            if output.last:
                self._ended = _remembered(self._ended, output.label)
            self._deliver(output)


def _remembered(labels: tuple[Label, ...], label: Label) -> tuple[Label, ...]:
    """A new tuple: other threads read the old one. The input lane, which has no response, is never over."""
    return (*labels, label)[-REMEMBERED_RESPONSES:] if label.response_id else labels


def _failure(label: Label, message: str, code: int, param: str) -> stage_pb2.Finish:
    name = stage_pb2.StageError.Code.Name(code)
    error = stage_pb2.StageError(code=name, message=message, param=param, label=label.proto())
    return stage_pb2.Finish(reason=stage_pb2.Finish.REASON_FAILED, error=error)
