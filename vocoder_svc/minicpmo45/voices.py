"""All voices of a replica: each one's caches exist once, counted by who holds them, set up by one thread of low priority, forgotten by
age."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from vocoder_svc.minicpmo45.arena import Ranges
from vocoder_svc.minicpmo45.caches import NotFinite, Prompt
from vocoder_svc.minicpmo45.retention import Span
from vocoder_svc.minicpmo45.voice import BadVoice, Heard, Recording

NICENESS = 10
Wake = Callable[[], None]


class VoicesFull(BadVoice):
    """All room is held by voices that sessions use."""


class Maker(Protocol):
    """The two halves of a voice's set-up."""

    def hear(self, voice: Recording) -> Heard:
        """Raises BadVoice."""

    def set_up(self, heard: Heard, span: Span) -> Prompt:
        """Raises NotFinite, ValueError."""


class Voice:
    """One voice. `prompt` or `error` is set once, by the thread that sets voices up."""

    def __init__(self, recording: Recording) -> None:
        self.key = recording.key
        self.prompt: Prompt | None = None
        self.error: BadVoice | None = None
        self.recording = recording
        self.heard: Heard | None = None
        self.holders: list[Wake] = []
        self.deadline: float | None = None
        """When it stops waiting for room."""


class Voices:
    """`frames`: the part of the arena that voices share. Every method may be called from any thread."""

    def __init__(self, maker: Maker, room: Span, wait_s: float) -> None:
        self._maker = maker
        self._ranges = Ranges(room.start, room.frames)
        self._frames = room.frames
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._known: dict[tuple[str, int], Voice] = {}
        """Least recently released first, as far as nobody holds them."""
        self._queue: list[Voice] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="voices", daemon=True)
        # a thread that computes while the interpreter goes down takes the process with it
        atexit.register(self.close)
        self._thread.start()

    def hold(self, recording: Recording, wake: Wake) -> Voice:
        """The voice, held until `release` with the same `wake`, which is called when it is ready or failed."""
        with self._changed:
            voice = self._known.get(recording.key)
            if voice is None:
                voice = self._known[recording.key] = Voice(recording)
                self._queue.append(voice)
                self._changed.notify_all()
            voice.holders.append(wake)
            return voice

    def release(self, voice: Voice, wake: Wake) -> None:
        """One holder less. What nobody holds stays while there is room."""
        with self._changed:
            voice.holders.remove(wake)
            if not voice.holders and self._known.get(voice.key) is voice:
                del self._known[voice.key]
                if voice in self._queue:
                    self._queue.remove(voice)
                elif voice.error is None:
                    self._known[voice.key] = voice
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __len__(self) -> int:
        return len(self._known)

    def _work(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                found = self._next()
                if found is None:
                    return
            voice, span = found
            try:
                if span is None:
                    voice.heard = self._maker.hear(voice.recording)
                    with self._changed:
                        if voice.holders:
                            self._queue.insert(0, voice)
                        elif self._known.get(voice.key) is voice:
                            del self._known[voice.key]
                    continue
                assert voice.heard is not None
                prompt = self._maker.set_up(voice.heard, span)
            except Exception as error:
                self._finish(voice, span, None, error if isinstance(error, BadVoice) else BadVoice(_reason(error)))
            else:
                self._finish(voice, span, prompt, None)

    def _next(self) -> tuple[Voice, Span | None] | None:
        """Waits for work: a voice to hear (no span), or one heard and the room found for it. None: closed."""
        while not self._closed:
            now = time.monotonic()
            for voice in list(self._queue):
                if voice.heard is None:
                    self._queue.remove(voice)
                    return voice, None
                frames = 2 * len(voice.heard.codes)
                start = self._room(frames)
                if start is not None:
                    self._queue.remove(voice)
                    return voice, Span(start, frames)
                voice.deadline = voice.deadline or now + self._wait_s
                if frames > self._frames or voice.deadline <= now:
                    self._queue.remove(voice)
                    self._end(voice, None, VoicesFull(f"no room for a voice of {frames} frames among those in use"))
            deadlines = [voice.deadline for voice in self._queue if voice.deadline is not None]
            self._changed.wait(max(0.0, min(deadlines) - now) if deadlines else None)
        return None

    def _room(self, frames: int) -> int | None:
        """A free range; voices that nobody holds go for it, oldest first, unless all of them were too little."""
        start = self._ranges.take(frames)
        idle = [(voice, voice.prompt.span) for voice in self._known.values() if not voice.holders and voice.prompt is not None]
        if start is None and self._ranges.free + sum(span.frames for _, span in idle) < frames:
            return None
        for voice, span in idle if start is None else ():
            del self._known[voice.key]
            self._ranges.give(span.start, span.frames)
            start = self._ranges.take(frames)
            if start is not None:
                break
        return start

    def _finish(self, voice: Voice, span: Span | None, prompt: Prompt | None, error: BadVoice | None) -> None:
        with self._changed:
            if error is not None and span is not None:
                self._ranges.give(span.start, span.frames)
            self._end(voice, prompt, error)

    def _end(self, voice: Voice, prompt: Prompt | None, error: BadVoice | None) -> None:
        voice.prompt, voice.error, voice.heard = prompt, error, None
        if error is not None and self._known.get(voice.key) is voice:
            # the next session that names it tries again
            del self._known[voice.key]
        for wake in voice.holders:
            wake()
        self._changed.notify_all()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotFinite | ValueError) else f"its set-up failed ({type(error).__name__})"
