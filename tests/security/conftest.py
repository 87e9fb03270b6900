"""Houses that ask for keys, and ways to knock at their gateways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from gateway.wire.handshake import digest_key
from tests.e2e.conftest import make_house, pytest_runtest_makereport, talk

Knock = Callable[..., Any]
SECRETS = tuple(f"{name}-key-of-a-test" for name in ("good", "other", "revoked", "expired", "narrow", "brisk", "stored", "wrong"))
GOOD, OTHER, REVOKED, EXPIRED, NARROW, BRISK, STORED, WRONG = SECRETS


def entry(text: str, tenant: str = "acme", **fields: Any) -> dict[str, Any]:
    return {"id": text.partition("-")[0], "tenant": tenant, "sha256": digest_key(text), **fields}


class Keys:
    """A key file that a test changes as an operator would."""

    def __init__(self, path: Path, *entries: dict[str, Any]) -> None:
        self.path, self.entries = path, {each["id"]: each for each in entries}
        self.write()

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(list(self.entries.values())))
        new.replace(self.path)

    def change(self, text: str, **fields: Any) -> None:
        self.entries[text.partition("-")[0]].update(fields)
        self.write()


def bearer(key: str, **headers: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}", **headers}}


class Refused:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers = status, headers
        self.error: dict[str, Any] = json.loads(body)["error"]

    @property
    def told(self) -> tuple[int, str]:
        return self.status, self.error["code"]


@pytest.fixture
async def knock() -> AsyncIterator[Knock]:
    """`await knock(url, **connect options)`: the open socket, closed after the test, or how it was refused before the upgrade."""
    async with AsyncExitStack() as stack:

        async def at(url: str, **options: Any) -> ClientConnection | Refused:
            try:
                return await stack.enter_async_context(connect(url, **options))
            except InvalidStatus as refused:
                answer = refused.response
                assert answer.headers["Content-Type"] == "application/json" and answer.headers["Cache-Control"] == "no-store"
                return Refused(answer.status_code, answer.headers, answer.body or b"")

        yield at


__all__ = ["make_house", "pytest_runtest_makereport", "talk"]
