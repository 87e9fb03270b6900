"""Asks pods how many sessions they hold."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl

import httpx

from .cluster import Pod
from .reading import Reading, reading, together

ANSWER_S = 3.0
ALL_ANSWERS_S = 60.0
"""Half a round: what many silent pods leave of it is for writing what the others said."""
ANSWER_BYTES = 4 * 1024 * 1024
AT_ONCE = 32


async def asked(pods: list[Pod]) -> list[tuple[Pod, Reading | None]]:
    """In no order; None for a pod of which a container does not answer, or not with what was asked. Some lack when time ran out."""
    room = asyncio.Semaphore(AT_ONCE)
    found: list[tuple[Pod, Reading | None]] = []
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # none is asked over TLS; httpx's own would read all authorities in each round
    async with httpx.AsyncClient(
        verify=nobody, timeout=ANSWER_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    ) as client:

        async def ask(pod: Pod) -> None:
            async with room:
                found.append((pod, await _reading(client, pod)))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ALL_ANSWERS_S):
                # in another order each time, so that nobody is always behind the silent ones
                await asyncio.gather(*map(ask, random.sample(pods, len(pods))))
    return found


async def _reading(client: httpx.AsyncClient, pod: Pod) -> Reading | None:
    if not pod.ip or not pod.ports:
        return None
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    try:
        return together([reading(await _metrics(client, f"http://{host}:{port}/metrics")) for port in pod.ports])
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
        return None


async def _metrics(client: httpx.AsyncClient, url: str) -> bytes:
    """Raises ValueError for an answer that is none, or too long."""
    content = bytearray()
    # raw: what is packed could become any size
    async with asyncio.timeout(ANSWER_S), client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
        if answer.status_code != 200:
            raise ValueError(f"status {answer.status_code}")
        async for part in answer.aiter_raw():
            content += part
            if len(content) > ANSWER_BYTES:
                raise ValueError("too long")
    return bytes(content)
