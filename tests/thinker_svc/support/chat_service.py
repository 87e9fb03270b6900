"""A small OpenAI-compatible chat service on a real socket. The model's name orders how it behaves."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

SECRET_BODY = "the upstream said something private"


def event(content: str | None = None, **choice: Any) -> str:
    delta = {"content": content} if content is not None else choice.pop("delta", {})
    return json.dumps({"choices": [{"index": 0, "delta": delta, **choice}]}, ensure_ascii=False)


class ChatService:
    """What it was asked, and its address."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.gone: asyncio.Queue[str] = asyncio.Queue()
        self.base_url = ""
        self.models_status = 200
        self.app = FastAPI()
        self.app.get("/v1/models")(self._models)
        self.app.post("/v1/chat/completions")(self._complete)

    async def _models(self) -> Response:
        return JSONResponse({"data": []}, status_code=self.models_status)

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        order, _, argument = body["model"].partition(":")
        if order == "status":
            return JSONResponse({"error": {"message": SECRET_BODY}}, status_code=int(argument))
        return StreamingResponse(self._stream(order, argument), media_type="text/event-stream")

    async def _stream(self, order: str, argument: str) -> AsyncIterator[bytes]:
        try:
            async for block in getattr(self, f"_{order}")(argument):
                yield block
        except asyncio.CancelledError:
            self.gone.put_nowait(order)
            raise

    async def _say(self, reason: str) -> AsyncIterator[bytes]:
        """Every byte for itself, characters and events cut anywhere."""
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}})
        lines = [": hello", f"data: {event(role='assistant', delta={'role': 'assistant'})}"]
        lines += [f"data: {event(piece)}" for piece in ("Grüße ", "👩‍👩‍👧 ", "line\u2028sep ", "漢字")]
        lines += [f"data: {event(finish_reason=reason or 'stop')}", f"data: {usage}", "data: [DONE]"]
        for byte in "".join(f"{line}\r\n\r\n" for line in lines).encode():
            yield bytes((byte,))

    async def _halves(self, _: str) -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n'
        yield b'data: {"choices":[{"delta":{"content":"\\ude00!"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def _tools(self, arguments: str) -> AsyncIterator[bytes]:
        pieces: list[dict[str, Any]] = [
            {"index": 0, "id": "c1", "function": {"name": "clock", "arguments": ""}},
            {"index": 1, "id": "c2", "function": {"name": "stop", "arguments": "{}"}},
            *({"index": 0, "function": {"arguments": piece}} for piece in arguments),
        ]
        for piece in pieces:
            yield f"data: {event(delta={'tool_calls': [piece]})}\n\n".encode()
        yield f"data: {event(finish_reason='tool_calls')}\n\ndata: [DONE]\n\n".encode()

    async def _endless(self, _: str) -> AsyncIterator[bytes]:
        while True:
            yield f"data: {event('more ')}\n\n".encode()
            await asyncio.sleep(0.005)

    async def _hang(self, _: str) -> AsyncIterator[bytes]:
        yield f"data: {event('well ')}\n\n".encode()
        await asyncio.Event().wait()

    async def _cut(self, _: str) -> AsyncIterator[bytes]:
        yield f"data: {event('half ')}\n\n".encode()

    async def _raw(self, text: str) -> AsyncIterator[bytes]:
        yield text.encode()


@asynccontextmanager
async def chat_service() -> AsyncIterator[ChatService]:
    """Serves in this event loop until the end of the block."""
    service = ChatService()
    listener = socket.create_server(("127.0.0.1", 0))
    service.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server = uvicorn.Server(uvicorn.Config(service.app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    # the socket listens already: who connects before the server has started waits
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield service
    finally:
        server.should_exit = True
        await task
        listener.close()
