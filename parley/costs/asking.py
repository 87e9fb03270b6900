"""Asks pods how many sessions they hold."""

from __future__ import annotations

import asyncio

import httpx

from .cluster import Pod
from .reading import Reading, reading, together

ANSWER_S = 3.0
ANSWER_BYTES = 4 * 1024 * 1024
AT_ONCE = 32


async def asked(pods: list[Pod]) -> list[Reading | None]:
    """In the order of the pods; None for one of which a container does not answer, or not with what was asked."""
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as client:

        async def ask(pod: Pod) -> Reading | None:
            if not pod.ip or not pod.ports:
                return None
            host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
            async with room:
                try:
                    return together([reading(await _metrics(client, f"http://{host}:{port}/metrics")) for port in pod.ports])
                except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
                    return None

        return await asyncio.gather(*map(ask, pods))


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
