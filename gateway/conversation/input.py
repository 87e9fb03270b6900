"""The input ledger: what the client has said, counted in samples of its own format."""

from __future__ import annotations

from collections.abc import Iterator

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
    """Of the last piece that was passed on."""
    carry: bytes = b""
    """The odd byte of a split sample."""
    base_ms: int = 0
    """Timeline before the current format began."""
    samples: int = 0
    """Samples in the current format."""
    total_samples: int = 0
    pending_bytes: int = 0
    buffer_start_ms: int = 0
    """Where the uncommitted input begins."""
    generations: dict[str, int] = {}
    """Input generation by stage."""
    open_item: str | None = None
    """Item of the utterance that is being spoken."""
    open_start_ms: int = 0
    utterances: int = 0

    def end_ms(self, fmt: AudioFormat) -> int:
        return self.base_ms + fmt.milliseconds(self.samples)

    def accept(self, audio: bytes, fmt: AudioFormat, limits: Limits, *, bounded: bool) -> Iterator[tuple[int, InputAudio]]:
        """Count an append; yields its whole samples in pieces that an edge takes, each with its position.

        `bounded` tells whether the client's commit alone ends what is pending.
        """
        if bounded and self.pending_bytes + len(audio) > limits.max_pending_input_bytes:
            raise Refusal("input_audio_buffer_full", "audio", held=self.pending_bytes, limit=limits.max_pending_input_bytes)
        data = self.carry + audio if self.carry else audio
        spare = len(data) % fmt.sample_bytes
        data, self.carry = (data[:-spare], data[-spare:]) if spare else (data, b"")
        self.pending_bytes += len(audio)
        return self._pieces(data, fmt)

    def _pieces(self, data: bytes, fmt: AudioFormat) -> Iterator[tuple[int, InputAudio]]:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            count = len(piece) // fmt.sample_bytes
            self.position += 1
            yield self.position, InputAudio(piece, count, fmt, self.total_samples)
            self.samples += count
            self.total_samples += count

    def forget_until(self, end_ms: int) -> None:
        """Everything before end_ms is committed or cleared; a split sample's byte goes with it."""
        self.carry = b""
        self.pending_bytes = 0
        self.buffer_start_ms = end_ms
        self.open_item = None

    def change_format(self, old: AudioFormat) -> None:
        self.base_ms = self.end_ms(old)
        self.samples = 0
        self.carry = b""

    def bump(self, stage: str) -> int:
        """A new input generation for this stage: what was appended to it before is forgotten."""
        self.generations[stage] = self.generations.get(stage, 0) + 1
        return self.generations[stage]
