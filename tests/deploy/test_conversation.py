"""The embedded profile in containers, as a user starts it: spoken with, killed, drained, and put away. In the order of this file."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import parley
from parley import Limits, Session, events
from parley.commands.sound import load_recording
from tests.deploy.conftest import DRAIN_S
from tests.deploy.support.compose import PROJECT, Project
from tests.deploy.support.packages import mirror
from tests.deploy.support.shell import Failed

pytestmark = pytest.mark.timeout(900)
QUESTION = Path(parley.__file__).parent / "assets" / "synthetic_question.wav"
LIMITS = Limits(patience_s=20.0)
GATEWAY = "embedded-gateway"
PATIENCE_S = 60.0
POLL_S = 0.25
MARGIN_S = 15


def serving(project: Project) -> str:
    """The gateway's container that holds the session; at a handover there is a moment when none does."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for container in project.containers(GATEWAY):
            if project.inspect(container)["State"]["Running"] and live(project.address(container)) > 0:
                return container
        time.sleep(POLL_S)
    raise AssertionError("no gateway holds a session")


def live(address: str) -> float:
    """Sessions with a client at this gateway; none when it does not answer (yet, or any more)."""
    try:
        with urllib.request.urlopen(f"http://{address}:9090/metrics", timeout=5) as answer:
            found = re.search(r'^parley_gateway_sessions\{state="live"} (\S+)', answer.read().decode(), re.MULTILINE)
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0


