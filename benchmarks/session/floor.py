"""The floor under what the store costs: the same script with the same bytes, from a bare client that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterable

import redis

from session_store.connection import Call
from session_store.scripts import read_scripts


def evalsha_ms(url: str, calls: Iterable[Call], pause_s: float) -> list[float]:
    """Milliseconds of each call, one at a time with a pause between. Blocks."""
    shas = {name: script.sha for name, script in read_scripts().items()}
    with redis.Redis.from_url(url) as client:
        took = []
        for call in calls:
            time.sleep(pause_s)
            began = time.perf_counter()
            client.execute_command("EVALSHA", shas[call.script], len(call.keys), *call.keys, *call.args)
            took.append((time.perf_counter() - began) * 1000)
        return took
