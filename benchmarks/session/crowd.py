"""Load processes, as the one who commands them sees them."""

from __future__ import annotations

import asyncio
import json
import sys
from types import TracebackType
from typing import Any

from benchmarks.house import ROOT

PER_PROCESS = 100


class Crowd:
    """`conversations` to one address, from as many processes as they need. An async context: leaving it ends them.

    Without `microphones` they ask for a reply and only listen.
    """

    def __init__(self, address: str, conversations: int, *, microphones: bool = True) -> None:
        self._url, self._microphones = f"ws://{address}/v1/realtime", "--microphones" if microphones else "--no-microphones"
        shares = -(-conversations // PER_PROCESS)
        self._sizes = [conversations * (n + 1) // shares - conversations * n // shares for n in range(shares)]
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Crowd:
        for size in self._sizes:
            command = ["-m", "benchmarks.session.load", "--url", self._url, "--conversations", str(size), self._microphones]
            pipe = asyncio.subprocess.PIPE
            self._processes.append(
                await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, stdin=pipe, stdout=pipe, limit=1024 * 1024)
            )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def open(self) -> list[str]:
        """Session ids."""
        return [session_id for answer in await self._tell("open") for session_id in answer]

    async def speak(self) -> None:
        await self._tell("speak")

    async def measure(self) -> None:
        await self._tell("measure")

    async def stop(self) -> dict[str, float]:
        """What all counted since `measure`, together."""
        answers = await self._tell("stop")
        total = {name: sum(answer[name] for answer in answers) for name in ("sent", "late", "deltas", "lost")}
        return total | {name: max(answer[name] for answer in answers) for name in ("worst_late_ms", "bytes_per_delta")}

    async def _tell(self, order: str) -> list[Any]:
        return list(await asyncio.gather(*(_ask(process, order) for process in self._processes)))


async def _ask(process: asyncio.subprocess.Process, order: str) -> Any:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{order}\n".encode())
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a load process ended at {order!r}")
    return json.loads(line)
