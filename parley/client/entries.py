"""What a client says, entry by entry: sound, camera frames, commands."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

COMMAND_OVERHEAD_BYTES = 256
"""Counted for each command besides its text."""
_G711 = ("audio/pcmu", "audio/pcma")

Done = asyncio.Future[None]


class AudioFormat(Struct, frozen=True):
    """How many bytes a sample has, and samples a second."""

    sample_bytes: int = 2
    rate: int = 24_000

    @classmethod
    def of(cls, session: Mapping[str, Any]) -> AudioFormat | None:
        """The input format of a GA session, or of what an update changes in it; None when it names none."""
        try:
            told = session["audio"]["input"]["format"]
            kind, rate = told["type"], told.get("rate")
        except (KeyError, TypeError, AttributeError):
            return None
        return cls(1, 8_000) if kind in _G711 else cls(2, rate if isinstance(rate, int) and rate > 0 else 24_000)


class Audio(Struct):
    """Whole samples. `done` ends when they were written, or are kept for a later connection."""

    event_id: str
    pcm: bytes
    duration_us: int
    done: Done | None = None

    @property
    def size(self) -> int:
        return len(self.pcm)

    def frame(self) -> str:
        return f'{{"type":"input_audio_buffer.append","event_id":"{self.event_id}","audio":"{b64encode(self.pcm).decode("ascii")}"}}'


class Picture(Struct):
    """A camera frame, taken where the audio before it ends. max_slices 0 leaves it to the model."""

    event_id: str
    data: bytes
    max_slices: int
    done: Done | None = None

    @property
    def size(self) -> int:
        return len(self.data)

    def frame(self) -> str:
        slices = f',"max_slice_nums":{self.max_slices}' if self.max_slices else ""
        shown = b64encode(self.data).decode("ascii")
        return f'{{"type":"input_audio_buffer.append","event_id":"{self.event_id}","audio":"","video_frames":["{shown}"]{slices}}}'


class Command(Struct):
    """Anything else. `new_format` holds for the audio after it, and `pictures` count as camera frames, unless the server refuses it."""

    event_id: str
    number: int
    text: str
    new_format: AudioFormat | None = None
    pictures: int = 0
    done: Done | None = None

    @property
    def size(self) -> int:
        return len(self.text)

    def frame(self) -> str:
        return self.text


Entry = Audio | Picture | Command


def pictures_in(fields: Mapping[str, Any]) -> int:
    """How many pictures an item has that is to be created."""
    try:
        return sum(part["type"] == "input_image" for part in fields["item"]["content"])
    except (KeyError, TypeError):
        return 0


def finish(entry: Entry, error: BaseException | None = None) -> None:
    """Whoever waits for the entry goes on."""
    if entry.done is None or entry.done.done():
        return
    if error:
        entry.done.set_exception(error)
    else:
        entry.done.set_result(None)
