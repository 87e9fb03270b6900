"""One recorded question, spoken through the real WebSocket path at real-time pace, and the answer to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from rich.console import Console

import parley
from parley import events

from .camera import PERIOD_MS
from .ending import Ending, Kind
from .latency import Timeline
from .rehearsal import Rehearsal
from .sound import WIRE_RATE, Recording, is_sound

Turn = Literal["server", "semantic", "manual"]
PACKET_MS = 20
PACKET_BYTES = WIRE_RATE * PACKET_MS // 1000 * 2
SILENCE = bytes(PACKET_BYTES)
LULL_S = 5.0
"""An answer of which nothing came for so long is not being spoken any more."""
_TURN_DETECTION: dict[Turn, dict[str, Any] | None] = {
    "server": {"type": "server_vad"},
    "semantic": {"type": "semantic_vad"},
    "manual": None,
}


class Outcome(Struct):
    """What came of it. audio: PCM16 at the wire rate."""

    heard: str
    answered: str
    audio: bytes
    timeline: Timeline
    ending: Ending


class Conversation:
    """Speaks a recording and prints what happens as it happens. Times are monotonic seconds.

    cut_after_ms: cuts the connection this long after the answer's first sound, and proves that the answer is whole all the same.
    frames: files of pictures, shown one a second from the beginning on, the last one again and again, as a camera would.
    """

    def __init__(
        self,
        session: parley.Session,
        recording: Recording,
        turn: Turn,
        console: Console,
        *,
        cut_after_ms: int | None = None,
        frames: Sequence[bytes] = (),
    ) -> None:
        self._session, self._recording, self._turn, self._console = session, recording, turn, console
        self._frames = frames
        self._timeline = Timeline()
        self._heard: dict[str, str] = {}
        self._answered: dict[str, str] = {}
        self._audio: dict[str, bytearray] = {}
        self._failure = self._cut_off = ""
        self._decided = 0
        self._whole = False
        self._heard_at = 0.0
        self._rehearsal = Rehearsal(session, cut_after_ms) if cut_after_ms is not None else None
        self._begun = 0.0
        self._all_spoken = False
        self._open_line = ""

    async def run(self, reply_timeout_s: float) -> Outcome:
        """Ends with the response to the last turn, or reply_timeout_s after the recording's end. Raises parley.ParleyError."""
        if self._rehearsal and not self._session.resumable:
            raise parley.Refused("the server does not let this session resume")
        await self._session.update(
            turn_detection=_TURN_DETECTION[self._turn], transcription={"model": "default"}, output_modalities=["audio"]
        )
        await self._until_updated()
        self._begun = time.monotonic()
        speaking = asyncio.create_task(self._speak())
        try:
            async with asyncio.timeout(self._recording.duration_ms / 1000 + reply_timeout_s):
                await self._listen()
            ending = self._over()
        except TimeoutError:
            ending = self._late(f"within {reply_timeout_s:g} s of the question's end")
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            self._end_line()
            if self._rehearsal:
                self._rehearsal.stop()
        return self._outcome(ending)

    async def _until_updated(self) -> None:
        async for event in self._session:
            if isinstance(event, events.SessionUpdated):
                return
            if isinstance(event, events.Error):
                raise parley.Refused(event.error.message, code=event.error.code or "")
        raise parley.SessionClosed("the server closed the session before it was configured")

    async def _speak(self) -> None:
        """The recording, then silence as a microphone would give it; by hand it ends with a commit and asks for the answer."""
        pcm, end_ms = self._recording.pcm, self._recording.voice_end_ms
        packets = [pcm[at : at + PACKET_BYTES] for at in range(0, len(pcm), PACKET_BYTES)]
        for number, packet in enumerate(packets):
            await self._at(number)
            await self._show(number)
            await self._session.send_audio(packet)
            if number * PACKET_MS < end_ms <= (number + 1) * PACKET_MS:
                self._timeline.voice_end = time.monotonic()
        self._all_spoken = True
        if self._turn == "manual":
            await self._session.commit()
            self._timeline.mark("committed", time.monotonic())
            await self._session.respond()
            return
        number = len(packets)
        while True:
            await self._at(number)
            await self._show(number)
            await self._session.send_audio(SILENCE)
            number += 1

    async def _show(self, packet: int) -> None:
        second, within = divmod(packet, PERIOD_MS // PACKET_MS)
        if self._frames and not within:
            await self._session.see(self._frames[min(second, len(self._frames) - 1)])

    async def _at(self, packet: int) -> None:
        # a microphone hands a packet over when it is full; the schedule is absolute, so that lateness never adds up
        await asyncio.sleep(max(self._begun + (packet + 1) * PACKET_MS / 1000 - time.monotonic(), 0.0))

    async def _listen(self) -> None:
        answered = False
        async for event in self._session:
            answered = self._take(event) or answered
            if self._rehearsal and (note := self._rehearsal.take(event)):
                self._say("resumed", note)
            if answered and not (self._rehearsal and self._rehearsal.away):
                return
        self._failure = self._failure or "the server closed the session"

    def _take(self, event: events.Event) -> bool:
        """Notes one event; True when the answer to the whole recording is over."""
        now = time.monotonic()
        match event:
            case events.SpeechStarted():
                self._say("voice", "")
            case events.SpeechStopped():
                self._timeline.forget("speech stopped", "transcript", "first text", "first audio")
                self._timeline.mark("speech stopped", now)
                self._say("silence", "")
            case events.TranscriptionDelta(item_id=item, delta=delta):
                self._heard[item] = self._heard.get(item, "") + delta
                self._say("hearing", self._heard[item])
            case events.TranscriptionCompleted(item_id=item, transcript=transcript):
                self._heard[item] = transcript
                self._timeline.mark("transcript", now)
                self._say("heard", transcript)
            case events.TranscriptDelta(response_id=response, delta=delta):
                self._timeline.mark("first text", now)
                self._answered[response] = self._answered.get(response, "") + delta
                self._go_on(response, delta)
            case events.AudioDelta(response_id=response, audio=audio):
                self._timeline.mark("first audio", now)
                self._audio.setdefault(response, bytearray()).extend(audio)
                self._heard_at = now
            case events.UnitDecided(decision=decision):
                self._decided += decision != "turn_end"
            case events.Error(error=error):
                self._failure = f"{error.code or error.type}: {error.message}"
                self._say("error", self._failure)
            case events.ResponseDone(response=response):
                return self._ended(response)
        return False

    def _ended(self, response: events.Response) -> bool:
        if response.status == "completed":
            self._failure = self._cut_off = ""
            self._whole = True
            # a model that hears while it speaks may answer before the recording's last silence is spoken
            return self._all_spoken or (self._decided > 0 and self._timeline.voice_end is not None)
        reason = response.status_details.reason if response.status_details else None
        self._say("ended", f"{response.status}{f' ({reason})' if reason else ''}")
        if response.status == "cancelled":
            self._cut_off = f"the answer was cut off{f' ({reason})' if reason else ''}"
            return False
        self._failure = self._failure or f"the answer ended as {response.status}"
        return self._all_spoken

    def _over(self) -> Ending:
        """The answer ended."""
        if self._failure or not self._sounds():
            return Ending(Kind.FAILED, self._failure or "the answer has no sound")
        return Ending(Kind.ANSWERED, f"answered with {self._spoken_s():.1f} s of speech")

    def _late(self, when: str) -> Ending:
        """It did not end in time."""
        if self._failure:
            return Ending(Kind.FAILED, self._failure)
        if self._sounds() and time.monotonic() - self._heard_at < LULL_S:
            return Ending(Kind.STILL_SPEAKING, f"{self._spoken_s():.1f} s of speech came, and no end of it {when}: left while it speaks")
        if self._whole and self._sounds():
            return self._over()
        if self._cut_off or self._audio:
            came = self._cut_off or f"the answer broke off after {self._spoken_s():.1f} s of speech"
            return Ending(Kind.FAILED, f"{came}, and nothing more came {when}")
        if self._decided:
            return Ending(Kind.NO_SPEECH, f"the model did not speak {when}: it listened to {self._decided} units")
        return Ending(Kind.NO_SPEECH, f"no answer {when}")

    def _sounds(self) -> bool:
        return any(is_sound(bytes(audio)) for audio in self._audio.values())

    def _spoken_s(self) -> float:
        return sum(map(len, self._audio.values())) / (2 * WIRE_RATE)

    def _outcome(self, ending: Ending) -> Outcome:
        if self._rehearsal:
            broken = "" if ending.spoke else ending.words
            broken = broken or self._rehearsal.verdict()
            self._say("broken" if broken else "whole", broken or self._rehearsal.summary())
            ending = Ending(Kind.FAILED, broken) if broken and ending.spoke else ending
        audio = b"".join(self._audio.values())
        return Outcome(" ".join(self._heard.values()), " ".join(self._answered.values()), audio, self._timeline, ending)

    def _say(self, what: str, text: str) -> None:
        self._end_line()
        self._console.print(f"{self._stamp()}  [bold]{what:<8}[/]", end="  ")
        self._console.print(text, markup=False, style="dim" if what == "hearing" else None)

    def _go_on(self, response: str, delta: str) -> None:
        if self._open_line != response:
            self._end_line()
            self._console.print(f"{self._stamp()}  [bold]answers [/]", end="  ")
            self._open_line = response
        self._console.print(delta, markup=False, end="")

    def _end_line(self) -> None:
        if self._open_line:
            self._console.print()
            self._open_line = ""

    def _stamp(self) -> str:
        return f"{time.monotonic() - self._begun:6.2f} s"
