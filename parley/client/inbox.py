"""What the server said and nobody has taken yet, in bounded memory: a lane for the session, and one for each reply that somebody reads."""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import merge

from msgspec import Struct

from . import events
from .events import Event

REQUEST_KEY = "parley_request"
"""Metadata key by which a response is known to be the answer to a request."""


class Received(Struct):
    """An event, or the error that stands for one. through: all events up to this number are taken once this one and those before are."""

    event: Event | Exception
    through: int
    size: int
    order: int


class Lane:
    """Events for one reader, in order."""

    def __init__(self) -> None:
        self.entries: deque[Received] = deque()
        self.filled = asyncio.Event()
        self.readers = 0
        self.skipped = 0

    def add(self, entry: Received) -> None:
        self.entries.append(entry)
        self.filled.set()


class Inbox:
    """Holds up to limit_bytes. When it is full while a reader waits for its own lane, the others lose their oldest, and are told so."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = self._order = self._received = 0
        self.main = Lane()
        self._requests: dict[str, Lane] = {}
        self._responses: dict[str, Lane] = {}
        self._room = asyncio.Event()
        self._end: Exception | None = None

    # the connection's side

    def add(self, event: Event | Exception, number: int | None, size: int) -> None:
        """Hands an event to the lane that it belongs to."""
        through = number if number is not None else self._received + 1
        self.pass_over(number or 0)
        self._order += 1
        entry = Received(event, through, size, self._order)
        self._size += size
        if isinstance(event, events.ResyncRequired):
            # no reply can promise to be whole after it
            for lane in self._reply_lanes():
                lane.add(Received(event, through, 0, self._order))
            self._requests.clear()
            self._responses.clear()
        self._lane_of(event).add(entry)
        self._make_room()

    def pass_over(self, number: int) -> None:
        """The event of this number has arrived."""
        self._received = max(self._received, number)

    @property
    def full(self) -> bool:
        return self._size >= self._limit

    async def room(self) -> None:
        """Waits until somebody has taken enough."""
        while self.full and self._end is None:
            self._room.clear()
            await self._room.wait()

    def end(self, error: Exception) -> None:
        """Nothing more arrives: readers get what is there, then this."""
        self._end = self._end or error
        self._room.set()
        for lane in (self.main, *self._reply_lanes()):
            lane.filled.set()

    # the readers' side

    async def take(self, lane: Lane) -> Event:
        """The next event of a lane. Raises ProtocolError in place of one that could not be read, and the end's error after the last."""
        while not lane.entries and not lane.skipped:
            if self._end is not None:
                raise self._end
            lane.filled.clear()
            lane.readers += 1
            try:
                self._make_room()
                await lane.filled.wait()
            finally:
                lane.readers -= 1
        if lane.skipped:
            count, lane.skipped = lane.skipped, 0
            return events.Unread(count=count)
        entry = lane.entries.popleft()
        self._shrink(entry)
        if isinstance(entry.event, Exception):
            raise entry.event
        return entry.event

    @property
    def taken(self) -> int:
        """The highest number up to which everything was taken."""
        waiting = [lane.entries[0].through - 1 for lane in (self.main, *self._reply_lanes()) if lane.entries]
        return min([self._received, *waiting])

    def lane_for_request(self, event_id: str) -> Lane:
        """For the response that will carry this event's id in its metadata, or for the refusal."""
        return self._requests.setdefault(event_id, Lane())

    def lane_for_response(self, response_id: str) -> Lane:
        """For what comes of this response from now on, and what of it was not taken yet."""
        lane = self._responses.setdefault(response_id, Lane())
        others: deque[Received] = deque()
        for entry in self.main.entries:
            own = isinstance(entry.event, Event) and events.response_of(entry.event) == response_id
            (lane.add if own else others.append)(entry)
        self.main.entries = others
        return lane

    def release(self, lane: Lane) -> None:
        """What is left in a lane, and what comes for it later, goes to the session."""
        for lanes in (self._requests, self._responses):
            for key in [key for key, one in lanes.items() if one is lane]:
                del lanes[key]
        if lane.entries:
            self.main.entries = deque(merge(self.main.entries, lane.entries, key=lambda entry: entry.order))
            lane.entries.clear()
            self.main.filled.set()

    def _reply_lanes(self) -> list[Lane]:
        return [*self._requests.values(), *self._responses.values()]

    def _lane_of(self, event: Event | Exception) -> Lane:
        match event:
            case events.ResponseCreated(response=response) | events.ResponseDone(response=response):
                asked = (response.metadata or {}).get(REQUEST_KEY, "")
                if (lane := self._requests.pop(asked, None)) is not None:
                    self._responses[response.id] = lane
                return self._responses.get(response.id, self.main)
            case events.Error(error=error):
                return self._requests.pop(error.event_id or "", self.main)
            case Event():
                return self._responses.get(events.response_of(event) or "", self.main)
        return self.main

    def _make_room(self) -> None:
        lanes = [self.main, *self._reply_lanes()]
        if not self.full or not any(lane.readers and not lane.entries for lane in lanes):
            return
        for lane in sorted(lanes, key=lambda lane: sum(entry.size for entry in lane.entries), reverse=True):
            while self.full and lane.entries:
                lane.skipped += 1
                self._shrink(lane.entries.popleft())

    def _shrink(self, entry: Received) -> None:
        self._size -= entry.size
        if not self.full:
            self._room.set()
