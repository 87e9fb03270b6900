"""`python -m gateway`: serve until SIGTERM or SIGINT, then drain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from session_store import Store
from session_store.errors import StoreError, StoreUnavailable, StoreUrlError
from session_store.garbage import keep_for_good

from . import tls
from .access.key_file import KeyFileError
from .app import create_app, create_metrics_app
from .graph import Profile, ProfileError
from .hub import Hub
from .logs import configure
from .profile_file import load_profile_file
from .settings import Settings

log = structlog.get_logger()
STORE_RETRY_S = 0.25


class _Server(uvicorn.Server):
    """Signals are ours: a drain comes before the stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> None:
    try:
        settings = Settings()
        profile = load_profile_file(settings.profile)
        settings.accepted_keys()
        if (pair := settings.http_tls()) is not None:
            tls.check(*pair)
        listeners = [_bind(address) for address in (settings.http_bind, settings.metrics_bind) if address]
    except (ValidationError, ProfileError, OSError, ValueError) as failure:
        sys.exit(f"gateway: {_one_line(failure)}")
    configure(settings.log_level)
    try:
        uvicorn_loop().run(_serve(settings, profile, *listeners))
    except KeyFileError as failure:
        sys.exit(f"gateway: the key file {settings.keys_file}: {failure}")
    except StoreUrlError as failure:
        sys.exit(f"gateway: {failure}")
    except StoreError as failure:
        sys.exit(f"gateway: the session store does not answer: {failure}")


def uvicorn_loop() -> asyncio.Runner:
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _bind(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
    except OSError as failure:
        listener.close()
        raise OSError(f"cannot listen on {address}: {failure.strerror}") from failure
    return listener


async def _serve(settings: Settings, profile: Profile, listener: socket.socket, observed: socket.socket | None = None) -> None:
    patiently = AsyncRetrying(
        retry=retry_if_exception_type(StoreUnavailable),
        stop=stop_after_delay(settings.store_wait_ms / 1000),
        wait=wait_fixed(STORE_RETRY_S),
        reraise=True,
    )
    store: Store = await patiently(Store.open, settings.redis_url.get_secret_value())
    hub = Hub(settings, profile, store)
    host, port = listener.getsockname()[:2]
    await patiently(hub.start, settings.advertise or f"{host}:{port}")
    server = _Server(_config(create_app(hub), settings, settings.http_tls()))
    observer = _Server(_config(create_metrics_app(hub), settings)) if observed is not None else None
    keep_for_good()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    started = asyncio.create_task(server.up.wait())
    await asyncio.wait([started, serving], return_when=asyncio.FIRST_COMPLETED)
    beside = _beside(settings, server, observer, observed)
    if observer is not None:
        await observer.up.wait()
    if settings.ready_file is not None:
        addresses = {"http": f"{host}:{port}"} | ({"metrics": "{}:{}".format(*observed.getsockname()[:2])} if observed is not None else {})
        _write_ready(settings.ready_file, addresses)
    log.info("ready", http=f"{host}:{port}", model=profile.model, gateway=hub.gateway_id)
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait([waiting, serving], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await hub.drain()
    server.should_exit = True
    await serving
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)


def _config(app: FastAPI, settings: Settings, pair: tuple[Path, Path] | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # whose address is believed is ours to decide
        http="h11",  # bounds the head of a request (64 KiB), which httptools, where it is installed, does not
        ws="websockets-sansio",
        ws_max_size=settings.max_frame_bytes,
        ws_ping_interval=settings.ws_ping_interval_s,
        ws_ping_timeout=settings.ws_ping_timeout_s,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=pair[0] if pair else None,
        ssl_keyfile=pair[1] if pair else None,
        ssl_ciphers=tls.CIPHERS,
    )


def _beside(settings: Settings, server: _Server, observer: _Server | None, observed: socket.socket | None) -> list[asyncio.Task[None]]:
    """What runs for as long as clients are served."""
    tasks = []
    if (pair := settings.http_tls()) is not None and (context := server.config.ssl) is not None:
        tasks.append(asyncio.create_task(tls.watch(context, *pair, settings.http_tls_reload_s), name="certificate"))
    if observer is not None and observed is not None:
        tasks.append(asyncio.create_task(observer.serve(sockets=[observed]), name="metrics"))
    return tasks


def _write_ready(path: Path, addresses: dict[str, str]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({**addresses, "pid": os.getpid()}))
    temporary.replace(path)


def _one_line(failure: Exception) -> str:
    return " ".join(str(failure).split())


if __name__ == "__main__":
    main()
