"""A session's line to the server: it reads and writes, and when the connection is lost it comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from . import events
from .acks import Acks
from .connection import Connection, Dialer
from .entries import AudioFormat, Done
from .errors import ConnectionLost, OutageTooLong, ParleyError, ProtocolError, ResumeFailed, SessionClosed, TakenOver
from .inbox import Inbox, Lane
from .outbox import Outbox
from .resumption import COMES_BACK, Resumption, Return

State = Literal["connected", "reconnecting", "ended"]
OnState = Callable[[State], None]

TAKEN_OVER = "session_taken_over"
UNREADABLE = "input_refused"
"""The model could not read what the server had taken: it counts."""
_OF_THE_LINE = (events.Resumed, events.Replaced, events.Durability)
"""Told of the connection: in the place of no event of the session."""


class Link:
    """One conversation over as many connections as it takes. What is received goes to the inbox, once and in order."""

    def __init__(self, dialer: Dialer, connection: Connection, created: events.SessionCreated, on_state: OnState | None) -> None:
        limits = self._limits = dialer.limits
        self._connection, self._on_state = connection, on_state
        token = created.session.pop("resume_token", None)
        resumable = dialer.resume and isinstance(token, str) and token
        self._resumption = Resumption(dialer, str(created.session.get("id") or ""), token) if resumable else None
        self._last = self._announced = events.number(created) or 0
        self._unnumbered = 0
        self._replaced = self._failed = False
        self._resumed: events.Resumed | None = None
        self._replayed = asyncio.Event()
        self.inbox = Inbox(limits.inbox_bytes)
        self._outbox = Outbox(AudioFormat.of(created.session) or AudioFormat(), limits, keeps=self.resumable)
        self._acks = Acks(self.inbox, self._outbox.filled.set, limits.ack_events, limits.ack_interval_s)
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._writing = True
        self._held_since = 0.0
        self._end: Exception | None = None
        self._to("connected")
        self._running = asyncio.create_task(self._run(), name="parley session")

    @property
    def resumable(self) -> bool:
        """Whether the server lets this client come back."""
        return self._resumption is not None

    # what the session uses

    async def say_audio(self, event_id: str, pcm: bytes) -> None:
        """Returns when it is written, or kept for the next connection. Raises OutageTooLong, or what ended the session."""
        async with self._turn:
            await self._room()
            done = self._done()
            if not self._outbox.add_audio(event_id, pcm, done):
                return
        if done is not None:
            await done

    async def show(self, event_id: str, picture: bytes, max_slices: int) -> None:
        """The same for a camera frame."""
        async with self._turn:
            await self._room()
            done = self._done()
            self._outbox.add_picture(event_id, picture, max_slices, done)
        if done is not None:
            await done

    async def say(self, type: str, event_id: str, fields: dict[str, Any]) -> None:
        """The same for any other client event."""
        async with self._turn:
            await self._room()
            done = self._done()
            self._outbox.add_command(type, event_id, fields, done)
        if done is not None:
            await done

    async def take(self, lane: Lane) -> events.Event:
        """The next event of a lane of the inbox. Raises ProtocolError, or what ended the session."""
        event = await self.inbox.take(lane)
        if self.resumable:
            self._acks.took()
        return event

    def cut(self) -> None:
        """Drops the TCP connection without a word, as a dying network would."""
        self._connection.cut()

    async def close(self) -> None:
        """Ends the conversation; harmless when it has ended already."""
        self._finish(SessionClosed("the session is closed"))
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._connection.close()

    # writing

    async def _room(self) -> None:
        while True:
            if self._end is not None:
                raise self._end
            if self._writing or self._outbox.has_room():
                return
            left_s = self._held_since + self._limits.audio_ring_ms / 1000 - time.monotonic()
            if left_s <= 0:
                raise OutageTooLong(self._limits.audio_ring_ms)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def _done(self) -> Done | None:
        return asyncio.get_running_loop().create_future() if self._writing else None

    async def _write(self, connection: Connection) -> None:
        if self._resumed is not None:
            # the replay tells which of our audio was refused, and so what the server's count means
            await self._replayed.wait()
            at = self._resumed
            if (missing := self._outbox.rewind(at.input_samples, at.client_seq, at.input_frames)) is not None:
                lost = events.InputLost(samples=missing.samples, commands=missing.commands, frames=missing.frames)
                self.inbox.add(lost, None, 0)
            self._writing = True
            self._changed.set()
        with contextlib.suppress(ConnectionLost, SessionClosed):  # the reader hears of it, too
            while True:
                await self._outbox.filled.wait()
                self._outbox.filled.clear()
                await self._write_all(connection)

    async def _write_all(self, connection: Connection) -> None:
        while True:
            if (seq := self._acks.take_due()) is not None:
                await connection.send(msgspec.json.encode({"type": "session.event_ack", "seq": seq}).decode())
            if (entry := self._outbox.head()) is None:
                return
            await connection.send(entry.frame())
            self._outbox.written(entry)

    # reading, over one connection after the other

    async def _run(self) -> None:
        try:
            while True:
                lost = await self._serve(self._connection)
                if (resumption := self._may_come_back(lost)) is None:
                    raise self._verdict(lost)
                self._held_since, self._writing = time.monotonic(), False
                self._to("reconnecting")
                self._outbox.release()
                self._go_on(await resumption.come_back(lost, self._last, self._unnumbered))
                self._to("connected")
        except Exception as end:
            self._finish(end)
            if not isinstance(end, ParleyError):
                raise

    async def _serve(self, connection: Connection) -> ConnectionLost:
        writing = asyncio.create_task(self._write(connection), name="parley writer")
        writing.add_done_callback(self._writer_ended)
        try:
            while True:
                self._receive(await connection.receive())
                if self.inbox.full:
                    await self._room_or_lost(connection)
        except ConnectionLost as lost:
            return lost
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _writer_ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and (failure := writing.exception()) is not None:
            self._finish(failure if isinstance(failure, Exception) else RuntimeError(repr(failure)))
            self._connection.cut()

    async def _room_or_lost(self, connection: Connection) -> None:
        """A reader that lags behind must not hide that the connection is gone."""
        waiting = {asyncio.create_task(self.inbox.room()), asyncio.create_task(connection.wait_closed())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _may_come_back(self, lost: ConnectionLost) -> Resumption | None:
        failed_again = lost.code == 1011 and self._failed
        self._failed = lost.code == 1011
        return self._resumption if lost.code in COMES_BACK and not self._replaced and not failed_again else None

    def _verdict(self, lost: ConnectionLost) -> ConnectionLost:
        if self._replaced or lost.reason == TAKEN_OVER:
            return TakenOver(lost.code, lost.reason)
        return ResumeFailed(lost, "internal_error") if self.resumable and lost.code == 1011 else lost

    def _go_on(self, returned: Return) -> None:
        resumed = self._resumed = returned.resumed
        self._connection, self._announced = returned.connection, resumed.seq
        self._held_since = time.monotonic()
        self._replayed.clear()
        for event in returned.before:
            self._sort_in(event, 0)
        self.inbox.add(resumed, None, 0)
        self._note_replay()

    def _note_replay(self) -> None:
        resumed = self._resumed
        if resumed and (self._last >= resumed.seq or resumed.first_seq is None or resumed.first_seq > resumed.seq):
            self._replayed.set()

    def _receive(self, frame: bytes) -> None:
        try:
            event = events.decode(frame)
        except ProtocolError as error:
            self.inbox.add(error, None, len(frame))
            return
        if self.resumable:
            self._sort_in(event, len(frame))
        else:
            self.inbox.add(event, None, len(frame))

    def _sort_in(self, event: events.Event, size: int) -> None:
        """Drops what was received before, tells of what is missing."""
        number = events.number(event)
        match event:
            case events.Error(error=error) if error.event_id and error.code != UNREADABLE:
                self._outbox.refused(error.event_id)
            case events.Replaced():
                self._replaced = True
            case events.ResyncRequired(first_seq=first) if number is None or number > self._last:
                # what it stands for is not missing without a word
                self._last, self._unnumbered = (first if number is None else number) - 1, 0
        if number is not None and isinstance(event, _OF_THE_LINE) and number != self._last + 1:
            number = None
        if number is None:
            self._unnumbered += not isinstance(event, _OF_THE_LINE)
        elif number <= self._last:
            return
        else:
            # what came without a number, came in the place of one
            if number > self._last + 1 + self._unnumbered:
                self.inbox.add(events.ResyncRequired(reason="sequence_jump", first_seq=number), None, 0)
            self._last, self._unnumbered = number, 0
        if isinstance(event, events.NumberUsed):
            self.inbox.pass_over(number or 0)
        else:
            self.inbox.add(event, number, size)
        self._note_replay()
        if number is None or number > self._announced:
            self._failed = False
            if self._resumption:
                self._resumption.proven()

    # states

    def _to(self, state: State) -> None:
        self._changed.set()
        if self._on_state is not None:
            asyncio.get_running_loop().call_soon(self._on_state, state)

    def _finish(self, end: Exception) -> None:
        if self._end is not None:
            return
        self._end = end
        self._acks.stop()
        self.inbox.end(end)
        self._outbox.release(end)
        self._to("ended")
