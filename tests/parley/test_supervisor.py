"""The supervisor with small real processes and a real store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parley.supervisor import NotReady, Plan, RunFolder, ServiceDied, ServiceLost, Supervisor, SupervisorSettings
from parley.supervisor.launch import __file__ as launcher

from . import children
from .children import PATIENT, SETTINGS, Recorder, Watched, plan


@contextlib.asynccontextmanager
async def supervised(
    plan: Plan, folder: RunFolder, recorder: Recorder, settings: SupervisorSettings = PATIENT
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(plan, folder, settings, recorder)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def test_the_store_comes_first_and_all_others_together(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.SERVES, "thinker": children.SERVES}), folder, recorder) as supervisor:
        await supervisor.start()
        assert recorder.started == ["store", "vad", "thinker", "gateway"]
        assert recorder.became_ready[0] == "store"
        assert sorted(recorder.became_ready[1:]) == ["gateway", "thinker", "vad"]
        told = supervisor.told_by("gateway")
        assert told is not None and told.pid == supervisor.pids["gateway"]


async def test_each_process_has_its_own_group_and_the_folder_is_private(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.SERVES}), folder, recorder) as supervisor:
        await supervisor.start()
        assert {os.getpgid(pid) for pid in supervisor.pids.values()} == set(supervisor.pids.values())
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert folder.store_socket.stat().st_mode & 0o077 == 0


async def test_stop_leaves_no_process(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.SERVES, "thinker": children.SERVES}), folder, recorder) as supervisor:
        await supervisor.start()
        watched = Watched.of(folder.path)
        async with asyncio.timeout(PATIENT.stop_gateway_s):
            await supervisor.stop()
    assert watched.alive_after(0.0) == set()
    assert recorder.notices == []


async def test_the_gateway_is_told_to_stop_before_the_services(folder: RunFolder, recorder: Recorder) -> None:
    order = folder.path / "order"
    notes = f"""
def note(*_):
    with open({str(order)!r}, "a") as file: file.write(os.environ["PARLEY_READY_FILE"].rsplit("/", 1)[1].split(".")[0] + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, note); ready(); signal.pause()
