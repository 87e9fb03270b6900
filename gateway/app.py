"""Routes; nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI, Response, WebSocket
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.websockets import WebSocketDisconnect, WebSocketState

from . import metrics
from .actor import Actor, ClientGone, Ending
from .capabilities import capabilities
from .conversation.commands import Refused
from .conversation.errors import Refusal
from .hub import Hub
from .logs import describe
from .opening import OpenRefused
from .web import HEADERS, Asset, load_assets
from .wire import WireLimits, openai_ga
from .wire.handshake import HandshakePolicy, decide, digest_key
from .wire.problems import WireRefusal
from .wire.refusals import http_refusal

log = structlog.get_logger()


def create_app(hub: Hub) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.stop()

    app = FastAPI(title="Parley", lifespan=lifespan, docs_url=None, redoc_url=None)
    digests = frozenset(digest_key(key) for key in hub.settings.accepted_keys())
    policy = HandshakePolicy((hub.profile.model, hub.profile.name), digests)
    limits = WireLimits(max_event_bytes=hub.settings.max_event_bytes)

    @app.get("/health")
    async def health() -> Response:
        status = "draining" if hub.draining else "healthy"
        return Response(f'{{"status":"{status}"}}', 503 if hub.draining else 200, media_type="application/json")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": hub.profile.model, "object": "model", "created": 0, "owned_by": "parley"}]}

    @app.get("/v1/realtime/capabilities")
    async def realtime_capabilities() -> dict[str, Any]:
        return capabilities(hub.settings, hub.profile, hub.graph, limits)

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await _Connection(hub, policy, limits, socket).serve()

    for path, asset in load_assets().items():
        app.add_api_route(path, _page(asset), methods=["GET", "HEAD"], include_in_schema=False)
    return app


def _page(asset: Asset) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:
        return Response(asset.body, headers=HEADERS, media_type=asset.media_type)

    return serve


class _Connection:
    """One upgrade request and, if it is let in, the socket's reader and writer."""

    def __init__(self, hub: Hub, policy: HandshakePolicy, limits: WireLimits, socket: WebSocket) -> None:
        self._hub, self._policy, self._limits, self._socket = hub, policy, limits, socket
        self._reader: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        try:
            query = self._socket.scope["query_string"].decode("latin-1")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._socket.scope["headers"]}
            handshake = decide(query, headers, self._socket.scope["subprotocols"], self._policy)
            opened, config = await self._hub.open(handshake.key_digest or "anonymous")
        except Refusal as refusal:
            await self._deny(refusal)
            return
        except OpenRefused as refused:
            await self._deny(refused.refusal, refused.retry_after_ms)
            return
        metrics.OPENS.labels("accepted").inc()
        try:
            await self._socket.accept(subprotocol=handshake.subprotocol)
        except BaseException:
            await self._hub.abandon(opened)
            raise
        try:
            ending = await self._hub.converse(opened, config, self._write, self._begin)
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
        await self._close(ending)

    async def _deny(self, refusal: Refusal, retry_after_ms: int = 1000) -> None:
        metrics.OPENS.labels(refusal.code).inc()
        answer = http_refusal(refusal, retry_after_ms)
        await self._socket.send_denial_response(Response(answer.body, answer.status, answer.headers))

    async def _close(self, ending: Ending) -> None:
        if ending.code == 1006 or self._socket.application_state is not WebSocketState.CONNECTED:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._socket.close(ending.code, ending.reason[:123])
        except (RuntimeError, TimeoutError, WebSocketDisconnect, OSError):
            return  # the client is gone: there is nobody to tell

    def _begin(self, actor: Actor) -> None:
        self._reader = asyncio.create_task(self._read(actor), name="read")

    async def _write(self, text: str) -> None:
        try:
            await self._socket.send({"type": "websocket.send", "text": text})
        except (WebSocketDisconnect, RuntimeError, OSError) as gone:
            raise ClientGone from gone

    async def _read(self, actor: Actor) -> None:
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    actor.end(1006, "client_disconnected")
                    return
                self._receive(actor, message.get("text"), message.get("bytes"))
                await actor.room(self._hub.settings.max_pending_input_bytes)
        except asyncio.CancelledError:
            raise
        except Exception as failure:
            log.error("reader failed", session=actor.conversation.session_id, failure=describe(failure))
            actor.end(1011, "internal_error")

    def _receive(self, actor: Actor, text: str | None, data: bytes | None) -> None:
        at = time.perf_counter()
        try:
            command = openai_ga.parse(text if text is not None else data or b"", self._limits)
        except WireRefusal as refusal:
            actor.put(Refused(refusal.code, refusal.message, refusal.param, refusal.client_event_id), at)
            return
        metrics.CLIENT_EVENTS.labels(type(command).__name__).inc()
        actor.put(command, at)
