"""Which pages hold a session's tokens, and how far its window has moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torch_kit.pages import PagePool, PoolExhausted
from torch_kit.rope import MAX_POSITION

NEVER = int(np.iinfo(np.int32).max)
"""An order that no token has."""
Ints = NDArray[np.int32]


class PositionsExhausted(MemoryError):
    """A session has so many tokens behind it that no rotation is made for the next ones. Nothing changed."""


@dataclass(slots=True, eq=False)
class Appended:
    """Tokens that got a place and are to be forwarded next: a row of the coming batch. Void as soon as its table changes again."""

    table: PageTable
    version: int
    count: int
    """Tokens."""
    place: int
    """Page * page size + offset of the first."""
    position: int
    """Absolute position of the first."""
    order: int
    """Valid tokens before the first, over the table's pages from left to right."""
    gap: int
    """Subtracted from a position to reach prefix keys."""

    scattered: Ints | None = None
    """Where they do not lie one behind the other: [n] each one's place."""

    @property
    def slots(self) -> Ints:
        """[n] page * page size + offset."""
        return np.arange(self.place, self.place + self.count, dtype=np.int32) if self.scattered is None else self.scattered


class SharedPrefix:
    """Full or partly filled pages of a prefix that many sessions read. Counted: the pages go back when the last holder lets go."""

    def __init__(self, pool: PagePool, pages: list[int], stops: list[int]) -> None:
        self.pool = pool
        self.pages = tuple(pages)
        self.stops = tuple(stops)
        self.length = sum(stops)
        self.holders = 1
        """Its maker, and every table that is attached."""

    def hold(self) -> None:
        """One more holder. Raises ValueError when the pages are gone."""
        if self.holders == 0:
            raise ValueError("prefix: its pages were given back")
        self.holders += 1

    def release(self) -> None:
        """One holder less."""
        self.holders -= 1
        if self.holders == 0:
            self.pool.put(list(self.pages))
            self.pool.unreserve(len(self.pages))


