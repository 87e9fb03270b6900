"""What an engine is: a card, and the calls that the kit makes on it."""

# ruff: noqa: B027  (hooks that an engine may leave out)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

if TYPE_CHECKING:
    from stage_kit.slot import Slot

Samples = NDArray[np.float32]
Wait = Callable[[Callable[[], bool]], None]
"""What is done while a device works, until it says that it is done; it asks often."""


class InvalidConfig(ValueError):
    """A stage configuration is refused: `param` names the field at fault, `why` is one line without user content."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param
        self.why = why


class StepFailed(RuntimeError):
    """Raised from `Engine.step` when the engine knows which slot is at fault, of this batch or one before: only that slot's work fails."""

    def __init__(self, slot: Slot, why: str) -> None:
        super().__init__(why)
        self.slot = slot
        self.why = why


class SessionOver(StepFailed):
    """Raised from `receive` or `step`: the engine cannot go on with this session, which alone ends. `code` is a StageError.Code."""

    def __init__(self, slot: Slot, why: str, *, code: int = stage_pb2.StageError.CODE_ENGINE_FAILED, param: str = "") -> None:
        super().__init__(slot, why)
        self.code = code
        self.param = param


class EngineLost(RuntimeError):
    """The engine's process cannot go on: see `Engine.fatal`."""


class Card(msgspec.Struct, frozen=True):
    """What one stage of a replica offers."""

    stage: str
    engine: str
    model: str
    reads: tuple[str, ...]
    """Payload kinds, by oneof field name."""
    makes: tuple[str, ...]
    slots: int = 16
    """Most sessions at once."""
    batch: int = 1
    """Most slots in one step."""
    input_rate: int = 0
    """Hz of the float32 samples that client audio is turned into; 0: reads none."""
    output_rate: int = 0
    """Hz of the float32 samples given to `Slot.emit_audio`; 0: makes no client audio."""
    piece_ms: int = 0
    """Longest piece of client audio in one chunk, if much may be unheard; 100 ms in any case. Stage, gateway and client pay for each piece,
    hardly for its length."""
    unit_ms: int = 0
    kv_bytes: int = 0
    kv_bytes_per_session: int = 0
    capabilities: tuple[str, ...] = ()


class Label(msgspec.Struct, frozen=True):
    """What work belongs to: epoch by order, turn and response by equality. An empty response id is the input lane."""

    epoch: int = 0
    turn: int = 0
    response_id: str = ""

    @classmethod
    def of(cls, label: stage_pb2.Label) -> Label:
        """The label of a message."""
        return cls(label.epoch, label.turn, label.response_id)

    def proto(self) -> stage_pb2.Label:
        """The same as a message."""
        return stage_pb2.Label(epoch=self.epoch, turn=self.turn, response_id=self.response_id)


class Append(msgspec.Struct):
    """One append as the engine takes it."""

    edge: str
    position: int
    label: Label
    last: bool
    payload: stage_pb2.Payload | None
    samples: Samples | None = None
    """float32 [n] at card.input_rate when the payload is audio; n differs from chunk to chunk by the filter's delay."""
    start_ms: int = 0
    """Where that audio starts on the input timeline (client samples, before resampling)."""
    end_ms: int = 0
    arrived: float = 0.0
    """Monotonic second at which it came to the service; 0.0: it did not come by the kit."""


class Engine(ABC):
    """A model or detector in this process. Every method runs on the engine's one thread, except `validate` (pure, any thread)."""

    card: Card
    _waits: Wait | None = None
    _together: Callable[[], AbstractContextManager[None]] = nullcontext

    def on_wait(self, call: Wait) -> None:
        """What `wait` does (the kit's own call)."""
        self._waits = call

    def wait(self, done: Callable[[], bool]) -> None:
        """For a `step` to call where it would only wait for its device: until it is `done`, sound that comes is received (`receive`, and
        `failed` where that raised), and nothing else happens. `done` is asked first, and between two pieces of sound: each is short, and
        every session gives one in its turn. A session that ends so is stepped to the end, and not again."""
        if self._waits is not None:
            self._waits(done)

    def on_together(self, call: Callable[[], AbstractContextManager[None]]) -> None:
        """What `together` gives (the kit's own call)."""
        self._together = call

    def together(self) -> AbstractContextManager[None]:
        """For what is emitted of many sessions in a row: it leaves at the end, in order. While what was emitted first is sent, whoever goes
        on emitting waits for the interpreter again and again."""
        return self._together()

    def load(self) -> None:
        """Reads the model and warms it up; the service is ready when it returns."""

    @abstractmethod
    def validate(self, config: dict[str, Any]) -> Any:
        """The typed configuration. Raises InvalidConfig."""

    def open(self, slot: Slot) -> None:
        """Readies a session: sets `slot.state`. What it raises refuses the session (MemoryError: no room), and `close` is not called."""

    def close(self, slot: Slot) -> None:
        """Frees what `open` took. Called once; again only if it raised."""

    def configured(self, slot: Slot) -> None:
        """`slot.config` was replaced; takes effect with the next `receive`."""

    @abstractmethod
    def receive(self, slot: Slot, append: Append) -> None:
        """Takes one append in; cheap; may emit."""

    def cleared(self, slot: Slot) -> None:
        """The client cleared its input: forget what was not committed."""

    def cancelled(self, slot: Slot) -> None:
        """`slot.epoch` rose: drop what belongs to lower epochs."""

    def failed(self, slot: Slot, label: Label) -> None:
        """The kit ended this label's work after an exception: drop it."""

    def fatal(self, error: Exception) -> bool:
        """True: nothing that this process does on its device can succeed any more. It ends, so that another takes its place."""
        return False

    def ready(self, slot: Slot) -> float | None:
        """None: nothing to do; else how urgent a step is, lower first."""
        return None

    def due(self, slot: Slot) -> float | None:
        """Monotonic second at which `ready` should be asked again; None: not before something happens."""
        return None

    def kv_pages(self) -> tuple[int, int] | None:
        """Pages of its KV cache that sessions hold, and all of them. From any thread; None: it has none, or none yet."""
        return None

    def step(self, slots: list[Slot]) -> None:
        """One step for up to card.batch ready slots.

        After an exception that names no slot the kit steps every slot of the batch alone, and what raises alone fails alone: change a
        slot's state only after the computation that may fail.
        """

    def rest(self) -> None:
        """Nobody is ready: what a step put off is done. Raises StepFailed where one slot's part of it failed."""


class RemoteEngine(ABC):
    """An outside service. Everything runs on the event loop; the appends of one response are answered in order, by one task."""

    card: Card

    async def load(self) -> None:
        """Probes the service; ready follows."""

    @abstractmethod
    def validate(self, config: dict[str, Any]) -> Any:
        """The typed configuration. Raises InvalidConfig."""

    @abstractmethod
    async def answer(self, slot: Slot, append: Append) -> None:
        """Answers one append by emitting; is cancelled when the epoch rises. Large outputs await `slot.room()` in between."""
