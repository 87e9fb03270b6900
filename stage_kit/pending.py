"""Appends that wait for the engine: written by the event loop, read by the engine's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Label


class Waiting(msgspec.Struct):
    """An accepted append, and when it came (monotonic seconds)."""

    append: stage_pb2.Append
    label: Label
    size: int
    arrived: float
    committed: bool = False
    """A commit queued behind it wants it: a clear that comes later does not reach back over that."""

    @property
    def commits(self) -> bool:
        payload = self.append.payload
        return payload.WhichOneof("value") == "control" and payload.control.kind == stage_pb2.Control.KIND_COMMIT

    def stale(self, epoch: int, input_generation: int) -> bool:
        """True when its lane's fence has passed it."""
        if self.append.lane == stage_pb2.LANE_INPUT:
            return self.append.input_generation < input_generation and not self.committed
        return self.label.epoch < epoch


class Pending:
    """A session's queue in order of arrival, with its size in bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Waiting] = deque()
        self.bytes = 0
        self.turned_back = False
        """Set by the event loop when an append found no room; reset by whoever reports the room."""

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, item: Waiting) -> None:
        """Queues it last."""
        with self._lock:
            self._queue.append(item)
            self.bytes += item.size
            if item.commits:
                for waiting in self._queue:
                    waiting.committed = True

    def pop(self) -> Waiting | None:
        """The oldest, or None."""
        with self._lock:
            if not self._queue:
                return None
            item = self._queue.popleft()
            self.bytes -= item.size
            return item

    def pop_if(self, wanted: Callable[[Waiting], bool]) -> Waiting | None:
        """The oldest, if it is wanted, or None."""
        with self._lock:
            if not self._queue or not wanted(self._queue[0]):
                return None
            item = self._queue.popleft()
            self.bytes -= item.size
            return item

    def drop_stale(self, epoch: int, input_generation: int) -> None:
        """Forgets what a fence has passed; everything else keeps its order."""
        with self._lock:
            self._queue = deque(item for item in self._queue if not item.stale(epoch, input_generation))
            self.bytes = sum(item.size for item in self._queue)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._queue.clear()
            self.bytes = 0
