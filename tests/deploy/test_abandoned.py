"""A run that was killed has left an engine with containers, networks and rules: the next one begins by removing them.

The first of these files, since only one engine runs at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.support import firewall
from tests.deploy.support.engine import PLACE, PREFIX, ROOT, running
from tests.deploy.support.shell import run

pytestmark = pytest.mark.timeout(300)
LEFT = """
import signal, sys
from tests.deploy.support.engine import running

with running() as engine:
    engine.docker("import", sys.argv[1], "local/sleep:1")
    engine.docker("network", "create", "left")
    container = engine.docker("run", "--detach", "--network", "left", "--restart", "always", "local/sleep:1", "/bin/sleep", "600").strip()
    print(engine.folder, engine.docker("inspect", "--format", "{{.State.Pid}}", container).strip(), flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> None:
    """By a real run that was killed before this one."""
    with running():
        pass


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A root with nothing in it but what /bin/sleep needs."""
    needed = {"/bin/sleep", *re.findall(r"/\S+", run("ldd", "/bin/sleep"))}
    archive = tmp_path / "sleep.tar"
    with tarfile.open(archive, "w", dereference=True) as packed:
        for path in sorted(needed):
            packed.add(path)
    return archive


@contextlib.contextmanager
def left_running(archive: Path) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """(who runs it, the engine's folder, the pid of a process in a container)."""
    abandoned = subprocess.Popen([sys.executable, "-c", LEFT, str(archive)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert abandoned.stdout is not None
        folder, pid = abandoned.stdout.readline().split()
        yield abandoned, Path(folder), int(pid)
    finally:
        abandoned.kill()
        abandoned.wait()


def runs(pid: int) -> bool:
    """Not where it only waits for its parent to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def network() -> tuple[list[str], list[str], str]:
    """Bridges, chains with their policies and rules, forwarding; without counts."""
    rules = [re.sub(r"\[\d+:\d+]", "", line) for table in firewall.TABLES for line in firewall.saved(table).splitlines()]
    return firewall.bridges(), [line for line in rules if not line.startswith("#")], firewall.FORWARDING.read_text()


@pytest.mark.parametrize("engine_too", [False, True], ids=["the run", "the run and its engine"])
def test_what_was_killed_is_cleared_away_by_the_next(engine_too: bool, sleeper: Path) -> None:
    before = network()
    with left_running(sleeper) as (abandoned, folder, pid):
        if engine_too:
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        abandoned.kill()
        abandoned.wait()
        assert network() != before and runs(pid)
        with running() as engine:
            assert engine.folder != folder and not folder.exists()
            assert not runs(pid)
            assert engine.docker("ps", "--all", "--quiet") == ""
    assert network() == before
    assert list(PLACE.glob(f"{PREFIX}*")) == []
    assert str(folder) not in Path("/proc/mounts").read_text()


def test_who_is_told_to_end_leaves_nothing(sleeper: Path) -> None:
    before = network()
    with left_running(sleeper) as (abandoned, folder, pid):
        abandoned.send_signal(signal.SIGTERM)
        abandoned.wait(60)
        assert not folder.exists() and not runs(pid)
    assert network() == before
