"""Pictures of one session on the threads that all sessions share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from threading import Lock

from thinker_svc.minicpmo45.frames import Picture

_Work = tuple[Future[Picture], Callable[[], Picture]]


@dataclass(slots=True)
class Line:
    """One picture after the other: a crowd of them has one thread at most, and those of others come in between."""

    _waiting: deque[_Work] = field(default_factory=deque)
    _busy: bool = False
    _lock: Lock = field(default_factory=Lock)

    def submit(self, executor: Executor, read: Callable[[], Picture]) -> Future[Picture]:
        """What `read` will give or raise. One that is cancelled before its turn is not read."""
        future: Future[Picture] = Future()
        with self._lock:
            self._waiting.append((future, read))
            begins, self._busy = not self._busy, True
        if begins:
            executor.submit(self._work, executor)
        return future

    def _work(self, executor: Executor) -> None:
        with self._lock:
            future, read = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(read())
            except Exception as error:
                future.set_exception(error)
        with self._lock:
            more = self._busy = bool(self._waiting)
        if more:
            executor.submit(self._work, executor)