def wait_healthy(project: Project, container: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while project.inspect(container)["State"].get("Health", {}).get("Status") != "healthy":
        assert time.monotonic() < until, "it did not become healthy again"
        time.sleep(POLL_S)


async def until(session: Session, told: list[events.Event], kind: type[events.Event]) -> events.Event:
    async for event in session:
        told.append(event)
        assert not isinstance(event, events.ResyncRequired | events.InputLost | events.Error), event
        if isinstance(event, kind):
            return event
    raise AssertionError("the session ended")


async def ask(session: Session, told: list[events.Event], pcm: bytes) -> str:
    """Says the question and asks for the answer. Returns what was heard of it."""
    await session.send_audio(pcm)
    await session.commit()
    heard = await until(session, told, events.TranscriptionCompleted)
    await session.respond()
    assert isinstance(heard, events.TranscriptionCompleted)
    return heard.transcript


def assert_whole(told: list[events.Event]) -> None:
    """Every event came once, in order."""
    numbers = [number for event in told if (number := events.number(event)) is not None]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_conversation_is_spoken_in_containers_through_the_proxy(project: Project) -> None:
    asset = "python -c \"from importlib.resources import files; print(files('parley') / 'assets/synthetic_question.wav')\""
    said = project("exec", "-T", GATEWAY, "sh", "-ec", f"parley talk $({asset}) --url http://proxy:8080 --output /tmp/reply.wav")
    assert "capital of France" in said
    assert "answered with" in said


def test_stages_say_over_grpc_that_they_serve(project: Project) -> None:
    for service in ("vad", "embedded-thinker", "embedded-talker", "embedded-vocoder"):
        for name in ("startup", "ready", "live"):
            assert project("exec", "-T", service, "parley", "probe", f"grpc://127.0.0.1:50051/{name}").strip() == "serving"


def test_nothing_inside_has_a_way_out(project: Project) -> None:
    archive = urlsplit(mirror())
    address = (socket.gethostbyname(archive.hostname or ""), archive.port or 80)
    dial = f"import socket; socket.create_connection({address!r}, 3); print('reached')"
    assert "reached" in project("exec", "-T", "proxy", "python3", "-c", dial)
    for service in (GATEWAY, "vad", "valkey"):
        with pytest.raises(Failed, match=r"timed out|unreachable"):
            project("exec", "-T", service, "python3", "-c", dial)


def test_the_root_is_read_only_and_the_user_is_nobody(project: Project) -> None:
    for service in (GATEWAY, "vad", "proxy"):
        said = project("exec", "-T", service, "sh", "-c", "id -u; touch /app/x 2>&1 || true; touch /tmp/x && echo written")
        assert said.splitlines()[0] == "10001"
        assert "Read-only" in said and "written" in said


def test_the_drawn_password_is_needed_and_is_in_no_environment(project: Project) -> None:
    url = project("exec", "-T", GATEWAY, "cat", "/run/parley/redis_url")
    password = url.partition("redis://:")[2].partition("@")[0]
    assert len(password) > 30
    assert "NOAUTH" in project("exec", "-T", "valkey", "sh", "-c", "valkey-cli ping 2>&1 || true")
    for container in project("ps", "--all", "--quiet").split():
        config = project.inspect(container)["Config"]
        assert password not in str([config["Env"], config["Cmd"], config["Entrypoint"]])


def test_metrics_are_not_shown_to_clients(project: Project) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{project.port}/metrics", timeout=5)


@pytest.mark.behaviour("X1", "X2")
@pytest.mark.parametrize("how", ["killed", "drained"])
async def test_a_gateway_leaves_in_mid_answer_and_the_conversation_goes_on_at_the_other(how: str, project: Project) -> None:
    told: list[events.Event] = []
    pcm = load_recording(QUESTION).pcm
    async with parley.connect(f"http://127.0.0.1:{project.port}", limits=LIMITS) as session, asyncio.timeout(120):
        await session.update(turn_detection=None, transcription={"model": "default"})
        assert "capital of France" in await ask(session, told, pcm)
        await until(session, told, events.AudioDelta)
        first = await asyncio.to_thread(serving, project)
        if how == "killed":
            os.kill(project.inspect(first)["State"]["Pid"], signal.SIGKILL)
        else:
            stopped = asyncio.create_task(asyncio.to_thread(project.engine.docker, "stop", "--time", str(DRAIN_S + MARGIN_S), first))
        done = await until(session, told, events.ResponseDone)
        assert isinstance(done, events.ResponseDone) and done.response.status == "completed"
        if how == "drained":
            await stopped
        # and once more, now surely at the other one
        assert "capital of France" in await ask(session, told, pcm)
        again = await until(session, told, events.ResponseDone)
        assert isinstance(again, events.ResponseDone) and again.response.status == "completed"
        second = await asyncio.to_thread(serving, project)
    assert second != first
    assert [event for event in told if isinstance(event, events.Resumed)]
    assert_whole(told)
    assert sum(len(event.audio) for event in told if isinstance(event, events.AudioDelta)) > 2 * 24_000
    if how == "drained":
        assert project.inspect(first)["State"]["ExitCode"] == 0
        project.engine.docker("start", first)
    wait_healthy(project, first)


def test_a_killed_stage_comes_back_by_itself(project: Project) -> None:
    [container] = project.containers("embedded-vocoder")
    os.kill(project.inspect(container)["State"]["Pid"], signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while project.inspect(container)["RestartCount"] == 0:
        assert time.monotonic() < until
        time.sleep(POLL_S)
    wait_healthy(project, container)


@pytest.mark.parametrize("process", ["gateway", "vad"])
@pytest.mark.parametrize("with_init", [True, False])
def test_a_process_that_serves_leaves_when_it_is_told(process: str, with_init: bool, project: Project, images: dict[str, str]) -> None:
    """As process 1, too: the chart's pods have no init."""
    module = {"gateway": "gateway", "vad": "vad_svc"}[process]
    alone = () if with_init else ("--entrypoint", "python")
    command = () if with_init else ("-m", module)
    volumes = ("--volume", f"{PROJECT}_secrets:/run/parley:ro", "--volume", f"{PROJECT}_models:/models:ro")
    confined = ("--network", f"{PROJECT}_inside", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    settings = ("--env", "PARLEY_REDIS_URL_FILE=/run/parley/redis_url")
    docker = project.engine.docker
    container = docker("run", "--detach", *volumes, *confined, *settings, *alone, images[process], *command).strip()
    try:
        wait_healthy(project, container)
        begun = time.monotonic()
        docker("stop", "--time", "30", container)
        took, code = time.monotonic() - begun, project.inspect(container)["State"]["ExitCode"]
    finally:
        docker("rm", "--force", container)
    # an init says how its process ended
    assert (code, took < 10) == (0, True)


def test_a_second_up_fetches_nothing_and_draws_no_new_password(project: Project) -> None:
    before = project("exec", "-T", GATEWAY, "cat", "/run/parley/redis_url")
    project("up", "--detach", "--no-build", "--wait")
    assert project("exec", "-T", GATEWAY, "cat", "/run/parley/redis_url") == before


def test_down_is_over_within_the_grace(project: Project) -> None:
    begun = time.monotonic()
    project("down", "--timeout", "60")
    took = time.monotonic() - begun
    assert took < DRAIN_S + MARGIN_S, f"{took:.1f} s"
    assert project("ps", "--all", "--quiet") == ""
