"""A conversation: what the client says, and the server's events in order."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .connection import Connection, Dialer, Limits
from .errors import ConnectionLost, ProtocolError, Refused, SessionClosed, Unreachable
from .events import Error, Event, SessionCreated, SessionUpdated, decode

MAX_APPEND_BYTES = 256 * 1024
"""Longer audio is sent as several appends."""


@asynccontextmanager
async def connect(
    url: str, api_key: str | None = None, model: str | None = None, *, limits: Limits | None = None
) -> AsyncIterator[Session]:
    """Opens a conversation and closes it at the end of the block.

    url is the server's address (`http://host:port` or the full `ws://…/v1/realtime`). Raises a ConnectError.
    """
    session = await Session.open(Dialer(url, api_key=api_key, model=model, limits=limits or Limits()))
    try:
        yield session
    finally:
        await session.close()


class Session:
    """One conversation over a connection. Iterate it for the server's events; one iteration at a time, sends from any task."""

    def __init__(self, dialer: Dialer, connection: Connection, created: SessionCreated) -> None:
        self._dialer = dialer
        self._connection = connection
        self._sent = 0
        self.config: dict[str, Any] = created.session
        """The effective configuration, as the server last told it."""
        self.id: str = str(created.session.get("id") or "")

    @classmethod
    async def open(cls, dialer: Dialer) -> Session:
        """Dials and waits for the server's `session.created`. Raises a ConnectError, ConnectionLost or ProtocolError."""
        connection = await dialer.dial()
        try:
            async with asyncio.timeout(dialer.limits.open_timeout_s):
                first = decode(await connection.receive())
            match first:
                case SessionCreated():
                    return cls(dialer, connection, first)
                case Error(error=error):
                    raise Refused(error.message, code=error.code or "")
            raise ProtocolError("the server's first event is not session.created")
        except TimeoutError as error:
            await connection.close()
            raise Unreachable(f"the server sent nothing within {dialer.limits.open_timeout_s:g} s of the upgrade") from error
        except BaseException:
            await connection.close()
            raise

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event; the iteration ends after close(), or when the server closed normally (1000). Else raises ConnectionLost."""
        try:
            event = decode(await self._connection.receive())
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
        """Appends audio in the session's input format (24 kHz mono PCM16 little-endian unless updated); any length."""
        for start in range(0, len(pcm), MAX_APPEND_BYTES):
            audio = b64encode(pcm[start : start + MAX_APPEND_BYTES]).decode("ascii")
            await self.send("input_audio_buffer.append", audio=audio)

    async def commit(self) -> str:
        """Ends the user's turn (push to talk). Returns the client event's id, as all commands do: an `events.Error` names it."""
        return await self.send("input_audio_buffer.commit")

    async def clear_input(self) -> str:
        """Forgets the audio that is not committed yet."""
        return await self.send("input_audio_buffer.clear")

    async def respond(self, **options: Any) -> str:
        """Asks for a response; options are those of `response.create`, for this response only."""
        return await self.send("response.create", **({"response": options} if options else {}))

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
        """Sends any client event under a new event id, and returns that id. Raises ConnectionLost or SessionClosed."""
        self._sent += 1
        event_id = f"client_{self._sent}"
        await self._connection.send(msgspec.json.encode({"type": type, "event_id": event_id, **fields}).decode())
        return event_id

    async def close(self) -> None:
        """Ends the conversation; harmless when it has ended already."""
        await self._connection.close()