"""
    async with supervised(plan(folder, services={"vad": notes}, gateway=notes), folder, recorder) as supervisor:
        await supervisor.start()
    assert order.read_text().split() == ["gateway", "vad"]


async def test_what_ignores_sigterm_is_killed_in_time(folder: RunFolder, recorder: Recorder) -> None:
    stubborn = plan(folder, services={"vad": children.IGNORES_SIGTERM}, gateway=children.IGNORES_SIGTERM)
    async with supervised(stubborn, folder, recorder, SETTINGS) as supervisor:
        await supervisor.start()
        watched = Watched.of(folder.path)
        begun = time.monotonic()
        await supervisor.stop()
        assert time.monotonic() - begun >= SETTINGS.stop_kill_s
    assert watched.alive_after(0.0) == set()
    killed = {name: f"{name} did not stop by itself and was killed" for name in ("gateway", "vad", "store")}
    # the store is told last, and a slow machine may not let it end in time either
    assert {killed["gateway"], killed["vad"]} <= set(recorder.notices) <= set(killed.values())


async def test_a_second_request_kills_at_once(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.IGNORES_SIGTERM}), folder, recorder) as supervisor:
        await supervisor.start()
        watched = Watched.of(folder.path)
        supervisor.hurry()
        async with asyncio.timeout(PATIENT.stop_gateway_s):
            await supervisor.stop()
    assert watched.alive_after(0.0) == set()


async def test_what_a_service_started_itself_ends_with_it(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.HAS_A_CHILD_OF_ITS_OWN}), folder, recorder) as supervisor:
        await supervisor.start()
        told = supervisor.told_by("vad")
        assert told is not None and told.grpc is not None
        watched = Watched({"grandchild": int(told.grpc)})
    assert watched.alive_after(30.0) == set()


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (children.DIES_AT_ONCE, "thinker exited with code 3: there is no such file: weights.bin"),
        (children.DIES_WITH_JSON, "thinker exited with code 4: start failed: OSError: no memory"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "thinker was killed by SIGKILL and said nothing"),
    ],
)
async def test_a_service_that_dies_while_starting_is_named(code: str, line: str, folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.NEVER_READY, "thinker": code}), folder, recorder) as supervisor:
        with pytest.raises(ServiceDied) as caught:
            await supervisor.start()
        watched = Watched({name: pid for name, pid in supervisor.pids.items() if name != "thinker"})
    assert str(caught.value) == f"{line} (log: {folder.log('thinker')})"
    assert "\n" not in str(caught.value)
    assert watched.alive_after(0.0) == set()


async def test_a_program_that_is_not_there_is_named(folder: RunFolder, recorder: Recorder) -> None:
    good = plan(folder, services={})
    nowhere = Plan(good.store, (children.ServiceSpec("vad", ("/nowhere/vad",), good.gateway.readiness),), good.gateway)
    async with supervised(nowhere, folder, recorder) as supervisor:
        with pytest.raises(ServiceDied, match="vad exited with code 1: cannot start /nowhere/vad: No such file or directory"):
            await supervisor.start()


async def test_no_readiness_in_time_is_said(folder: RunFolder, recorder: Recorder) -> None:
    hasty = SETTINGS.model_copy(update={"start_timeout_s": 0.3})
    supervisor = Supervisor(plan(folder, services={"vad": children.NEVER_READY}), folder, hasty, recorder)
    try:
        with pytest.raises(NotReady) as caught:
            await supervisor.start()
    finally:
        await supervisor.stop()
    name = str(caught.value).partition(" ")[0]  # vad, or on a slow machine another that was not ready either
    assert str(caught.value) == f"{name} was not ready within 0.3 s (log: {folder.log(name)})"
    assert name not in recorder.became_ready


async def test_a_service_that_dies_while_serving_is_restarted_and_said(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"thinker": children.DIES_ONCE_WHEN_TOLD}), folder, recorder) as supervisor:
        await supervisor.start()
        first = supervisor.pids["thinker"]
        watching = asyncio.create_task(supervisor.watch())
        os.kill(first, signal.SIGUSR1)
        await recorder.until_ready("thinker", times=2)
        assert supervisor.pids["thinker"] != first
        assert recorder.notices == [
            f"thinker exited with code 7 and said nothing; restarting in 0.02 s, 1 of 2 (log: {folder.log('thinker')})"
        ]
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_store_that_is_killed_comes_back_at_the_same_place(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={}), folder, recorder) as supervisor:
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        os.kill(supervisor.pids["store"], signal.SIGKILL)
        await recorder.until_ready("store", times=2)
        assert supervisor.told_by("store") is not None
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_service_that_keeps_dying_ends_the_run(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"thinker": children.READY_THEN_DIES}), folder, recorder) as supervisor:
        await supervisor.start()
        with pytest.raises(ServiceLost) as caught:
            async with asyncio.timeout(10):
                await supervisor.watch()
    assert str(caught.value) == (
        f"thinker exited with code 5: the engine broke; it was restarted 2 times already (log: {folder.log('thinker')})"
    )
    assert len(recorder.notices) == SETTINGS.max_restarts


async def test_stop_while_starting_leaves_no_process(folder: RunFolder, recorder: Recorder) -> None:
    async with supervised(plan(folder, services={"vad": children.NEVER_READY}), folder, recorder) as supervisor:
        starting = asyncio.create_task(supervisor.start())
        await recorder.until_ready("gateway")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert set(supervisor.pids) == {"store", "vad", "gateway"}
        watched = Watched(supervisor.pids)
    assert watched.alive_after(0.0) == set()


SUPERVISOR_OF_ITS_OWN = """
import asyncio, sys
from parley.supervisor import RunFolder, Supervisor
from pathlib import Path
from tests.parley import children
async def main():
    folder = RunFolder(Path(sys.argv[1]))
    plan = children.plan(folder, services={"vad": children.IGNORES_SIGTERM})
    await Supervisor(plan, folder, children.SETTINGS, children.Recorder()).start()
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_nothing_survives_a_killed_supervisor(folder: RunFolder) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR_OF_ITS_OWN, str(folder.path)], stdout=subprocess.PIPE, cwd=root) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        watched = Watched.of(folder.path)
        supervisor.kill()
    assert watched.alive_after(30.0) == set()


def test_the_launcher_refuses_to_outlive_a_parent_that_is_gone() -> None:
    gone = subprocess.run([sys.executable, "-I", "-S", launcher, "1", "true"], capture_output=True, text=True, check=False)
    assert gone.returncode == 1
    assert gone.stderr.strip() == "the supervisor is gone"
