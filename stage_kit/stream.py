"""One stream, a Converse call or a numbered one of a Carry: what is to be written next. At most one session is attached to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from parley_stage.v1 import stage_pb2

from stage_kit.errors import Refusal

if TYPE_CHECKING:
    from stage_kit.host import Host
    from stage_kit.session import Session


class Stream:
    """Answers first, then outputs as far as credit goes; a cumulative receipt rides ahead of either, or leaves when it is due."""

    def __init__(self, replies: int, wake: Callable[[], None]) -> None:
        """`replies`: most answers that may wait to be written. `wake` is called when there may be something to write, or the end."""
        self.session: Session | None = None
        self.host: Host | None = None
        """The stage that its first message named."""
        self.wake = wake
        self._replies: deque[stage_pb2.FromStage] = deque()
        self._bound = replies
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
        self.wake()

    def refuse(self, refusal: Refusal, placement: int, label: stage_pb2.Label | None, *, session_ended: bool = False) -> None:
        """Answers with a typed error, and ends the stream if that is its meaning."""
        self.reply(stage_pb2.FromStage(placement=placement, error=refusal.proto(label, session_ended=session_ended)))
        if refusal.ends_stream:
            self.end()

    def end(self) -> None:
        """What was answered is still written, then the stream ends."""
        self._ended = True
        self.wake()

    def read_out(self) -> None:
        """The caller will send nothing more; the stream ends when what it waits for was answered."""
        self._read_out = True
        self.wake()

    @property
    def over(self) -> bool:
        """True when nothing will be written any more, once `take` has nothing."""
        if self._ended or self._broken:
            return True
        return self._read_out and (self.session is None or not self.session.is_answering())

    def leave(self) -> None:
        """Nobody reads it any more; the session stays."""
        self._ended = True
        if self.session is not None:
            self.session.detach(self)

    def take(self) -> stage_pb2.FromStage | None:
        """The next message to write; None: nothing for now."""
        if self._broken:
            return None
        session = self.session if not self._ended else None
        if session is not None:
            receipt = session.take_receipt(riding=bool(self._replies) or session.has_output())
            if receipt is not None:
                return receipt
        if self._replies:
            return self._replies.popleft()
        return session.take_output() if session is not None else None
