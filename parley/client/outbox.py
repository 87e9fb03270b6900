"""What the client says, in one order: what waits to be written, and what is kept in case it must be said again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from .entries import COMMAND_OVERHEAD_BYTES, Audio, AudioFormat, Command, Done, Entry, Picture, finish, pictures_in
from .limits import Limits

_ENDS_BUFFER = ("input_audio_buffer.commit", "input_audio_buffer.clear")


class Missing(Struct, frozen=True):
    """What the server lacks and nobody keeps."""

    samples: int
    commands: int
    frames: int

    def __bool__(self) -> bool:
        return bool(self.samples or self.commands or self.frames)


class Outbox:
    """One queue for all that is said. A session that cannot be resumed `keeps` nothing of what was written, and numbers nothing."""

    def __init__(self, input_format: AudioFormat, limits: Limits, *, keeps: bool) -> None:
        self._limits, self._keeps = limits, keeps
        self._kept, self._waiting = _Queue(), _Queue()
        self._begin = _Mark(input_format)
        self._format = input_format
        self._spare = b""
        self._commands = 0
        self.filled = asyncio.Event()
        """Set while something waits."""

    @property
    def held_bytes(self) -> int:
        """Size of everything that is kept or waits."""
        return sum(entry.size for entry in (*self._kept.entries, *self._waiting.entries))

    def has_room(self) -> bool:
        """Whether more may wait."""
        waiting, limits = self._waiting, self._limits
        return (
            waiting.audio_us < limits.audio_ring_ms * 1000
            and waiting.command_bytes < limits.command_log_bytes
            and waiting.picture_bytes < limits.frame_ring_bytes
        )

    def add_audio(self, event_id: str, pcm: bytes, done: Done | None = None) -> bool:
        """Queues audio; half a sample waits for its other half. False when there is no whole sample yet."""
        pcm = self._spare + pcm
        whole = len(pcm) - len(pcm) % self._format.sample_bytes
        pcm, self._spare = pcm[:whole], pcm[whole:]
        if pcm:
            duration_us = whole // self._format.sample_bytes * 1_000_000 // self._format.rate
            self._add(Audio(event_id, pcm, duration_us, done))
        return bool(pcm)

    def add_picture(self, event_id: str, data: bytes, max_slices: int, done: Done | None = None) -> None:
        """Queues a camera frame."""
        self._add(Picture(event_id, data, max_slices, done))

    def add_command(self, type: str, event_id: str, fields: Mapping[str, Any], done: Done | None = None) -> None:
        """Queues any other event, under the next number."""
        number = {"client_seq": self._commands + 1} if self._keeps else {}
        text = msgspec.json.encode({"type": type, "event_id": event_id, **number, **fields}).decode()
        self._commands += 1
        new_format = AudioFormat.of(fields.get("session") or {}) if type == "session.update" else None
        if new_format or type in _ENDS_BUFFER:
            self._spare = b""
        self._format = new_format or self._format
        pictures = pictures_in(fields) if type == "conversation.item.create" else 0
        self._add(Command(event_id, self._commands, text, new_format, pictures, done))

    def _add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self.filled.set()

    def head(self) -> Entry | None:
        """What is to be written next; None clears `filled`."""
        if self._waiting.entries:
            return self._waiting.entries[0]
        self.filled.clear()
        return None

    def written(self, entry: Entry) -> None:
        """This was the head, and is written now."""
        finish(entry)
        if self.head() is not entry:
            return  # refused while it was being written
        self._waiting.popleft()
        if self._keeps:
            self._kept.append(entry)
            while self._kept.exceeds(self._limits):
                self._begin = self._begin.after((self._kept.popleft(),))

    def refused(self, event_id: str) -> None:
        """The server took nothing of this: its samples and pictures do not count, its format does not hold."""
        for queue in (self._kept, self._waiting):
            for entry in queue.entries:
                if entry.event_id != event_id:
                    continue
                if not isinstance(entry, Command):
                    queue.remove(entry)
                    finish(entry)
                else:
                    entry.new_format, entry.pictures = None, 0
                    self._format = self._begin.after((*self._kept.entries, *self._waiting.entries)).format
                return

    def rewind(self, input_samples: int, client_seq: int, input_frames: int = 0) -> Missing | None:
        """What the server lacks waits to be written again, in its old order.

        input_samples: how many samples the server has, each counted at the rate at which it came. client_seq: the last command obeyed.
        input_frames: how many camera frames it has.
        """
        entries = deque((*self._kept.entries, *self._waiting.entries))
        first_command = next((one.number for one in entries if isinstance(one, Command)), self._commands + 1)
        known = list(_until_obeyed_format(entries, client_seq))
        mark = self._begin.after(known)
        lost_samples = max(mark.samples - input_samples, 0)
        server = _Mark(mark.format, input_samples, input_frames)
        needed: list[Entry] = []
        for entry, has_it in _sorted_out(entries, mark, server, client_seq):
            (known if has_it else needed).append(entry)
        for entry in known:
            finish(entry)
        had = self._begin.after(known)
        # a command that was obeyed is not said again, though its pictures may be gone
        missing = Missing(lost_samples, max(first_command - 1 - client_seq, 0), max(had.frames - input_frames, 0))
        if had != server:
            self._begin, known = server, []  # the counts went apart: from here they agree again
        # what the server has is kept as well: a stage that is placed anew may lack it again
        self._kept, self._waiting = _Queue(known), _Queue(needed)
        self.filled.set()
        return missing or None

    def release(self, error: BaseException | None = None) -> None:
        """Nobody waits for a write any more: what waits is kept for the next connection, or `error` ended it all."""
        for entry in self._waiting.entries:
            finish(entry, error)


class _Queue:
    """Entries and what they weigh."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: deque[Entry] = deque()
        self.audio_us = self.command_bytes = self.picture_bytes = 0
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._weigh(entry, 1)

    def popleft(self) -> Entry:
        entry = self.entries.popleft()
        self._weigh(entry, -1)
        return entry

    def remove(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self._weigh(entry, -1)

    def exceeds(self, limits: Limits) -> bool:
        """Whether more is here than may be kept."""
        return (
            self.audio_us > limits.audio_ring_ms * 1000
            or self.command_bytes > limits.command_log_bytes
            or self.picture_bytes > limits.frame_ring_bytes
        )

    def _weigh(self, entry: Entry, sign: int) -> None:
        match entry:
            case Audio():
                self.audio_us += sign * entry.duration_us
            case Picture():
                self.picture_bytes += sign * entry.size
            case Command():
                self.command_bytes += sign * (entry.size + COMMAND_OVERHEAD_BYTES)


class _Mark(Struct, frozen=True):
    """A position in what the client says: samples so far, each counted at the rate at which it came, and camera frames."""

    format: AudioFormat
    samples: int = 0
    frames: int = 0

    def after(self, entries: Iterable[Entry]) -> _Mark:
        """The position after these."""
        held, samples, frames = self.format, self.samples, self.frames
        for entry in entries:
            match entry:
                case Audio():
                    samples += len(entry.pcm) // held.sample_bytes
                case Picture():
                    frames += 1
                case Command():
                    held, frames = entry.new_format or held, frames + entry.pictures
        return _Mark(held, samples, frames)


def _until_obeyed_format(entries: deque[Entry], client_seq: int) -> Iterator[Entry]:
    """Takes out everything up to the last change of format that the server obeyed: what was said before, was heard in another format."""
    obeyed = [at for at, one in enumerate(entries, 1) if isinstance(one, Command) and one.number <= client_seq and one.new_format]
    for _ in range(obeyed[-1] if obeyed else 0):
        yield entries.popleft()


def _sorted_out(entries: Iterable[Entry], begin: _Mark, server: _Mark, client_seq: int) -> Iterator[tuple[Entry, bool]]:
    """Each entry, from begin on, with whether the server has it; audio of which it has a part is cut in two."""
    mark = begin
    for entry in entries:
        match entry:
            case Command():
                yield entry, entry.number <= client_seq
            case Picture():
                yield entry, mark.frames < server.frames
            case Audio():
                # audio behind a change of format that the server has not obeyed was not heard
                had = max(server.samples - mark.samples, 0) * mark.format.sample_bytes if mark.format == begin.format else 0
                if 0 < had < len(entry.pcm):
                    first_us = entry.duration_us * had // len(entry.pcm)
                    yield Audio(entry.event_id, entry.pcm[:had], first_us), True
                    yield Audio(entry.event_id, entry.pcm[had:], entry.duration_us - first_us, entry.done), False
                else:
                    yield entry, had > 0
        mark = mark.after((entry,))
