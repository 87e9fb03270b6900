"""A small real server whose session outlives its connections: a journal, input counted by sample, tokens that rotate, cuts at will."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Literal

from msgspec import Struct
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

Where = Literal["receive", "half", "received", "send", "sent"]
PIECE_SAMPLES = 240


class Cut(Struct, frozen=True):
    """Ends a connection before or after its n-th message in or out, or in the middle of an append; 1006 without a word."""

    where: Where
    at: int
    code: int = 1006


class CutNow(Exception):
    """The connection ends here."""

    def __init__(self, code: int) -> None:
        self.code = code


def signal(samples: int, start: int = 0) -> bytes:
    """PCM16 in which every sample differs from its neighbours for a long while."""
    return b"".join((at * 7919 % 65_521).to_bytes(2, "little") for at in range(start, start + samples))


class Wire:
    """One connection, with its cut."""

    def __init__(self, socket: ServerConnection, cut: Cut | None) -> None:
        self.socket, self._cut = socket, cut
        self._counts = {"in": 0, "out": 0}
        self.cursor = 0
        self.replaced = self.dead = False

    def here(self, where: Where, way: Literal["in", "out"]) -> None:
        if self._cut and (self._cut.where, self._cut.at) == (where, self._counts[way]):
            self.dead = True
            raise CutNow(self._cut.code)

    def halves(self) -> bool:
        return self._cut is not None and (self._cut.where, self._cut.at) == ("half", self._counts["in"])

    @property
    def code(self) -> int:
        return self._cut.code if self._cut else 1006

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.socket.recv())
        self.here("receive", "in")
        return message

    def passed(self) -> None:
        self.here("received", "in")
        self._counts["in"] += 1

    async def send(self, message: dict[str, Any]) -> None:
        if self.dead:
            raise CutNow(self.code)  # a dead process tells nothing of what it did last
        self.here("send", "out")
        await self.socket.send(json.dumps(message))
        self.here("sent", "out")
        self._counts["out"] += 1


class House:
    """One session, and every connection that was ever made to it."""

    def __init__(self, cuts: list[Cut] | None = None, journal_events: int = 100_000) -> None:
        self.cuts = deque(cuts or ())
        self.first_cut_after = 0
        self.journal: list[dict[str, Any]] = []
        self.kept_events = journal_events
        self.said: list[bytes | tuple[int, str]] = []
        """What reached the model: audio, (client_seq, type) of commands, and (-number, base64) of camera frames."""
        self.sample_bytes = 2
        self.samples = self.client_seq = self.appends = 0
        self.refused_appends: set[int] = set()
        self.unreadable_frames: set[int] = set()
        self.refused_updates: set[int] = set()
        self.replay_after_turns = 0
        """Turns of the event loop between `session.resumed` and what is replayed."""
        self.lag_samples = 0
        """Of the last audio that is lost with a connection."""
        self.lag_frames = 0
        """Of the last camera frames, likewise, as far as no command came after them."""
        self.tokens: list[str] = [secrets.token_urlsafe(32)]
        self.tokens_seen: list[str] = []
        self.acks: list[int] = []
        self.answers: deque[dict[str, Any]] = deque()
        """Errors that the next resumes get, in order."""
        self.refusals: deque[tuple[int, dict[str, str]]] = deque()
        """(HTTP status, headers) that the next upgrades get."""
        self.dials: list[str] = []
        self.dialled: asyncio.Event = asyncio.Event()
        self.wire: Wire | None = None
        self.resumes = 0
        self.grown = asyncio.Condition()
        self.reply_samples = 0
        self.hold_reply_at: int | None = None
        """The sample of the reply at which it waits for a resume."""
        self.answering: asyncio.Task[None] | None = None
        self.responses = 0
        self.sockets = 0

    # the conversation

    async def tell(self, type: str, *, durable: bool = True, **fields: Any) -> None:
        """An event, numbered if it is durable; it is sent to whoever is connected."""
        seq = len(self.journal) + 1
        self.journal.append({"type": type, "event_id": f"event_1_{'' if durable else 'u'}{seq}", **fields})
        async with self.grown:
            self.grown.notify_all()

    async def obey(self, message: dict[str, Any], wire: Wire) -> None:
        kind = message["type"]
        if kind == "session.event_ack":
            assert message["seq"] <= len(self.journal)
            async with self.grown:
                self.acks.append(message["seq"])
                self.grown.notify_all()
            return
        if kind == "input_audio_buffer.append":
            await self.hear(message, wire)
            return
        number = message["client_seq"]
        assert number == self.client_seq + 1, f"command {number} after {self.client_seq}"
        self.client_seq = number
        self.said.append((number, kind))
        if kind == "conversation.item.create":
            await self.tell("conversation.item.added", item=message["item"], previous_item_id=None)
        elif kind == "response.create":
            self.answering = asyncio.create_task(self.answer(message))
        elif kind == "session.update":
            await self.update(message)

    async def hear(self, message: dict[str, Any], wire: Wire) -> None:
        audio, frames = base64.b64decode(message["audio"], validate=True), message.get("video_frames", [])
        assert (audio or frames) and len(audio) % self.sample_bytes == 0
        self.appends += 1
        if self.appends in self.refused_appends:
            await self.tell("error", error={"type": "invalid_request_error", "code": "no", "message": "", "event_id": message["event_id"]})
            return
        for frame in frames:
            self.said.append((-self.frames - 1, frame))
            if self.frames + 1 in self.unreadable_frames:
                error = {"type": "invalid_request_error", "code": "input_refused", "message": "", "event_id": message["event_id"]}
                await self.tell("error", error=error)
        if wire.halves():
            audio = audio[: len(audio) // self.sample_bytes // 2 * self.sample_bytes]
        if audio:
            self.said.append(audio)
        async with self.grown:
            self.samples += len(audio) // self.sample_bytes
            self.grown.notify_all()
        if wire.halves():
            raise CutNow(wire.code)

    async def update(self, message: dict[str, Any]) -> None:
        told = message["session"].get("audio", {}).get("input", {}).get("format")
        if self.client_seq in self.refused_updates:
            await self.tell("error", error={"type": "invalid_request_error", "code": "no", "message": "", "event_id": message["event_id"]})
            return
        if told:
            self.sample_bytes = 2 if told["type"] == "audio/pcm" else 1
        await self.tell("session.updated", session={"id": "sess_1", **message["session"]})

    async def answer(self, message: dict[str, Any]) -> None:
        self.responses += 1
        name, metadata = f"resp_{self.responses}", (message.get("response") or {}).get("metadata")
        response = {"id": name, "status": "in_progress", "metadata": metadata, "output": []}
        await self.tell("response.created", response=response)
        where = {"response_id": name, "item_id": f"item_{self.responses}"}
        for start in range(0, self.reply_samples, PIECE_SAMPLES):
            if start == self.hold_reply_at:
                await self.until(lambda: self.resumes > 0)
            pcm = signal(min(PIECE_SAMPLES, self.reply_samples - start), start)
            await self.tell("response.output_audio_transcript.delta", **where, delta=f"{start} ")
            await self.tell("response.output_audio.delta", **where, delta=base64.b64encode(pcm).decode())
        await self.tell("response.done", response={**response, "status": "completed"})

    # connections

    async def handle(self, socket: ServerConnection) -> None:
        cut = self.cuts.popleft() if self.cuts and self.sockets >= self.first_cut_after else None
        self.sockets += 1
        wire = Wire(socket, cut)
        code, reason = 1006, ""
        try:
            assert socket.request is not None
            if "resume=1" in socket.request.path:
                if not await self.resume(wire):
                    code = 1008
                    return
            else:
                self.wire = wire
                audio = {"input": {"format": {"type": "audio/pcm", "rate": 24000}}}
                await self.tell("session.created", session={"id": "sess_1", "resume_token": self.tokens[0], "audio": audio})
            code, reason = await self.serve(wire)
        except CutNow as now:
            code = now.code
        except ConnectionClosed:
            pass
        finally:
            if self.wire is wire:
                self.wire = None
                self.lose()
            if code == 1006:
                socket.transport.abort()
            else:
                await socket.close(code, reason)

    async def serve(self, wire: Wire) -> tuple[int, str]:
        reading = asyncio.create_task(self.read(wire))
        writing = asyncio.create_task(self.write(wire))
        try:
            done, _ = await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
        return 1008, "session_taken_over"

    async def read(self, wire: Wire) -> None:
        while True:
            message = await wire.receive()
            if self.wire is not wire:
                return
            self.tokens = self.tokens[-1:]
            await self.obey(message, wire)
            wire.passed()

    async def write(self, wire: Wire) -> None:
        while not wire.replaced:
            async with self.grown:
                await self.grown.wait_for(lambda: wire.replaced or wire.cursor < len(self.journal))
            while wire.cursor < len(self.journal) and not wire.replaced:
                wire.cursor += 1
                await wire.send(self.journal[wire.cursor - 1])
        await wire.socket.send(json.dumps({"type": "session.replaced", "event_id": "event_1_u1"}))

    @property
    def frames(self) -> int:
        return len(self.shown)

    @property
    def shown(self) -> list[str]:
        """The camera frames, in base64."""
        return [one[1] for one in self.said if not isinstance(one, bytes) and one[0] < 0]

    def lose(self) -> None:
        """What no stage had of the last audio and frames is gone with the connection."""
        for _ in range(self.lag_frames):
            since = max((at for at, one in enumerate(self.said) if not isinstance(one, bytes) and one[0] > 0), default=-1)
            frames = [at for at, one in enumerate(self.said) if at > since and not isinstance(one, bytes)]
            if frames:
                del self.said[frames[-1]]
        lost = self.lag_samples * self.sample_bytes
        while lost > 0 and self.said and isinstance(last := self.said[-1], bytes):
            kept = last[: max(len(last) - lost, 0)]
            lost -= len(last) - len(kept)
            self.samples -= (len(last) - len(kept)) // self.sample_bytes
            self.said[-1:] = [kept] if kept else []

    async def resume(self, wire: Wire) -> bool:
        claim = await wire.receive()
        assert (claim["type"], claim["session_id"]) == ("session.resume", "sess_1")
        self.tokens_seen.append(claim["resume_token"])
        error = self.answers.popleft() if self.answers else {}
        if not error and claim["resume_token"] not in self.tokens:
            error = {"type": "invalid_request_error", "code": "invalid_resume_token"}
        if error:
            await wire.send({"type": "error", "event_id": "event_1_u1", "error": {"message": "", **error}})
            if error["code"] != "journal_gap":
                return False
        if self.wire is not None:
            self.wire.replaced = True
            async with self.grown:
                self.grown.notify_all()
        self.wire = wire
        async with self.grown:
            self.resumes += 1
            self.grown.notify_all()
        self.tokens = [claim["resume_token"], secrets.token_urlsafe(32)]
        wire.passed()
        await self.tell_resumed(wire, claim["last_seq"] + claim.get("unnumbered", 0))
        for _ in range(self.replay_after_turns):
            await asyncio.sleep(0)
        return True

    async def tell_resumed(self, wire: Wire, last_seq: int) -> None:
        oldest = max(len(self.journal) - self.kept_events, 0)
        wire.cursor = max(last_seq, oldest)
        if last_seq < oldest:
            await wire.send(
                {"type": "session.resync_required", "event_id": f"event_1_{oldest}", "reason": "journal_gap", "first_seq": oldest + 1}
            )
        await wire.send({
            "type": "session.resumed", "event_id": "event_1_u2", "session": {"id": "sess_1"}, "resume_token": self.tokens[-1],
            "seq": len(self.journal), "input_samples": self.samples, "input_frames": self.frames, "client_seq": self.client_seq,
            "first_seq": wire.cursor + 1,
        })  # fmt: skip

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for what the client says."""
        async with self.grown:
            await self.grown.wait_for(true)

    async def cut(self, code: int = 1006) -> None:
        """Ends the connection of now; returns when the client knows of it (1006: at once)."""
        assert self.wire is not None
        if code == 1006:
            self.wire.socket.transport.abort()
        else:
            await self.wire.socket.close(code)

    @property
    def heard(self) -> list[bytes | tuple[int, str]]:
        """What was said, neighbouring audio joined."""
        joined: list[bytes | tuple[int, str]] = []
        for one in self.said:
            if isinstance(one, bytes) and joined and isinstance(last := joined[-1], bytes):
                joined[-1] = last + one
            else:
                joined.append(one)
        return joined


@contextlib.asynccontextmanager
async def serving(house: House) -> AsyncIterator[str]:
    """Serves the house on a free port; yields the address."""

    def judge(connection: ServerConnection, request: Request) -> Response | None:
        house.dials.append(request.path)
        house.dialled.set()
        if not house.refusals:
            return None
        status, headers = house.refusals.popleft()
        response = connection.respond(HTTPStatus(status), "")
        for name, value in headers.items():
            response.headers[name] = value
        return response

    async with serve(house.handle, "127.0.0.1", 0, process_request=judge, compression=None, max_size=32 * 1024 * 1024) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        if house.answering is not None:
            house.answering.cancel()
