"""What a session keeps resident in its gateway: idle, and in conversation."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.session.crowd import Crowd
from benchmarks.session.fleet import Fleet
from tests.support.process import Child

TITLE = "Memory"
WARM_UP = 8
"""Sessions opened and closed before anything is measured, so that what every process loads once is loaded."""


async def measure(sessions: int, seconds: float) -> dict[str, Any]:
    async with Fleet(slots=sessions + WARM_UP) as fleet:
        gateway = fleet.gateways[0]
        async with Crowd(fleet.address, WARM_UP) as crowd:
            await crowd.open()
            await crowd.speak()
            await asyncio.sleep(1.0)
            await crowd.stop()
        empty = gateway.rss_bytes()
        async with Crowd(fleet.address, sessions) as crowd:
            await crowd.open()
            idle = gateway.rss_bytes()
            await crowd.speak()
            await asyncio.sleep(seconds)
            active = gateway.rss_bytes()
            await crowd.stop()
    bare_empty, bare_idle = await _echo(sessions)
    return {
        "sessions": sessions,
        "seconds": seconds,
        "empty_bytes": empty,
        "idle_bytes_per_session": (idle - empty) / sessions,
        "active_bytes_per_session": (active - empty) / sessions,
        "bare_empty_bytes": bare_empty,
        "bare_bytes_per_connection": (bare_idle - bare_empty) / sessions,
    }


async def _echo(sessions: int) -> tuple[int, int]:
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        child = Child("echo", ["-m", "benchmarks.session.echo"], {}, Path(folder))
        child.start()
        try:
            await asyncio.to_thread(child.wait_ready)
            empty = child.rss_bytes()
            async with Crowd(child.ready["http"], sessions) as crowd:
                await crowd.open()
                opened = child.rss_bytes()
                await crowd.stop()
        finally:
            await asyncio.to_thread(child.stop)
    return empty, opened


def section(raw: dict[str, Any]) -> str:
    kib = 1024
    rows = [
        ["gateway, no session, in all", raw["empty_bytes"] / kib],
        ["an idle session", raw["idle_bytes_per_session"] / kib],
        [f"a session after {raw['seconds']:.0f} s of audio in and out", raw["active_bytes_per_session"] / kib],
        ["bare `websockets` server, no connection, in all", raw["bare_empty_bytes"] / kib],
        ["an idle connection of it", raw["bare_bytes_per_connection"] / kib],
    ]
    return "\n".join(
        [
            report.table(("resident", "KiB"), [[name, f"{value:.0f}"] for name, value in rows]),
            "",
            f"Differences of resident memory over {raw['sessions']} sessions. Up to 1.4 MiB of an active one is the client's newest 30 s",
            "of audio, which a stage that is placed anew may have to hear again.",
        ]
    )
