"""A TCP proxy between two real processes, whose connections a test can cut or hold."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from types import TracebackType


def free_port() -> int:
    """Below those that the system gives to connections: none takes it before the process that it is for."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Proxy:
    """Listens on `address` and joins every connection to `target` (host:port). Runs in a thread of its own. A context manager."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._writers: set[asyncio.StreamWriter] = set()
        self._joined: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.address = ""

    def start(self) -> Proxy:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._join, "127.0.0.1", 0), self._loop).result()
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    def cut(self, *, refuse: bool = False) -> None:
        """Resets every connection; `refuse` also turns away those that follow, until `mend`."""
        asyncio.run_coroutine_threadsafe(self._cut(refuse), self._loop).result()

    def mend(self) -> None:
        self._refusing = False

    def hold(self) -> None:
        """Nothing passes any more, either way, though every connection stays open, as when a network goes silent."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def release(self) -> None:
        """What was held passes, and all that follows."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        await self._cut(True)
        await asyncio.gather(*self._joined, return_exceptions=True)

    async def _cut(self, refuse: bool) -> None:
        self._refusing = refuse
        self._flowing.set()
        for writer in self._writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._joined.add(task)
        task.add_done_callback(self._joined.discard)
        host, _, port = self.target.rpartition(":")
        if self._refusing:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
        finally:
            self._writers -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def __enter__(self) -> Proxy:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
