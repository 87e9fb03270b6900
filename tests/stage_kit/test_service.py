"""A service as a process: ready file, health, metrics, registry, drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from parley_stage.v1 import stage_pb2

from session_store import Store
from tests.stage_kit.support import WAIT_S, Probe, StageClient, serving

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Process:
    """`python -m stage_kit.scripted`, or a program, with a ready file."""

    def __init__(self, folder: Path, service: str = "all", *, program: str = "", **settings: str) -> None:
        self.ready_file = folder / "ready.json"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PARLEY_")}
        environment |= {"PARLEY_READY_FILE": str(self.ready_file)} | settings
        arguments = ["-c", program] if program else ["-m", "stage_kit.scripted", "--service", service]
        self.process = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.PIPE, text=True)

    async def ready(self) -> dict[str, str]:
        async with asyncio.timeout(30):
            while not self.ready_file.exists():
                assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
                await asyncio.sleep(0.02)
        answer: dict[str, str] = json.loads(self.ready_file.read_text())
        return answer

    async def end(self) -> tuple[int, list[str]]:
        _, errors = await asyncio.to_thread(self.process.communicate, timeout=20)
        return self.process.returncode, errors.splitlines()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


async def test_a_process_serves_and_drains(tmp_path: Path) -> None:
    with Process(tmp_path, PARLEY_DRAIN_S="20") as process:
        ready = await process.ready()
        assert ready["pid"] == process.process.pid
        client = StageClient(ready["grpc"])
        description = await client.stub.Describe(stage_pb2.DescribeRequest())
        assert {card.stage for card in description.stages} == {"turn", "asr", "llm", "talker", "vocoder"}
        assert (await asyncio.to_thread(get, ready["http"], "/health/ready"))[0] == 200
        assert (await asyncio.to_thread(get, ready["http"], "/nothing"))[0] == 404
        talk = client.converse(stage="llm")
        await talk.open()
        pulse = client.stub.Pulse(stage_pb2.PulseRequest(period_ms=50))
        assert not (await pulse.read()).draining
        process.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            while not (beat := await pulse.read()).draining:
                pass
        assert {stage.stage: stage.free_slots for stage in beat.stages}["llm"] == 63
        health = health_pb2_grpc.HealthStub(client.channel)
        states = {name: (await health.Check(health_pb2.HealthCheckRequest(service=name))).status for name in ("ready", "live", "")}
        assert states == {"ready": NOT_SERVING, "live": SERVING, "": NOT_SERVING}
        metrics = (await asyncio.to_thread(get, ready["http"], "/metrics"))[1]
        assert 'parley_stage_sessions{stage="llm"} 1.0' in metrics
        refused = client.converse("another", stage="llm")
        await refused.begin()
        assert (await refused.read("error")).error.code == stage_pb2.StageError.CODE_DRAINING
        await talk.close()
        await talk.read("closed")
        code, lines = await process.end()
        await client.channel.close()
        assert code == 0 and not process.ready_file.exists()
        assert all(json.loads(line)["service"] == "all" for line in lines)


async def test_a_taken_address_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Process(tmp_path, "vad", PARLEY_BIND=address) as process:
            code, lines = await process.end()
    plain = [line for line in lines if not line.startswith("{")]
    assert code == 1 and len(plain) == 1 and address in plain[0]


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with Process(tmp_path, "talker", PARLEY_DRAIN_S="300") as process:
        client = StageClient((await process.ready())["grpc"])
        await client.converse(stage="talker").open()
        process.process.send_signal(signal.SIGTERM)
        pulse = client.stub.Pulse(stage_pb2.PulseRequest(period_ms=50))
        async with asyncio.timeout(WAIT_S):
            while not (await pulse.read()).draining:
                pass
        process.process.send_signal(signal.SIGTERM)
        assert (await process.end())[0] == 0
        await client.channel.close()


async def test_the_registry_knows_what_is_held(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_REDIS_TIMEOUT_MS", "5000")  # a test machine that stalls is no store that is away
    async with await Store.open(valkey_url) as store, serving(Probe(), redis_url=valkey_url, heartbeat_s=0.05) as (client, service):
        talk = client.converse("registered")
        await talk.open()

        async def entry() -> tuple[bool, int]:
            mine = [each for each in await store.registry.replicas() if each.replica_id == service.replica_id]
            return (mine[0].draining, mine[0].stages[0].used) if mine else (False, -1)

        async with asyncio.timeout(WAIT_S):
            while await entry() != (False, 1):
                pass  # every look is a call to the store
        await talk.close()
        await talk.read("closed")
        await service.drain()
        assert await entry() == (True, 0)
    async with await Store.open(valkey_url) as store:
        assert service.replica_id not in [each.replica_id for each in await store.registry.replicas()]


async def test_a_store_that_is_away_keeps_detached_sessions(tmp_path: Path) -> None:
    away = f"unix://{tmp_path}/nobody"
    async with serving(Probe(), redis_url=away, heartbeat_s=0.05, detached_ttl_s=0.1, detached_recheck_s=0.05) as (client, service):
        talk = client.converse()
        await talk.open()
        await talk.hang_up()
        host = service.hosts["probe"]
        async with asyncio.timeout(WAIT_S):
            while (await client.held())[0].attached:
                pass
        next(host.held()).expires_at = 0.0
        assert service._registration is not None
        await host.tidy(service._registration.lives)
        assert [held.attached for held in await client.held()] == [False]


FROZEN = """
import gc, os, signal, sys
from stage_kit import serve
from tests.stage_kit.support import Probe

class Loaded(Probe):
    def load(self):
        self.model = [[] for _ in range(100_000)]

    def validate(self, config):
        print("frozen", gc.get_freeze_count(), *gc.get_threshold(), file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)
        return config

serve(service="probe", engines=[Loaded()])
"""


async def test_what_was_loaded_is_walked_through_by_no_collection(tmp_path: Path) -> None:
    """A full collection of all that torch brings along stops every step for a tenth of a second."""
    with Process(tmp_path, program=FROZEN, PARLEY_DRAIN_S="0.1") as process:
        client = StageClient((await process.ready())["grpc"])
        await client.converse().open()
        code, lines = await process.end()
        await client.channel.close()
    told = next(line.split()[1:] for line in lines if line.startswith("frozen "))
    assert code == 0 and int(told[0]) > 100_000 and told[1:] == ["1000", "5", "100"]


async def test_a_load_that_fails_is_raised() -> None:
    class Broken(Probe):
        def load(self) -> None:
            raise FileNotFoundError("no model")

    with pytest.raises(FileNotFoundError):
        async with serving(Broken()):
            pass
