"""Routes; nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response, WebSocket
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.websockets import WebSocketDisconnect, WebSocketState

from . import crash, metrics
from .access.client_secrets import SecretMaker
from .access.gate import asked
from .access.principal import Principal
from .actor import Actor
from .capabilities import capabilities
from .conversation import events
from .conversation.commands import Refused
from .conversation.errors import Refusal
from .ending import SUPERSEDED, Ending
from .hub import Hub, Seat
from .live import ClientGone, LiveSession
from .logs import describe
from .opening import OpenRefused
from .resuming import ResumeAsk
from .web import HEADERS, Asset, load_assets
from .wire import WireLimits, extension, openai_ga
from .wire.handshake import Handshake, HandshakePolicy, ResumeWish, decide
from .wire.problems import WireRefusal
from .wire.refusals import close_code, http_refusal

log = structlog.get_logger()
LAST_WORDS_S = 0.5
"""How long a client that does not read may take to hear that it is over."""
GOODBYES = (1000, 1001)
"""Close codes with which a client ends its session for good; any other may be a lost connection."""


def create_app(hub: Hub) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.stop()

    app = FastAPI(title="Parley", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    policy = HandshakePolicy((hub.profile.model, hub.profile.name))
    limits = WireLimits(max_event_bytes=hub.settings.max_event_bytes, max_image_bytes=hub.settings.max_image_bytes)

    secrets = SecretMaker(hub, policy, limits)
    _observe(app, hub, with_metrics=not hub.settings.metrics_bind)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": hub.profile.model, "object": "model", "created": 0, "owned_by": "parley"}]}

    @app.get("/v1/realtime/capabilities")
    async def realtime_capabilities() -> dict[str, Any]:
        return capabilities(hub.settings, hub.profile, hub.graph, limits)

    @app.post("/v1/realtime/client_secrets")
    async def client_secrets(request: Request) -> Response:
        try:
            return Response(await secrets.make(request), headers={"Cache-Control": "no-store"}, media_type="application/json")
        except Refusal as refusal:
            return _denial(refusal)
        except OpenRefused as refused:
            return _denial(refused.refusal, refused.retry_after_ms)

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await _Connection(hub, policy, limits, socket).serve()

    for path, asset in load_assets().items():
        app.add_api_route(path, _page(asset), methods=["GET", "HEAD"], include_in_schema=False)
    return app


def create_metrics_app(hub: Hub) -> FastAPI:
    """What operators look at, for an address of its own."""
    app = FastAPI(title="Parley metrics", docs_url=None, redoc_url=None, openapi_url=None)
    _observe(app, hub, with_metrics=True)
    return app


def _observe(app: FastAPI, hub: Hub, *, with_metrics: bool) -> None:
    @app.get("/health")
    async def health() -> Response:
        status = "draining" if hub.draining else "healthy"
        return Response(f'{{"status":"{status}"}}', 503 if hub.draining else 200, media_type="application/json")

    if with_metrics:

        @app.get("/metrics")
        async def prometheus() -> Response:
            return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _denial(refusal: Refusal, retry_after_ms: int = 1000) -> Response:
    answer = http_refusal(refusal, retry_after_ms)
    return Response(answer.body, answer.status, answer.headers)


def _page(asset: Asset) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:
        return Response(asset.body, headers=HEADERS, media_type=asset.media_type)

    return serve


class _Connection:
    """One upgrade request and, if it is let in, the socket's reader and writer."""

    def __init__(self, hub: Hub, policy: HandshakePolicy, limits: WireLimits, socket: WebSocket) -> None:
        self._hub, self._policy, self._limits, self._socket = hub, policy, limits, socket
        self._who = Principal()
        self._parse: Callable[[str | bytes, WireLimits], Any] = openai_ga.parse
        self._gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        try:
            query = self._socket.scope["query_string"].decode("latin-1")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._socket.scope["headers"]}
            self._who = await self._hub.gate.enter(
                asked(self._socket.client, self._socket.scope["headers"], self._socket.scope["subprotocols"])
            )
            handshake = decide(query, headers, self._socket.scope["subprotocols"], self._policy)
            if handshake.extended:
                self._parse = extension.parse
            if handshake.awaits_resume:
                await self._resume_by_message(handshake)
            elif handshake.resume is not None:
                await self._resume_by_request(handshake, handshake.resume)
            else:
                await self._open(handshake)
        except Refusal as refusal:
            await self._deny(refusal)
        except OpenRefused as refused:
            await self._deny(refused.refusal, refused.retry_after_ms)

    async def _open(self, handshake: Handshake) -> None:
        await self._hub.gate.count_open(self._who)
        config = self._hub.configured(self._who.patch)
        opened = await self._hub.open(self._who, config)
        metrics.OPENS.labels("accepted").inc()
        try:
            await self._socket.accept(subprotocol=handshake.subprotocol)
        except BaseException:
            await self._hub.abandon(opened)
            raise
        await self._converse(self._hub.begin(opened, config, extended=handshake.extended))

    async def _resume_by_request(self, handshake: Handshake, wish: ResumeWish) -> None:
        """A stock client: decided before the upgrade. Its last event id tells what it has."""
        ask = ResumeAsk(wish.session_id, wish.token, _seq_of(wish.last_event_id), resends=handshake.extended)
        seat = await self._take(ask, extended=handshake.extended)
        try:
            await self._socket.accept(subprotocol=handshake.subprotocol)
        except BaseException:
            self._hub.leave(seat)
            raise
        await self._converse(seat)

    async def _resume_by_message(self, handshake: Handshake) -> None:
        """Our client: nothing is admitted or sent until its token is checked."""
        await self._socket.accept(subprotocol=handshake.subprotocol)
        try:
            async with asyncio.timeout(self._hub.settings.resume_timeout_ms / 1000):
                message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            told = extension.parse_resume(message.get("text") or message.get("bytes") or b"")
            seat = await self._take(ResumeAsk(told.session_id, told.resume_token, told.last_seq + told.unnumbered), extended=True)
        except TimeoutError:
            await self._refuse(Refusal("resume_timeout"))
        except Refusal as refusal:
            await self._refuse(refusal)
        else:
            await self._converse(seat)

    async def _take(self, ask: ResumeAsk, *, extended: bool) -> Seat:
        started = time.perf_counter()
        try:
            seat = await self._hub.take(ask, self._who, extended=extended)
        except Refusal as refusal:
            metrics.TAKEOVERS.labels(refusal.code).inc()
            raise
        metrics.RESUME_SECONDS.observe(time.perf_counter() - started)
        return seat

    async def _refuse(self, refusal: Refusal) -> None:
        """After the upgrade: said as an event, then closed."""
        view = openai_ga.SessionView("sess_none")
        error = events.Error(refusal.code, refusal.message, refusal.param)
        try:
            await self._write(openai_ga.render(error, None, view).decode())
            await self._socket.close(close_code(refusal.code), refusal.code)
        except (ClientGone, RuntimeError, WebSocketDisconnect, OSError):
            return

    async def _converse(self, seat: Seat) -> None:
        reader = asyncio.create_task(self._read(seat.session), name="read")
        try:
            ending = await self._hub.converse(seat, self._write, self._gone)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if ending == SUPERSEDED and seat.extended:
            with contextlib.suppress(ClientGone, TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._write(extension.replaced(openai_ga.SessionView(seat.session.opened.session_id)))
        await self._close(ending)

    async def _deny(self, refusal: Refusal, retry_after_ms: int = 1000) -> None:
        metrics.OPENS.labels(refusal.code).inc()
        await self._socket.send_denial_response(_denial(refusal, retry_after_ms))

    async def _close(self, ending: Ending) -> None:
        if ending.code == 1006 or self._socket.application_state is not WebSocketState.CONNECTED:
            return
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._socket.close(ending.code, ending.reason[:123])
        except (RuntimeError, TimeoutError, WebSocketDisconnect, OSError):
            return  # the client is gone: there is nobody to tell

    async def _write(self, text: str) -> None:
        try:
            await self._socket.send({"type": "websocket.send", "text": text})
            crash.here("after_send")
        except (WebSocketDisconnect, RuntimeError, OSError) as gone:
            raise ClientGone from gone

    async def _read(self, session: LiveSession) -> None:
        actor, first = session.actor, True
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    self._lost(_is_goodbye(message))
                    return
                session.heard = True
                if first:
                    first = False
                    await self._hub.settle_token(session)
                self._receive(actor, message.get("text"), message.get("bytes"))
                await actor.room(self._hub.settings.max_pending_input_bytes)
        except asyncio.CancelledError:
            raise
        except Exception as failure:
            log.error("reader failed", session=actor.conversation.session_id, failure=describe(failure))
            actor.end(1011, "internal_error")

    def _lost(self, clean: bool) -> None:
        if not self._gone.done():
            self._gone.set_result(clean)

    def _receive(self, actor: Actor, text: str | None, data: bytes | None) -> None:
        at = time.perf_counter()
        try:
            command = self._parse(text if text is not None else data or b"", self._limits)
        except WireRefusal as refusal:
            refused = Refused(
                code=refusal.code,
                message=refusal.message,
                param=refusal.param,
                event_id=refusal.client_event_id,
                client_seq=refusal.client_seq,
            )
            actor.put(refused, at)
            return
        if isinstance(command, extension.EventAck):
            actor.acked_seq = max(actor.acked_seq, command.seq)
            return
        metrics.client_events(type(command).__name__).inc()
        actor.put(command, at)


def _is_goodbye(message: MutableMapping[str, Any]) -> bool:
    """A close frame without a code is one, too; the server reports a lost connection by the same number, but gives no reason then."""
    code = message.get("code", 1006)
    return code in GOODBYES or (code == 1005 and "reason" in message)


def _seq_of(event_id: str | None) -> int | None:
    """The number at the end of a server event's id; None when it has none."""
    tail = event_id.rpartition("_")[2] if event_id else ""
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 16 else None