class PageTable:
    """The pages of one session, in order: prefix pages, then window pages.

    Keys are never rewritten. A window token keeps its absolute position for ever; `cut` drops the oldest ones. A prefix token's position is
    its index. With `gap` = (position of the oldest kept window token) - (length of the prefix), a query at absolute position p sees window
    keys at distance p - k, and prefix keys at (p - gap) - k: the distances of closed-up positions. So a query is rotated twice, at p and at
    p - gap.

    `reserve` pages are set aside for the session until `release`; an append beyond them raises PoolExhausted and changes nothing. Shared
    pages do not count.
    """

    def __init__(self, pool: PagePool, reserve: int) -> None:
        pool.reserve(reserve)
        self.pool = pool
        self.version = 0
        """Rises with every change."""
        self.prefix_length = 0
        self.position = 0
        """Absolute position of the next window token."""
        self.window_length = 0
        self._reserve = reserve
        self._own = 0
        self._shared: SharedPrefix | None = None
        self._prefix_pages = 0
        self._pages: list[int] = []
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._listed: Ints | None = None

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.prefix_length + self.window_length

    @property
    def window_start(self) -> int:
        """Absolute position of the oldest kept window token."""
        return self.position - self.window_length

    @property
    def gap(self) -> int:
        """How far window positions are ahead of closed-up positions."""
        return self.window_start - self.prefix_length

    @property
    def page_count(self) -> int:
        """Pages listed, shared ones included."""
        return len(self._pages)

    @property
    def prefix_pages(self) -> int:
        """The first so many pages are the prefix."""
        return self._prefix_pages

    @property
    def pages(self) -> list[int]:
        """[page_count] page numbers."""
        return self._pages

    @property
    def starts(self) -> list[int]:
        """[page_count] offset of a page's first valid token."""
        return self._starts

    @property
    def stops(self) -> list[int]:
        """[page_count] offset after a page's last valid token."""
        return self._stops

    def listed(self, width: int) -> Ints:
        """int32 [4, width], to be read at once: pages, starts, stops, and the order of each page's first valid token, which is NEVER where
        there is no page. `width`: at least page_count."""
        found = self._listed
        if found is None or found.shape[1] != width:
            count = len(self._pages)
            found = np.zeros((4, width), dtype=np.int32)
            found[:3, :count] = self._pages, self._starts, self._stops
            lengths = found[2, :count] - found[1, :count]
            found[3, :count] = np.cumsum(lengths) - lengths
            found[3, count:] = NEVER
            self._listed = found
        elif self._stops:
            # appends that need no new page change nothing else
            found[2, len(self._stops) - 1] = self._stops[-1]
        return found

    def append(self, count: int) -> Appended:
        """Places for the next `count` window tokens. Raises PoolExhausted and PositionsExhausted."""
        if self.position + count > MAX_POSITION + 1:
            raise PositionsExhausted(f"positions: no more than {MAX_POSITION + 1} tokens of one session")
        first = self.window_length
        place, scattered = self._extend(len(self._pages), self._prefix_pages, count)
        position = self.position
        self.window_length = first + count
        self.position = position + count
        self.version += 1
        gap = position - first - self.prefix_length
        return Appended(self, self.version, count, place, position, self.prefix_length + first, gap, scattered)

    def append_prefix(self, count: int) -> Appended:
        """Places for `count` more tokens at the end of the prefix, which see the prefix only. Raises PoolExhausted."""
        shared = len(self._shared.pages) if self._shared is not None else 0
        before = len(self._pages)
        place, scattered = self._extend(self._prefix_pages, shared, count)
        self._listed = None
        order = self.prefix_length
        self._prefix_pages += len(self._pages) - before
        self.prefix_length += count
        if self.window_length == 0:
            self.position = self.prefix_length
        self.version += 1
        return Appended(self, self.version, count, place, order, order, 0, scattered)

    def rewind(self, count: int) -> None:
        """Takes back the last `count` window tokens, as if they had never been appended. Raises ValueError."""
        if not 0 <= count <= self.window_length:
            raise ValueError(f"count: {count} of {self.window_length} window tokens")
        self.version += 1
        self.window_length -= count
        self.position -= count
        while count:
            last = len(self._pages) - 1
            dropped = min(count, self._stops[last] - self._starts[last])
            self._stops[last] -= dropped
            count -= dropped
            if self._stops[last] == self._starts[last]:
                self._drop(last, last + 1)

    def cut(self, start: int, stop: int) -> None:
        """Drops the window tokens at absolute positions `start` to `stop`, which must be the oldest ones. Raises ValueError."""
        if start != self.window_start or not start <= stop <= self.position:
            raise ValueError(f"cut: {start} to {stop} does not begin the window {self.window_start} to {self.position}")
        self.version += 1
        count = stop - start
        self.window_length -= count
        self._listed = None
        first = end = self._prefix_pages
        while count:
            dropped = min(count, self._stops[end] - self._starts[end])
            self._starts[end] += dropped
            count -= dropped
            if self._starts[end] == self._stops[end]:
                end += 1
        self._drop(first, end)

    def cut_prefix(self, keep: int) -> None:
        """Drops the prefix tokens after the first `keep`; never shared ones. Raises ValueError."""
        shared = self._shared.length if self._shared is not None else 0
        if not shared <= keep <= self.prefix_length:
            raise ValueError(f"keep: {keep} of {self.prefix_length} prefix tokens, {shared} of them shared")
        self.version += 1
        count = self.prefix_length - keep
        end = stop = self._prefix_pages
        while count:
            dropped = min(count, self._stops[end - 1])
            self._stops[end - 1] -= dropped
            count -= dropped
            if self._stops[end - 1] == 0:
                end -= 1
        self._drop(end, stop)
        self._prefix_pages = end
        self.prefix_length = keep
        self._listed = None
        if self.window_length == 0:
            self.position = keep

    def share_prefix(self) -> SharedPrefix:
        """The prefix, for other sessions to read until its maker releases it; this table reads it on. ValueError: empty, or shared."""
        if self._shared is not None or not self._prefix_pages:
            raise ValueError("prefix: empty or shared already")
        count = self._prefix_pages
        self._own -= count
        self._reserve -= count
        self._shared = SharedPrefix(self.pool, self._pages[:count], self._stops[:count])
        self._shared.hold()
        return self._shared

    def attach(self, prefix: SharedPrefix) -> None:
        """Begins with a shared prefix. Raises ValueError unless the table is empty and of the same pool."""
        if self._pages or prefix.pool is not self.pool:
            raise ValueError("prefix: the table is not empty or belongs to another pool")
        prefix.hold()
        self.version += 1
        self._shared = prefix
        self._pages, self._stops = list(prefix.pages), list(prefix.stops)
        self._starts = [0] * len(self._pages)
        self._listed = None
        self._prefix_pages = len(self._pages)
        self.prefix_length = self.position = prefix.length

    def clear(self) -> None:
        """Forgets everything; the reservation stays."""
        shared = len(self._shared.pages) if self._shared is not None else 0
        self.version += 1
        self._drop(shared, len(self._pages))
        if self._shared is not None:
            self._shared.release()
            self._shared = None
        self._pages, self._starts, self._stops = [], [], []
        self._prefix_pages = self.prefix_length = self.window_length = self.position = 0

    def release(self) -> None:
        """Forgets everything and gives the reservation up; the table is of no use afterwards."""
        self.clear()
        self.pool.unreserve(self._reserve)
        self._reserve = 0

    def _extend(self, end: int, first: int, count: int) -> tuple[int, Ints | None]:
        """Fills the page before list index `end`, unless that is not above `first` (then it is another region's), and inserts new ones.

        The first place, and all of them where they are on more than one page.
        """
        if count < 1:
            raise ValueError("count: less than one token")
        size = self.pool.page
        room = size - self._stops[end - 1] if end > first else 0
        if count <= room:
            # most appends, and many of them in a step
            base = self._pages[end - 1] * size + self._stops[end - 1]
            self._stops[end - 1] += count
            return base, None
        wanted = -(-max(count - room, 0) // size)
        if self._own + wanted > self._reserve:
            raise PoolExhausted(wanted, self._reserve - self._own)
        pages = [self.pool.take() for _ in range(wanted)]
        self._own += wanted
        self._listed = None
        pieces: list[Ints] = []
        if room:
            filled = min(room, count)
            base = self._pages[end - 1] * size + self._stops[end - 1]
            pieces.append(np.arange(base, base + filled, dtype=np.int32))
            self._stops[end - 1] += filled
            count -= filled
        for index, page in enumerate(pages, end):
            filled = min(size, count)
            pieces.append(np.arange(page * size, page * size + filled, dtype=np.int32))
            self._pages.insert(index, page)
            self._starts.insert(index, 0)
            self._stops.insert(index, filled)
            count -= filled
        return int(pieces[0][0]), None if len(pieces) == 1 else np.concatenate(pieces)

    def _drop(self, first: int, end: int) -> None:
        self.pool.put(self._pages[first:end])
        self._own -= end - first
        self._listed = None
        del self._pages[first:end], self._starts[first:end], self._stops[first:end]
