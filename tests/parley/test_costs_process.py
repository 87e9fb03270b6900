"""`parley costs` as a pod runs it: it finds the API, keeps costs, says that it is alive, and ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from stage_kit.http import HttpServer
from tests.support.pods_api import TOKEN, Fault, PodsApi, pod

STOPPED_S = 5.0


@contextmanager
def running(api: PodsApi, account: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "parley", "costs", "--selector", "app.kubernetes.io/instance=t", "--account", str(account)]
    env = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.server_port)}
    with subprocess.Popen([*command, *options], env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def stopped(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, object]]]:
    """Its exit code, and what it logged."""
    process.send_signal(signal.SIGTERM)
    code = process.wait(STOPPED_S)
    assert process.stderr is not None
    return code, [json.loads(line) for line in process.stderr]


def test_it_keeps_costs_until_it_is_told_to_stop(api: PodsApi, account: Path, tmp_path: Path) -> None:
    registry, alive = CollectorRegistry(), tmp_path / "alive"
    held = Gauge("parley_stage_sessions", "", registry=registry)
    server = HttpServer("127.0.0.1:0", registry, lambda _: True)
    try:
        api.put(pod("a", [int(server.address.rpartition(":")[2])]))
        held.set(3)
        with running(api, account, "--every", "0.1", "--step", "2", "--alive", str(alive)) as process:
            assert api.until(lambda: api.costs() == {"a": "4"})
            api.faults["list"].append(Fault(500))
            held.set(0)
            assert api.until(lambda: api.costs() == {"a": "0"})
            rounds = len(api.asked)
            assert api.until(lambda: len(api.asked) > rounds), "it goes on"
            assert time.time() < float(alive.read_text()) < time.time() + 600
            code, lines = stopped(process)
    finally:
        server.stop()
    assert code == 0
    assert [(line["event"], line["level"]) for line in lines] == [("costs not kept", "warning"), ("costs are kept again", "info")]
    assert TOKEN not in json.dumps(lines)


@pytest.mark.parametrize("every", ["0.1", "600"], ids=["while it waits for an answer", "while it waits for its next round"])
def test_it_ends_at_once(api: PodsApi, account: Path, tmp_path: Path, every: str) -> None:
    asleep = every == "600"
    if not asleep:
        api.faults["list"].append(Fault(hang=True))
    with running(api, account, "--every", every, "--alive", str(tmp_path / "alive")) as process:
        assert api.until(lambda: len(api.asked) == 1)
        while asleep and float((tmp_path / "alive").read_text()) < time.time() + 500:
            assert process.poll() is None
        assert stopped(process) == (0, [])


def test_it_ends_at_once_while_a_pod_or_a_write_keeps_it_waiting(api: PodsApi, account: Path) -> None:
    registry = CollectorRegistry()
    Gauge("parley_stage_sessions", "", registry=registry).set(3)
    server = HttpServer("127.0.0.1:0", registry, lambda _: True)
    api.faults["patch"].append(Fault(hang=True))
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(20)
            api.put(pod("silent", [silent.getsockname()[1]]))
            with running(api, account) as process, silent.accept()[0]:
                assert stopped(process) == (0, [])
        api.pods.clear()
        api.put(pod("a", [int(server.address.rpartition(":")[2])]))
        with running(api, account) as process:
            assert api.until(lambda: "patch" in [verb for verb, _ in api.asked])
            assert stopped(process) == (0, [])
    finally:
        server.stop()
    assert api.costs() == {}


@pytest.mark.parametrize("api_said", [[], ["--api", "http://10.0.0.1:443"], ["--api", "https://[10.0.0.1"], ["--api", "https://host:port"]])
def test_outside_of_a_pod_it_wants_to_be_told_where_the_api_is(api_said: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    command = [sys.executable, "-m", "parley", "costs", "--selector", "a=b", *api_said]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "parley: the API is at https://HOST:PORT; outside of a pod --api says it\n"
