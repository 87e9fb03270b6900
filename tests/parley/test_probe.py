"""`parley probe` against the health that services have, over both protocols."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from prometheus_client import CollectorRegistry

from parley import probe as program
from parley.probe import Answer, BadAddress, probe
from stage_kit.health import Health
from stage_kit.http import HttpServer


class Service(NamedTuple):
    health: Health
    http: str
    grpc: str


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    health, server = Health(), grpc.aio.server()
    health.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    http = HttpServer("127.0.0.1:0", CollectorRegistry(), health.serving)
    try:
        yield Service(health, f"http://{http.address}/health", f"grpc://127.0.0.1:{port}")
    finally:
        http.stop()
        await server.stop(None)


async def asked(url: str) -> Answer:
    return (await asyncio.to_thread(probe, url))[0]


async def test_it_says_what_a_service_says(service: Service) -> None:
    await service.health.set(startup=True, ready=False, live=True)
    for root in (service.http, service.grpc):
        assert [await asked(f"{root}/{name}") for name in ("startup", "ready", "live")] == [Answer.SERVES, Answer.DOES_NOT, Answer.SERVES]
    await service.health.set(ready=True)
    assert [await asked(service.http), await asked(service.grpc)] == [Answer.SERVES, Answer.SERVES]


async def test_a_name_that_a_service_does_not_know_does_not_serve(service: Service) -> None:
    assert [await asked(f"{service.http}/nonsense"), await asked(f"{service.grpc}/nonsense")] == [Answer.DOES_NOT, Answer.DOES_NOT]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_nobody_there_is_an_answer_of_its_own(scheme: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        answer, said = probe(f"{scheme}://127.0.0.1:{closed.getsockname()[1]}/ready", 1.0)
    assert answer is Answer.NONE
    assert said.startswith("no answer: ")


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_one_that_accepts_and_says_nothing_is_given_up(scheme: str) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        assert probe(f"{scheme}://127.0.0.1:{mute.getsockname()[1]}/", 0.3)[0] is Answer.NONE


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://here:1/", "http://here/", "grpc://:50051/ready", "http://here:port/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadAddress, match="is no address"):
        probe(url)


@pytest.mark.parametrize("command", [["-m", "parley", "probe"], ["-I", str(Path(program.__file__))]])
async def test_exit_codes(command: list[str], service: Service) -> None:
    await service.health.set(ready=True, live=False)

    async def code(*arguments: str) -> int:
        run = [sys.executable, *command, *arguments]
        return (await asyncio.to_thread(subprocess.run, run, capture_output=True, check=False)).returncode

    assert await code(f"{service.http}/ready", "--quiet") == 0
    assert await code(f"{service.grpc}/live") == 1
    assert await code("nowhere") == 2
    assert await code("http://127.0.0.1:1/", "--timeout-s", "1") == 3
