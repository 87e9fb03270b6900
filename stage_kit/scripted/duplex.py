"""A native model without a model: hears units, decides by a script or by what it hears, writes known words, thinks known thoughts."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

import msgspec
import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, Label, Samples
from stage_kit.scripted.script import convert
from stage_kit.scripted.unit_notes import Decided, note, read_log, recital
from stage_kit.slot import Slot

RATE = 16_000
PER_MS = RATE // 1000
MAGIC = (b"\xff\xd8\xff", b"\x89PNG")
BROKEN = b"broken"
"""A picture that ends so cannot be read."""
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class DuplexScript(msgspec.Struct, frozen=True):
    """How a session's model behaves.

    `script` has a letter for each unit: l listens, s speaks, e speaks and ends the turn. Behind it, and without one, the model begins a
    turn of `turn_units` with the first quiet unit after a loud one.
    """

    script: Annotated[str, msgspec.Meta(pattern="^[lse]*$")] = ""
    turn_units: Count = 3
    words: Count = 3
    """Of each unit."""
    rms: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.01
    recite: bool = False
    """The first unit of a turn says what the model was told of the time before: see `recital`."""
    instructions: str = ""
    previous: str = ""
    listen_until_ms: int = 0
    """What was heard up to here was answered by somebody else."""
    unit_log: tuple[str, ...] = ()
    """What that one noted of its latest units: they are not lived through again, and what is heard up to their end is passed over."""


class _Heard(msgspec.Struct, frozen=True):
    samples: Samples
    start_ms: int
    end_ms: int


class _Mind(msgspec.Struct):
    """Times are of the input timeline."""

    parts: list[Samples] = []
    count: int = 0
    began_ms: int | None = None
    before: int = 0
    """Real samples of earlier units."""
    filled: int = 0
    """Silence, in samples, that closed the unit before early."""
    waiting: deque[_Heard] = msgspec.field(default_factory=deque)
    frames: list[int] = []
    number: int = 0
    done: int = 0
    """Units of this placement."""
    past_ms: int = 0
    """Until here the units are known from the log."""
    turn: int = 0
    label: Label | None = None
    """Of the turn in progress."""
    said: int = 0
    """Units of it."""
    voiced: bool = False
    """A loud unit was not answered yet."""
    forced: bool = False

    @property
    def start_ms(self) -> int:
        return (self.began_ms or 0) + self.before * 1000 // RATE


class ScriptedDuplex(Engine):
    """The words of unit k of turn n are `script.reply("<session>/<n>/<k>", words)`; its thought holds n and k."""

    def __init__(self, slots: int = 64, unit_ms: int = 1000, stage: str = "thinker") -> None:
        self.card = Card(
            stage,
            "scripted",
            "duplex",
            ("audio", "image"),
            ("decision", "text", "thought", "unit_note"),
            slots=slots,
            batch=slots,
            input_rate=RATE,
            unit_ms=unit_ms,
            capabilities=("continuation", "early_close", "unit_log"),
        )
        self._unit = RATE * unit_ms // 1000

    def validate(self, config: dict[str, Any]) -> DuplexScript:
        """See DuplexScript."""
        script = convert(config, DuplexScript)
        read_log(script.unit_log)
        return script

    def open(self, slot: Slot) -> None:
        """It has heard nothing, and goes on behind its log. A turn that was open there is over, and the next unit listens."""
        mind = slot.state = _Mind()
        if log := read_log(slot.config.unit_log):
            last, decided = log[-1]
            mind.number, mind.past_ms, mind.forced = decided.number + 1, last.end_ms, decided.act == "s"

    def cleared(self, slot: Slot) -> None:
        """What is no whole unit yet is forgotten; the timeline goes on."""
        mind: _Mind = slot.state
        mind.before += mind.count
        mind.parts, mind.count, mind.filled = [], 0, 0
        mind.waiting.clear()
        mind.frames.clear()

    def cancelled(self, slot: Slot) -> None:
        """The turn is over, and the next unit listens."""
        mind: _Mind = slot.state
        if mind.label is not None and mind.label.epoch < slot.epoch:
            mind.label, mind.forced = None, True

    def receive(self, slot: Slot, append: Append) -> None:
        """Gathers sound, counts frames, closes a unit with silence, passes over silence."""
        mind: _Mind = slot.state
        payload = append.payload
        if append.samples is not None:
            self._hear(mind, append)
        elif payload is not None and payload.HasField("image"):
            self._see(slot, mind, append)
        elif payload is not None and payload.HasField("control"):
            self._obey(slot, mind, append.label, payload.control)

    def ready(self, slot: Slot) -> float | None:
        """The next unit."""
        return 0.0 if slot.state.waiting else None

    def step(self, slots: list[Slot]) -> None:
        """One unit of each."""
        for slot in slots:
            mind: _Mind = slot.state
            self._decide(slot, mind, mind.waiting.popleft())

    def _hear(self, mind: _Mind, append: Append) -> None:
        samples = append.samples
        assert samples is not None
        if mind.began_ms is None:
            mind.began_ms = append.start_ms
        known = min(len(samples), max(0, (mind.past_ms - mind.start_ms) * RATE // 1000))
        mind.before += known
        samples = samples[known:]
        while mind.count + len(samples) >= self._unit:
            taken = self._unit - mind.count
            start_ms, mind.before = mind.start_ms, mind.before + self._unit
            self._complete(mind, np.concatenate([*mind.parts, samples[:taken]]), start_ms)
            samples = samples[taken:]
        if len(samples):
            mind.parts.append(samples)
            mind.count += len(samples)

    def _obey(self, slot: Slot, mind: _Mind, label: Label, control: stage_pb2.Control) -> None:
        open_still = not mind.waiting and control.start_ms >= mind.start_ms + self.card.unit_ms
        if control.kind == stage_pb2.Control.KIND_CONTINUE:
            if open_still and mind.label is not None and (label.epoch, label.turn) == (slot.epoch, mind.label.turn):
                self._fill(mind)
        elif control.kind == stage_pb2.Control.KIND_CLOSE_UNIT:
            if open_still and mind.label is None and mind.count >= PER_MS:
                mind.filled = self._fill(mind)
        elif control.kind == stage_pb2.Control.KIND_SKIP_SILENCE and control.start_ms == mind.start_ms:
            count = min((control.end_ms - control.start_ms) * PER_MS, mind.filled, mind.count)
            count = max(0, count - count % PER_MS)
            if count:
                mind.parts, mind.filled = [np.concatenate(mind.parts)[count:]], 0
                mind.count, mind.before = mind.count - count, mind.before + count

    def _fill(self, mind: _Mind) -> int:
        """Closes the open unit with silence behind whole milliseconds of sound: so many samples of it."""
        sound = np.concatenate([np.zeros(0, np.float32), *mind.parts])
        real = mind.count - mind.count % PER_MS
        silence, rest = np.zeros(self._unit - real, np.float32), sound[real:]
        start_ms, mind.before = mind.start_ms, mind.before + real
        self._complete(mind, np.concatenate([sound[:real], silence]), start_ms)
        mind.parts, mind.count = ([rest], len(rest)) if len(rest) else ([], 0)
        return len(silence)

    def _complete(self, mind: _Mind, samples: Samples, start_ms: int) -> None:
        """The open unit is whole, and the timeline has its real samples."""
        mind.waiting.append(_Heard(samples, start_ms, mind.start_ms))
        mind.parts, mind.count, mind.filled = [], 0, 0

    def _see(self, slot: Slot, mind: _Mind, append: Append) -> None:
        assert append.payload is not None
        data = append.payload.image.data
        if data.startswith(MAGIC) and not data.endswith(BROKEN):
            mind.frames.append(append.payload.image.t_ms)
            return
        where, code = f"{append.edge}[{append.position}].data", stage_pb2.StageError.CODE_INVALID_ARGUMENT
        slot.fail(Label(slot.epoch), "no picture", code=code, param=where)

    def _decide(self, slot: Slot, mind: _Mind, heard: _Heard) -> None:
        script: DuplexScript = slot.config
        loud = float(np.sqrt(np.mean(heard.samples * heard.samples))) > script.rms
        act = self._act(script, mind, heard, loud)
        mind.voiced = (mind.voiced or loud) and heard.end_ms > script.listen_until_ms
        mind.forced, decided = False, Decided(mind.number, act)
        if act == "l":
            slot.decide(stage_pb2.Decision.KIND_LISTEN, heard.start_ms, decided_at_ms=heard.end_ms, label=Label(slot.epoch, mind.turn))
        else:
            decided = self._speak(slot, mind, heard, ends=act == "e")
        slot.emit(note(heard.start_ms, heard.end_ms, decided), Label(slot.epoch, mind.turn))
        slot.unit_done(mind.done, heard.end_ms - heard.start_ms, mind.label or Label(slot.epoch, mind.turn))
        mind.number += 1
        mind.done += 1

    def _act(self, script: DuplexScript, mind: _Mind, heard: _Heard, loud: bool) -> str:
        if mind.label is None and (mind.forced or heard.end_ms <= script.listen_until_ms):
            return "l"
        if mind.number < len(script.script):
            return script.script[mind.number]
        if mind.label is None and (loud or not mind.voiced):
            return "l"
        said = mind.said if mind.label is not None else 0
        return "e" if said + 1 >= script.turn_units else "s"

    def _speak(self, slot: Slot, mind: _Mind, heard: _Heard, *, ends: bool) -> Decided:
        script: DuplexScript = slot.config
        if mind.label is None:
            mind.turn += 1
            mind.label, mind.said, mind.voiced = Label(slot.epoch, mind.turn, f"t{mind.turn}"), 0, False
        label, unit = mind.label, mind.said
        mind.said += 1
        times = {"decided_at_ms": heard.end_ms, "label": label}
        slot.decide(stage_pb2.Decision.KIND_SPEAK, heard.start_ms, **times)  # type: ignore[arg-type]
        seen = [t_ms for t_ms in mind.frames if t_ms < heard.end_ms]
        mind.frames = [t_ms for t_ms in mind.frames if t_ms >= heard.end_ms]
        decided = Decided(mind.number, "e" if ends else "s", mind.turn, unit, script.words)
        told = recital(slot.session_id, script.previous, script.unit_log) if script.recite and not unit else ""
        before = [f"{len(seen)} seen."] * bool(seen) + [told] * bool(told)
        text = " ".join([*before, decided.text(slot.session_id)]) + ("" if ends else " ")
        slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text=text)), label, last=ends)
        hidden = np.array([[mind.turn], [unit]], "<f4")
        state = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=hidden.shape, data=hidden.tobytes())
        thought = stage_pb2.Thought(token_ids=[mind.turn, unit], hidden=state, turn_end=ends)
        slot.emit(stage_pb2.Payload(thought=thought), label, last=ends)
        if ends:
            slot.decide(stage_pb2.Decision.KIND_TURN_END, heard.start_ms, **times)  # type: ignore[arg-type]
            mind.label = None
        return decided
