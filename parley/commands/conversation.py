"""One recorded question, spoken through the real WebSocket path at real-time pace, and the answer to it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

from msgspec import Struct
from rich.console import Console

import parley
from parley import events

from .latency import Timeline
from .rehearsal import Rehearsal
from .sound import WIRE_RATE, Recording, is_sound

Turn = Literal["server", "semantic", "manual"]
PACKET_MS = 20
PACKET_BYTES = WIRE_RATE * PACKET_MS // 1000 * 2
SILENCE = bytes(PACKET_BYTES)
_TURN_DETECTION: dict[Turn, dict[str, Any] | None] = {
    "server": {"type": "server_vad"},
    "semantic": {"type": "semantic_vad"},
    "manual": None,
}


class Outcome(Struct):
    """What came of it. audio: PCM16 at the wire rate. failure: why there is no spoken answer, in one line, else ""."""

    heard: str
    answered: str
    audio: bytes
    timeline: Timeline
    failure: str


class Conversation:
    """Speaks a recording and prints what happens as it happens. Times are monotonic seconds.

    cut_after_ms: cuts the connection this long after the answer's first sound, and proves that the answer is whole all the same.
    """

    def __init__(
        self, session: parley.Session, recording: Recording, turn: Turn, console: Console, *, cut_after_ms: int | None = None
    ) -> None:
        self._session, self._recording, self._turn, self._console = session, recording, turn, console
        self._timeline = Timeline()
        self._heard: dict[str, str] = {}
        self._answered: dict[str, str] = {}
        self._audio: dict[str, bytearray] = {}
        self._failure = ""
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
        except TimeoutError:
            self._failure = self._failure or f"no answer within {reply_timeout_s:g} s of the question's end"
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            self._end_line()
            if self._rehearsal:
                self._rehearsal.stop()
        return self._outcome()

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
            await self._session.send_audio(SILENCE)
            number += 1

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
            case events.Error(error=error):
                self._failure = f"{error.code or error.type}: {error.message}"
                self._say("error", self._failure)
            case events.ResponseDone(response=response):
                return self._ended(response)
        return False

    def _ended(self, response: events.Response) -> bool:
        if response.status == "completed":
            self._failure = ""
            return self._all_spoken
        reason = response.status_details.reason if response.status_details else None
        self._say("ended", f"{response.status}{f' ({reason})' if reason else ''}")
        self._failure = self._failure or f"the answer ended as {response.status}"
        return self._all_spoken and response.status != "cancelled"

    def _outcome(self) -> Outcome:
        audio = b"".join(self._audio.values())
        failure = self._failure or ("" if is_sound(audio) else "the answer has no sound")
        if self._rehearsal:
            failure = failure or self._rehearsal.verdict()
            self._say("broken" if failure else "whole", failure or self._rehearsal.summary())
        return Outcome(" ".join(self._heard.values()), " ".join(self._answered.values()), audio, self._timeline, failure)

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
