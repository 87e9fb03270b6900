"""The client's latest audio, kept so that a stage which is placed anew can hear the open turn again."""

from __future__ import annotations

from collections import deque

import msgspec

from .conversation.effects import InputAudio, Relay

REHEARD_BYTES = 30 * 48_000
"""30 s of PCM16 at 24 kHz."""


class Rehearsal:
    def __init__(self, max_bytes: int) -> None:
        self._relays: deque[Relay] = deque()
        self._bytes = 0
        self._max = max_bytes
        self._newest = 0

    def keep(self, relay: Relay) -> None:
        """One piece, whichever stage it goes to: the same piece for another stage is not kept twice."""
        if relay.position <= self._newest or not isinstance(relay.payload, InputAudio):
            return
        self._newest = relay.position
        self._relays.append(relay)
        self._bytes += len(relay.payload.data)
        while self._bytes > self._max and len(self._relays) > 1:
            self._bytes -= len(self._relays.popleft().payload.data)

    def clear(self) -> None:
        """Nobody will hear it again."""
        self._relays.clear()
        self._bytes = 0

    def unhear(self, position: int) -> None:
        """What is kept above the position is silence from now on."""
        for index, relay in enumerate(self._relays):
            audio = relay.payload
            taken = min(relay.position - position, audio.samples)
            if taken > 0:
                left = audio.data[: (audio.samples - taken) * audio.format.sample_bytes]
                silent = msgspec.structs.replace(audio, data=left + audio.format.silence(taken))
                self._relays[index] = msgspec.structs.replace(relay, payload=silent)

    def after(self, position: int) -> list[Relay]:
        """What is kept above the position, oldest first."""
        return [relay for relay in self._relays if relay.position > position]

    def begins(self, position: int, newest: int) -> int:
        """The position just before what `after` begins with; `newest` when nothing is kept."""
        kept = self.after(position)
        return kept[0].position - kept[0].payload.samples if kept else newest
