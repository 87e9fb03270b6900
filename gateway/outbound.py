"""What waits for the client's socket: in order, bounded in bytes, and able to forget the sound of a muted response."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class Frame(NamedTuple):
    text: str
    response_id: str
    """Set for reply audio only: what a mute looks at."""
    at: float
    """perf_counter of what caused it; 0.0 when not measured."""
    kind: str
    skipped: str = ""
    """What leaves in its place when it is muted, for clients that count; empty: nothing."""
    is_stand_in: bool = False
    """It leaves in the place of muted sound, once the response's end is settled."""
    plays_s: float = 0.0
    """Length of its sound."""

    @property
    def is_sound(self) -> bool:
        return bool(self.response_id) and not self.is_stand_in


class Outbound:
    """What waits for one socket; one writer drains it. Audio counts against the bound; control has a reserve on top."""

    RESERVE_BYTES = 65_536

    def __init__(self, max_bytes: int) -> None:
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._max = max_bytes
        self._muted: set[str] = set()
        self._wake = asyncio.Event()
        self._ended = False
        self.overflowed = False
        """The client does not read: the socket is to be closed."""
        self.left = False
        """The client is gone: nothing need be written any more."""
        self.turn_ended_at = 0.0
        self._playing, self._plays_until = "", 0.0
        self.broken_off = asyncio.Event()
        """Nothing more is to be written, not even what is queued or half on its way."""

    def leave(self) -> None:
        self.left = True
        self.break_off()

    def overflow(self) -> None:
        self.overflowed = True
        self.break_off()

    def break_off(self) -> None:
        self._frames.clear()
        self._bytes = 0
        self.end()
        self.broken_off.set()

    def put(self, frame: Frame) -> bool:
        """False when the reader is too slow: the frame was not taken."""
        if self._ended:
            return True
        if frame.response_id and frame.response_id in self._muted:
            frame = _stand_in(frame)
            if not frame.text:
                return True
        if self._bytes + len(frame.text) > self._max + (0 if frame.is_sound else self.RESERVE_BYTES):
            return False
        self._frames.append(frame)
        self._bytes += len(frame.text)
        self._wake.set()
        return True

    def mute(self, response_id: str) -> None:
        """Nothing of this response's sound leaves any more; everything else keeps its place.

        What tells a client that counts of it waits until `settle`, and all behind it: were this process gone before, somebody else would
        replay the sound.
        """
        self._muted.add(response_id)
        self._plays_until = 0.0
        if any(frame.response_id == response_id for frame in self._frames):
            told = (_stand_in(frame) if frame.response_id == response_id else frame for frame in self._frames)
            self._frames = deque(frame for frame in told if frame.text)
            self._bytes = sum(len(frame.text) for frame in self._frames)

    def settle(self, response_id: str) -> None:
        """The response's end was committed: nobody will replay its muted sound, and no frame of it will come."""
        self._muted.discard(response_id)
        self._wake.set()

    def end(self) -> None:
        """After what is queued, nothing comes."""
        self._ended = True
        self._wake.set()

    async def get(self) -> Frame | None:
        while not self._frames or self._frames[0].response_id in self._muted:
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame.text)
        return frame

    def gap_before(self, frame: Frame, now: float) -> float:
        """Sound was written: seconds for which the client had nothing left of the same reply to play, or less than 0. The network apart."""
        gap = now - self._plays_until if frame.response_id == self._playing else 0.0
        self._playing, self._plays_until = frame.response_id, max(now, self._plays_until) + frame.plays_s
        return gap

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def waiting_bytes(self) -> int:
        """Characters of all frames, which are bytes as long as nobody speaks of anything but ASCII."""
        return self._bytes

    @property
    def fullness(self) -> float:
        """Of the bound: 1.0 is where the next piece of sound ends the connection."""
        return self._bytes / self._max


def _stand_in(frame: Frame) -> Frame:
    return frame if frame.is_stand_in else Frame(frame.skipped, frame.response_id, 0.0, "Skipped", is_stand_in=True)
