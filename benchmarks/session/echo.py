"""`python -m benchmarks.session.echo`: a bare `websockets` server that answers each piece of audio with one as large as a gateway's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import uvloop
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.session.load import APPEND, DELTA, PIECE_BYTES, encode


def reply() -> str:
    """As long as the gateway's event."""
    name = "0" * 32
    ids = f'"event_id":"event_{name}_1000","response_id":"resp_{name}_1","item_id":"item_a_{name}_1"'
    return f'{DELTA},{ids},"output_index":0,"content_index":0,"delta":"{encode(bytes(PIECE_BYTES))}"}}'


async def converse(socket: ServerConnection) -> None:
    answer = reply()
    await socket.send('{"type":"session.created","session":{"id":"sess_echo"}}')
    async for message in socket:
        if isinstance(message, str) and message.startswith(APPEND):
            await socket.send(answer)


async def main() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with serve(converse, "127.0.0.1", 0, compression=None, max_size=None) as server:
        host, port = next(iter(server.sockets)).getsockname()
        file = Path(os.environ["PARLEY_READY_FILE"])
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"http": f"{host}:{port}", "pid": os.getpid()}))
        new.replace(file)
        await stopping.wait()


if __name__ == "__main__":
    uvloop.run(main())
