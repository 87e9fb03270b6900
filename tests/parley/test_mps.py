"""The daemon through which services share a card, and what the supervisor does when it, or the card, fails. The daemon is a stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.supervisor import Machine, RunFolder, Supervisor, SupervisorSettings, embedded_plan, place
from parley.supervisor.mps import Mps, MpsError, ask
from parley.supervisor.plan import Plan

from . import children, fake_mps
from .children import Recorder, Watched
from .fake_mps import processes

CLIENT = """
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
ready(grpc=os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""), http=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
while True: signal.pause()
"""
SERVICES = ("thinker", "talker", "vocoder")
PATIENT = children.PATIENT.model_copy(update={"max_restarts": 5, "mps_stop_s": 30.0, "mps_start_s": 30.0})


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = fake_mps.install(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    return program


@pytest.fixture
def daemon(control: str, folder: RunFolder) -> Iterator[Mps]:
    made = Mps(control, folder.share_folder("mps-0"), "GPU-a")
    yield made
    made.stop()


def pipes_of(folder: RunFolder) -> Path:
    return folder.share_folder("mps-0") / "pipe"


def test_a_daemon_is_private_sees_one_card_and_quits(daemon: Mps, folder: RunFolder) -> None:
    daemon.start()
    own = folder.share_folder("mps-0")
    assert {path.stat().st_mode & 0o777 for path in (own, *map(Path, daemon.env.values()))} == {0o700}
    assert daemon.trouble() == ""
    alive = processes(pipes_of(folder))
    assert list(alive) == ["daemon", "server of GPU-a"]
    watched = Watched(alive)
    daemon.stop()
    assert watched.alive_after(0.0) == set()
    assert daemon.trouble() == "nvidia-cuda-mps-control is gone"


def test_a_daemon_that_does_not_quit_is_killed_with_its_servers(daemon: Mps, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", "stubborn")
    daemon.start()
    watched = Watched(processes(pipes_of(folder)))
    begun = time.monotonic()
    daemon.stop(timeout_s=0.3)
    assert time.monotonic() - begun >= 0.3
    assert watched.alive_after(30.0) == set()


def test_a_daemon_that_does_not_answer_in_time_is_ended(daemon: Mps, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", "mute")
    with pytest.raises(MpsError, match=r"nvidia-cuda-mps-control does not answer within 2 s"):
        daemon.start(timeout_s=2.0)
    assert ends_soon(processes(pipes_of(folder))["daemon"])


def ends_soon(pid: int) -> bool:
    """Whether a process ends by itself."""
    try:
        return Watched({"it": pid}).alive_after(30.0) == set()
    except ProcessLookupError:
        return True


def test_a_daemon_that_does_not_start_says_why(daemon: Mps, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", "refuses")
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control -d failed with code 1: An instance of this daemon is already running"):
        daemon.start()
    with pytest.raises(MpsError, match="cannot start /nowhere/mps: No such file or directory"):
        Mps("/nowhere/mps", folder.share_folder("mps-1")).start()


def test_a_daemon_that_its_keeper_left_behind_is_taken_over(control: str, daemon: Mps, folder: RunFolder) -> None:
    daemon.start()
    before = processes(pipes_of(folder))
    again = Mps(control, folder.share_folder("mps-0"), "GPU-a")
    again.start()
    assert processes(pipes_of(folder)) == before
    watched = Watched(before)
    again.stop()
    assert watched.alive_after(0.0) == set()


def test_a_fatal_fault_of_the_card_is_seen(daemon: Mps, folder: RunFolder) -> None:
    daemon.start()
    (pipes_of(folder) / "fault").touch()
    assert daemon.trouble() == "the card had a fatal fault, which ends every process that shares it"


def shared(folder: RunFolder, tmp_path: Path, settings: SupervisorSettings = PATIENT) -> Plan:
    """Three small processes on one card, with the daemon that `parley up` would start for them."""
    placement = place(dict.fromkeys(SERVICES, "auto"), Machine(cards=("3",), control="yes"))
    profile = tmp_path / "profile.yaml"
    profile.touch()
    whole = embedded_plan(folder, host="127.0.0.1", port=0, profile=profile, placement=placement, settings=settings)
    placed = [
        replace(small, env={**small.env, **placement.env[small.name]})
        for small in (children.service(folder, name, CLIENT) for name in SERVICES)
    ]
    return replace(whole, services=tuple(placed), gateway=children.service(folder, "gateway"))


@contextlib.asynccontextmanager
async def serving(plan: Plan, folder: RunFolder, recorder: Recorder) -> AsyncIterator[Supervisor]:
    """Started and watched; stopped at the end, when nothing of the daemon may be left."""
    supervisor = Supervisor(plan, folder, PATIENT, recorder)
    try:
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        try:
            yield supervisor
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await supervisor.stop()


@pytest.mark.usefixtures("control")
async def test_services_on_one_card_are_told_of_its_daemon_and_it_stops_last(folder: RunFolder, recorder: Recorder, tmp_path: Path) -> None:
    async with serving(shared(folder, tmp_path), folder, recorder) as supervisor:
        assert recorder.started == ["store", "mps-0", *SERVICES, "gateway"]
        assert recorder.notes == ["thinker, talker and vocoder share GPU 3 through MPS"]
        for name in SERVICES:
            told = supervisor.told_by(name)
            assert told is not None and (told.grpc, told.http) == (str(pipes_of(folder)), "0")
        assert list(processes(pipes_of(folder)))[1] == "server of 3"
        watched = Watched({**processes(pipes_of(folder)), **supervisor.pids})
    assert watched.alive_after(0.0) == set()
    assert recorder.notices == []
    folder.keep_logs()
    assert {path.suffix for path in folder.path.rglob("*") if path.is_file()} == {".log"}
    assert not pipes_of(folder).exists()


@pytest.mark.usefixtures("control")
@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("refuses", "nvidia-cuda-mps-control -d failed with code 1: An instance of this daemon is already running"),
        ("mute", "nvidia-cuda-mps-control does not answer within 2 s"),
    ],
)
async def test_without_its_daemon_a_card_is_shared_by_time_slices(
    mode: str, reason: str, folder: RunFolder, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", mode)
    plan = shared(folder, tmp_path, PATIENT.model_copy(update={"mps_start_s": 2.0}))
    async with serving(plan, folder, recorder) as supervisor:
        for name in SERVICES:
            told = supervisor.told_by(name)
            assert told is not None and (told.grpc, told.http) == ("", "3")
        assert "mps-0" not in supervisor.pids
    slices = "thinker, talker and vocoder share GPU 3 by time slices, so that real time is kept for fewer sessions"
    assert recorder.notices == [f"{slices}: mps-0 exited with code 1: {reason} (log: {folder.log('mps-0')})"]
    assert recorder.notes == []


@pytest.mark.usefixtures("control")
async def test_a_fault_that_ends_all_clients_at_once_restarts_all(folder: RunFolder, recorder: Recorder, tmp_path: Path) -> None:
    async with serving(shared(folder, tmp_path), folder, recorder) as supervisor:
        before, daemon = dict(supervisor.pids), processes(pipes_of(folder))
        for name in SERVICES:
            os.kill(before[name], signal.SIGUSR1)
        for name in SERVICES:
            await recorder.until_ready(name, times=2)
        after = supervisor.pids
        assert {name for name in before if before[name] != after[name]} == set(SERVICES)
        assert processes(pipes_of(folder)) == daemon
        assert sorted(line.split(" exited with code 7")[0] for line in recorder.notices) == sorted(SERVICES)


@pytest.mark.usefixtures("control")
async def test_a_card_that_stays_in_its_fault_gets_a_new_daemon_and_all_its_services_anew(
    folder: RunFolder, recorder: Recorder, tmp_path: Path
) -> None:
    """One service died of the fault and the others hang: the card takes nobody until all have left."""
    async with serving(shared(folder, tmp_path), folder, recorder) as supervisor:
        before, old = dict(supervisor.pids), Watched(processes(pipes_of(folder)))
        (pipes_of(folder) / "fault").touch()
        await recorder.until_noticed("mps-0 exited with code 1: the card had a fatal fault")
        (pipes_of(folder) / "fault").unlink()
        for name in ("mps-0", *SERVICES):
            await recorder.until_ready(name, times=2)
        assert {name for name in before if before[name] != supervisor.pids[name]} == {"mps-0", *SERVICES}
        assert old.alive_after(0.0) == set()
        assert recorder.became_ready.index("mps-0", recorder.became_ready.index("mps-0") + 1) < min(
            len(recorder.became_ready) - 1 - recorder.became_ready[::-1].index(name) for name in SERVICES
        )


@pytest.mark.usefixtures("control")
async def test_a_daemon_that_is_killed_is_replaced(folder: RunFolder, recorder: Recorder, tmp_path: Path) -> None:
    async with serving(shared(folder, tmp_path), folder, recorder) as supervisor:
        for pid in processes(pipes_of(folder)).values():
            os.kill(pid, signal.SIGKILL)
        for name in ("mps-0", *SERVICES):
            await recorder.until_ready(name, times=2)
        assert supervisor.told_by("mps-0") is not None
        watched = Watched(processes(pipes_of(folder)))
    assert watched.alive_after(0.0) == set()


@pytest.mark.usefixtures("control")
async def test_a_stop_while_the_daemon_starts_leaves_none(
    folder: RunFolder, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "mute")
    hasty = PATIENT.model_copy(update={"mps_stop_s": 1.0})
    supervisor = Supervisor(shared(folder, tmp_path, hasty), folder, hasty, recorder)
    starting = asyncio.create_task(supervisor.start())
    async with asyncio.timeout(10):
        while not (pipes_of(folder) / "nvidia-cuda-mps-control.pid").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    watched = Watched(processes(pipes_of(folder)))
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await supervisor.stop()
    assert watched.alive_after(0.0) == set()


def test_an_unanswered_question_takes_no_longer_than_allowed(
    control: str, daemon: Mps, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.start()
    pipes = pipes_of(folder)
    os.kill(processes(pipes_of(folder))["daemon"], signal.SIGSTOP)
    try:
        assert ask(control, pipes, "get_server_list", 0.2) is None
        monkeypatch.setattr("parley.supervisor.mps.ANSWER_S", 0.2)
        assert daemon.trouble() == "", "it is slow: those who share the card are not to be ended for that"
    finally:
        os.kill(processes(pipes_of(folder))["daemon"], signal.SIGCONT)
    assert ask(control, pipes, "get_server_list") == f"{processes(pipes_of(folder))['server of GPU-a']}\n"
    assert ask(control, pipes / "none", "get_server_list") is None


SUPERVISOR_OF_ITS_OWN = """
import asyncio, sys
from pathlib import Path
from parley.supervisor import RunFolder, Supervisor
from tests.parley import children, test_mps
async def main():
    folder = RunFolder(Path(sys.argv[1]))
    await Supervisor(test_mps.shared(folder, folder.path), folder, test_mps.PATIENT, children.Recorder()).start()
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.usefixtures("control")
def test_no_daemon_survives_a_killed_supervisor(folder: RunFolder) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SUPERVISOR_OF_ITS_OWN, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        watched = Watched({**processes(pipes_of(folder)), **json.loads(folder.pid_file.read_bytes())})
        supervisor.kill()
    assert watched.alive_after(5.0) == set()
