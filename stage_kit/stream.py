"""One Converse stream: what is to be written next. It holds no session; at most one session is attached to it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from parley_stage.v1 import stage_pb2

from stage_kit.errors import Refusal

if TYPE_CHECKING:
    from stage_kit.session import Session


class Stream:
    """Answers first, then outputs as far as credit goes; a cumulative receipt rides ahead of either, or leaves when it is due."""

    def __init__(self, replies: int) -> None:
        self.session: Session | None = None
        self._replies: deque[stage_pb2.FromStage] = deque()
        self._bound = replies
        self._wake = asyncio.Event()
        self._ended = False
        self._broken = False
        self._read_out = False

    @property
    def open(self) -> bool:
        """False once it was ended: nothing more is obeyed from it."""
        return not self._ended and not self._broken

    def reply(self, message: stage_pb2.FromStage) -> None:
        """Queues an answer. A reader that leaves too many unread loses the stream, not the session."""
        if self._ended or self._broken:
            return
        if len(self._replies) >= self._bound:
            self._broken = True
        else:
            self._replies.append(message)
        self._wake.set()

    def refuse(self, refusal: Refusal, placement: int, label: stage_pb2.Label | None, *, session_ended: bool = False) -> None:
        """Answers with a typed error, and ends the stream if that is its meaning."""
        self.reply(stage_pb2.FromStage(placement=placement, error=refusal.proto(label, session_ended=session_ended)))
        if refusal.ends_stream:
            self.end()

    def end(self) -> None:
        """What was answered is still written, then the stream ends."""
        self._ended = True
        self._wake.set()

    def read_out(self) -> None:
        """The caller will send nothing more; the stream ends when what it waits for was answered."""
        self._read_out = True
        self._wake.set()

    def wake(self) -> None:
        """There may be something to write."""
        self._wake.set()

    async def next(self) -> stage_pb2.FromStage | None:
        """The next message to write; None at the end."""
        while not self._broken:
            message = self._take()
            if message is not None:
                return message
            session = self.session
            if self._ended or (self._read_out and (session is None or not session.is_answering())):
                return None
            self._wake.clear()
            await self._wake.wait()
        return None

    def _take(self) -> stage_pb2.FromStage | None:
        session = self.session if not self._ended else None
        if session is not None:
            receipt = session.take_receipt(riding=bool(self._replies) or session.has_output())
            if receipt is not None:
                return receipt
        if self._replies:
            return self._replies.popleft()
        return session.take_output() if session is not None else None
