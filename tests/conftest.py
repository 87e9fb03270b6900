"""Fixtures for the tests of every package: a real Valkey for the whole run, a store on it, flushed for each test, a tiny checkpoint."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if not Path("/dev/nvidiactl").exists():
    # read when Triton is first imported, which transformers does, too
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

from tests.support.checkpoint import tiny_checkpoint
from tests.support.valkey import ValkeyProcess

if TYPE_CHECKING:
    from session_store import Store

__all__ = ["store", "tiny_checkpoint", "valkey_url"]
FIRST = ("chaos", "vocoder_svc", "thinker_svc", "talker_svc", "torch_kit", "embedded", "native_e2e", "failover", "parley", "page", "e2e")
"""Folders of long files: those that wait beside those that compute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that no worker is left with one at the end (`make test` gives files out in this order)."""
    ranks, below = {name: rank for rank, name in enumerate(FIRST)}, len(Path(__file__).parent.parts)
    items.sort(key=lambda item: ranks.get(item.path.parts[below], len(FIRST)))


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """URL of a Valkey that lives as long as the test run (of this xdist worker)."""
    with ValkeyProcess() as server:
        yield server.url


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    """A store on an empty Valkey. Its calls may take 5 s, since test machines stall; outages have tests of their own.

    A replica that beat once lives for as long as any test; deadlines are tested with settings of their own.
    """
    # Imported here, so that tests which need no store run where redis is not installed.
    from redis.asyncio import Redis

    from session_store import Store, StoreSettings

    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    async with await Store.open(valkey_url, StoreSettings(redis_timeout_ms=5_000, replica_ttl_ms=600_000)) as opened:
        yield opened
