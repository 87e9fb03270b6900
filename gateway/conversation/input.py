"""The input ledger: what the client has said, counted in samples of its own format."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from .config import AudioFormat
from .effects import InputAudio
from .errors import Refusal
from .limits import Limits

PIECE_BYTES = 128 * 1024
"""Half of what an edge takes in one append; whole samples of every format."""


class InputLedger(Struct):
    """Positions, the timeline, and the uncommitted span. Times in ms since the session's first sample."""

    position: int = 0
    """Samples passed on so far, each counted at the rate it came in: the position of the last piece on its edges."""
    carry: bytes = b""
    """The odd byte of a split sample."""
    samples: int = 0
    """Accepted so far, at the rate of the format that holds now."""
    pending_bytes: int = 0
    buffer_start_ms: int = 0
    """Where the uncommitted input begins."""
    generations: dict[str, int] = {}
    """Input generation by stage."""
    open_item: str | None = None
    """Item of the utterance that is being spoken."""
    open_start_ms: int = 0
    committed_start_ms: int = -1
    """Where the item committed last begins."""
    frames: int = 0
    """Camera frames passed on so far: the position of the last."""

    def end_ms(self, fmt: AudioFormat) -> int:
        return fmt.milliseconds(self.samples)

    def accept(
        self, audio: bytes, fmt: AudioFormat, limits: Limits, marks: Iterable[int] = (), *, bounded: bool
    ) -> list[tuple[int, InputAudio]]:
        """Count an append; answers its whole samples in pieces that an edge takes, each with its position.

        `bounded` tells whether what is appended stays until somebody commits it. No piece reaches across one of `marks` (positions that a
        stage already has), so that what is sent again is either new to a stage or a duplicate.
        """
        held = self.pending_bytes if bounded else 0
        if bounded and held + len(audio) > limits.max_pending_input_bytes:
            raise Refusal("input_audio_buffer_full", "audio", held=held, limit=limits.max_pending_input_bytes)
        data = self.carry + audio if self.carry else audio
        spare = len(data) % fmt.sample_bytes
        data, self.carry = (data[:-spare], data[-spare:]) if spare else (data, b"")
        self.pending_bytes = held + len(audio) if bounded else 0
        cuts = {(mark - self.position) * fmt.sample_bytes for mark in marks if mark > self.position}
        cuts.update(range(PIECE_BYTES, len(data), PIECE_BYTES))
        edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
        return [self._piece(data[start:end], fmt) for start, end in pairwise(edges) if start < end]

    def _piece(self, data: bytes, fmt: AudioFormat) -> tuple[int, InputAudio]:
        count, first = len(data) // fmt.sample_bytes, self.samples
        self.position += count
        self.samples += count
        return self.position, InputAudio(data, count, fmt, first)

    def rewind(self, position: int) -> None:
        """After a takeover: what was counted is what the stages have."""
        self.samples += position - self.position
        self.position = position
        self.carry = b""

    def forget_until(self, end_ms: int) -> None:
        """Everything before end_ms is committed or cleared."""
        self.pending_bytes = 0
        self.buffer_start_ms = end_ms
        self.open_item = None

    def forget_split(self) -> None:
        """The client closed its buffer: what it sends next begins with a whole sample."""
        self.carry = b""

    def change_format(self, old: AudioFormat, new: AudioFormat) -> None:
        """The timeline goes on: what was counted before counts at the new rate."""
        self.samples = self.samples * new.rate // old.rate
        self.forget_split()

    def bump(self, stage: str) -> int:
        """A new input generation for this stage: what was appended to it before is forgotten."""
        self.generations[stage] = self.generations.get(stage, 0) + 1
        return self.generations[stage]
