"""A conversation: what the client says, and the server's events in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType

from .connection import Dialer
from .errors import ConnectionLost, OutageTooLong, ProtocolError, Refused, SessionClosed, Unreachable
from .events import Error, Event, Response, SessionCreated, SessionUpdated, decode
from .inbox import REQUEST_KEY, Lane
from .limits import Limits
from .link import Link, OnState
from .pictures import check_picture
from .reply import Reply, Request

MAX_APPEND_BYTES = 256 * 1024
"""Longer audio is sent as several appends."""


@asynccontextmanager
async def connect(
    url: str,
    api_key: str | None = None,
    model: str | None = None,
    *,
    resume: bool = True,
    on_state: OnState | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Session]:
    """Opens a conversation and closes it at the end of the block.

    url is the server's address (`http://host:port` or the full `ws://…/v1/realtime`). With resume, a lost connection is dialled again and
    the conversation goes on where it was, if the server can do that. on_state is told "connected", "reconnecting" and "ended", on the event
    loop. Raises a ConnectError.
    """
    dialer = Dialer(url, api_key=api_key, model=model, limits=limits or Limits(), resume=resume)
    session = await Session.open(dialer, on_state)
    try:
        yield session
    finally:
        await session.close()


class Session:
    """One conversation. Iterate it for the server's events; one iteration at a time, sends from any task.

    Everything that is sent arrives once and in order, and every event is told once and in order, over as many connections as it takes.
    What cannot be made good is told by an event: `ResyncRequired`, `InputLost`.
    """

    def __init__(self, link: Link, created: SessionCreated, limits: Limits) -> None:
        self._link, self._limits = link, limits
        self._sent = 0
        self.config: dict[str, Any] = created.session
        """The effective configuration, as the server last told it."""
        self.id: str = str(created.session.get("id") or "")

    @classmethod
    async def open(cls, dialer: Dialer, on_state: OnState | None = None) -> Session:
        """Dials and waits for the server's `session.created`. Raises a ConnectError, ConnectionLost or ProtocolError."""
        connection = await dialer.dial()
        try:
            async with asyncio.timeout(dialer.limits.open_timeout_s):
                first = decode(await connection.receive())
            match first:
                case SessionCreated():
                    return cls(Link(dialer, connection, first, on_state), first, dialer.limits)
                case Error(error=error):
                    raise Refused(error.message, code=error.code or "")
            raise ProtocolError("the server's first event is not session.created")
        except TimeoutError as error:
            await connection.close()
            raise Unreachable(f"the server sent nothing within {dialer.limits.open_timeout_s:g} s of the upgrade") from error
        except BaseException:
            await connection.close()
            raise

    @property
    def resumable(self) -> bool:
        """Whether the session outlives its connection."""
        return self._link.resumable

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event; the iteration ends after close(), or when the server closed normally (1000). Else raises ConnectionLost."""
        try:
            event = await self._link.take(self._link.inbox.main)
        except SessionClosed:
            raise StopAsyncIteration from None
        except ConnectionLost as error:
            if error.code == 1000:
                raise StopAsyncIteration from None
            raise
        if isinstance(event, SessionUpdated):
            self.config = event.session
        return event

    async def send_audio(self, pcm: bytes) -> None:
        """Appends audio in the session's input format (24 kHz mono PCM16 little-endian unless updated); any length.

        Half a sample waits for its other half. While the connection is away, audio is kept; raises OutageTooLong when that takes too long.
        """
        for start in range(0, len(pcm), MAX_APPEND_BYTES):
            try:
                await self._link.say_audio(self._new_event_id(), pcm[start : start + MAX_APPEND_BYTES])
            except OutageTooLong as error:
                error.accepted_bytes = start
                raise

    async def see(self, picture: bytes, *, max_slices: int | None = None) -> str:
        """Shows a native model that sees a camera frame, the bytes of a JPEG or PNG file: it was taken where the audio sent so far ends.

        max_slices: into how many details, 1 to 9, the model may cut it; None leaves it to the model. Returns the client event's id; an
        `events.Error` names it when the server refuses it (such as too_many_frames of one unit). Kept and sent again like audio. Raises
        BadPicture and has sent nothing, or OutageTooLong, ConnectionLost or SessionClosed.
        """
        check_picture(picture, max_slices, self._limits.picture_bytes)
        event_id = self._new_event_id()
        await self._link.show(event_id, picture, max_slices or 0)
        return event_id

    async def commit(self) -> str:
        """Ends the user's turn (push to talk). Returns the client event's id, as all commands do: an `events.Error` names it."""
        return await self.send("input_audio_buffer.commit")

    async def clear_input(self) -> str:
        """Forgets the audio that is not committed yet."""
        return await self.send("input_audio_buffer.clear")

    def respond(self, **options: Any) -> Request:
        """Asks for a response; options are those of `response.create`, for this response only.

        `await session.respond()` asks, and the session's iteration tells the rest. `async with session.respond() as reply` asks and gives
        the Reply, whose events come to it alone; it is known by a key in its metadata.
        """
        return Request(partial(self._ask, options), self._link, self.send)

    def reply(self, response: Response) -> Reply:
        """The handle of a response that the server began by itself, as `events.ResponseCreated` told it. Use it as a context manager."""
        return Reply(self._link, self._link.inbox.lane_for_response(response.id), self.send, response)

    async def _ask(self, options: dict[str, Any], as_reply: bool) -> tuple[str, Lane]:
        event_id, lane = self._new_event_id(), self._link.inbox.main
        if as_reply:
            lane = self._link.inbox.lane_for_request(event_id)
            options = {**options, "metadata": {**(options.get("metadata") or {}), REQUEST_KEY: event_id}}
        try:
            await self._link.say("response.create", event_id, {"response": options} if options else {})
        except BaseException:
            self._link.inbox.release(lane)
            raise
        return event_id, lane

    async def cancel(self, response_id: str | None = None) -> str:
        """Ends the active response, or the named one."""
        return await self.send("response.cancel", **({"response_id": response_id} if response_id else {}))

    async def update(
        self,
        *,
        turn_detection: Mapping[str, Any] | UnsetType | None = UNSET,
        transcription: Mapping[str, Any] | UnsetType | None = UNSET,
        voice: str | UnsetType = UNSET,
        **session: Any,
    ) -> str:
        """Changes the configuration: only what is named changes, None switches off. Further fields are those of a GA session.

        The server answers `events.SessionUpdated`, or `events.Error` and changes nothing.
        """
        audio: dict[str, Any] = {side: dict(fields) for side, fields in session.pop("audio", {}).items()}
        for side, name, value in (
            ("input", "turn_detection", turn_detection),
            ("input", "transcription", transcription),
            ("output", "voice", voice),
        ):
            if value is not UNSET:
                audio.setdefault(side, {})[name] = value
        return await self.send("session.update", session={"type": "realtime", **session, **({"audio": audio} if audio else {})})

    async def create_item(self, item: str | Mapping[str, Any], *, previous_item_id: str | None = None) -> str:
        """Adds an item to the conversation; a str is a text message of the user."""
        if isinstance(item, str):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": item}]}
        return await self.send(
            "conversation.item.create", item=item, **({"previous_item_id": previous_item_id} if previous_item_id else {})
        )

    async def retrieve_item(self, item_id: str) -> str:
        """Asks for an item; `events.ItemRetrieved` answers."""
        return await self.send("conversation.item.retrieve", item_id=item_id)

    async def delete_item(self, item_id: str) -> str:
        """Removes an item from the conversation."""
        return await self.send("conversation.item.delete", item_id=item_id)

    async def truncate_item(self, item_id: str, audio_end_ms: int, *, content_index: int = 0) -> str:
        """Says how much of a spoken answer was heard; the rest leaves the history."""
        return await self.send("conversation.item.truncate", item_id=item_id, content_index=content_index, audio_end_ms=audio_end_ms)

    async def send(self, type: str, /, **fields: Any) -> str:
        """Sends any client event under a new event id, and returns that id. Raises OutageTooLong, ConnectionLost or SessionClosed."""
        event_id = self._new_event_id()
        await self._link.say(type, event_id, fields)
        return event_id

    def cut(self) -> None:
        """Drops the TCP connection without a word, as a dying network would: a rehearsal of the real thing."""
        self._link.cut()

    async def close(self) -> None:
        """Ends the conversation; harmless when it has ended already."""
        await self._link.close()

    def _new_event_id(self) -> str:
        self._sent += 1
        return f"client_{self._sent}"
