"""A gateway and the store that it needs: in either order, and one line when there is none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Child
from tests.support.sentinels import Sentinel
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def valkey() -> Iterator[ValkeyProcess]:
    """Not started."""
    process = ValkeyProcess()
    try:
        yield process
    finally:
        process.stop()


def _gateway(url: str, folder: Path, wait_ms: int) -> Child:
    env = {"PARLEY_REDIS_URL": url, "PARLEY_HTTP_BIND": "127.0.0.1:0", "PARLEY_STORE_WAIT_MS": str(wait_ms)}
    return Child("gateway", ["-m", "gateway"], env, folder)


def test_a_gateway_waits_for_its_store(valkey: ValkeyProcess, tmp_path: Path) -> None:
    gateway = _gateway(valkey.url, tmp_path, 30_000)
    # somebody listens at the store's address and hangs up: the gateway has tried and failed before the store starts
    path = valkey.url.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(path)
        nobody.listen()
        nobody.settimeout(30)
        gateway.start()
        nobody.accept()[0].close()
    Path(path).unlink()
    try:
        valkey.start()
        gateway.wait_ready()
    finally:
        gateway.stop()


def test_a_store_that_never_comes_is_said_in_one_line(valkey: ValkeyProcess, tmp_path: Path) -> None:
    gateway = _gateway(valkey.url, tmp_path, 0)
    gateway.start()
    assert gateway.wait(30) == 1
    assert gateway.tail().strip().splitlines() == [
        "gateway: the session store does not answer: redis did not carry out load: ConnectionError"
    ]


def test_a_service_that_sentinels_do_not_know_is_said_in_one_line(tmp_path: Path) -> None:
    sentinel = Sentinel()
    sentinel.configure(("127.0.0.1", 1), [], [])
    try:
        sentinel.start()
        gateway = _gateway(f"redis+sentinel://:secret@127.0.0.1:{sentinel.port}/another", tmp_path, 30_000)
        gateway.start()
        assert gateway.wait(30) == 1
    finally:
        sentinel.stop()
    assert gateway.tail().strip().splitlines() == [
        "gateway: PARLEY_REDIS_URL: its sentinels know no service of that name (redis+sentinel://HOST:PORT/SERVICE)"
    ]
