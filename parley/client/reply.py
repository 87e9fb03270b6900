"""One response, from its creation to its end: what it says, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

from . import events
from .errors import EventsLost, RequestFailed
from .inbox import Lane
from .link import Link

Delta = events.AudioDelta | events.TranscriptDelta | events.TextDelta | events.ArgumentsDelta
Send = Callable[..., Awaitable[Any]]


class Reply:
    """A response that is being made. Iterate it for its audio and text deltas; the iteration ends with the response.

    Its events come here and not to the session, until it is done or its block is left. Other events wait for the session's own
    iteration; should they fill the inbox meanwhile, the oldest are dropped, and the session gets `events.Unread` in their place.
    """

    def __init__(self, link: Link, lane: Lane, send: Send, response: events.Response) -> None:
        self._link, self._lane, self._send = link, lane, send
        self.id = response.id
        self.response = response
        """As the server last told it; with its output and usage once it is done."""
        self.text = ""
        """What it has said or written so far."""

    @property
    def status(self) -> str:
        """in_progress, completed, cancelled, failed or incomplete."""
        return self.response.status

    @property
    def done(self) -> bool:
        return self.response.status != "in_progress"

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        """The next delta. Raises EventsLost when the reply cannot be whole any more, ConnectionLost or SessionClosed with the session."""
        while not self.done:
            event = await self._link.take(self._lane)
            match event:
                case events.TranscriptDelta() | events.TextDelta():
                    self.text += event.delta
                    return event
                case events.AudioDelta() | events.ArgumentsDelta():
                    return event
                case events.ResponseDone():
                    self.response = event.response
                    self._link.inbox.release(self._lane)
                case events.ResyncRequired() | events.Unread():
                    self._link.inbox.release(self._lane)
                    raise EventsLost(f"some events of {self.id} are lost")
        raise StopAsyncIteration

    async def cancel(self) -> None:
        """Ends this response; it is done when the server says so."""
        await self._send("response.cancel", response_id=self.id)

    async def wait(self) -> events.Response:
        """Takes all that is left of it and returns its end."""
        async for _ in self:
            pass
        return self.response

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._link.inbox.release(self._lane)


class Request:
    """A response to be asked for: await it to ask and get the client event's id, or enter it to ask and get the Reply."""

    def __init__(self, ask: Callable[[bool], Awaitable[tuple[str, Lane]]], link: Link, send: Send) -> None:
        self._ask, self._link, self._send = ask, link, send
        self._reply: Reply | None = None

    def __await__(self) -> Generator[Any, None, str]:
        return self._asked().__await__()

    async def _asked(self) -> str:
        return (await self._ask(False))[0]

    async def __aenter__(self) -> Reply:
        """Returns when the response is created. Raises RequestFailed when the server refuses, EventsLost when its answer is lost."""
        _, lane = await self._ask(True)
        try:
            match await self._link.take(lane):
                case events.ResponseCreated(response=response) | events.ResponseDone(response=response):
                    self._reply = Reply(self._link, lane, self._send, response)
                    return self._reply
                case events.Error(error=error):
                    raise RequestFailed(error.message, error.code or "")
            raise EventsLost("the answer to the request is lost")
        except BaseException:
            self._link.inbox.release(lane)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._reply is not None:
            await self._reply.__aexit__(kind, error, trace)
