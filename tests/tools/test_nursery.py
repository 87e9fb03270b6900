"""The nursery forks what `python -m` would start: with its arguments, environment, output and exit code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nursery import Forked, Nursery, Order


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    assert made.close() == 0


def run(nursery: Nursery, log: Path, statement: str) -> Forked:
    return nursery.fork(Order("timeit", ["-n", "1", "-r", "1", statement], {"SAID": "to the child", "PATH": os.defpath}, str(log)))


def test_arguments_environment_output_and_exit_codes(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    told = run(nursery, log, "import os, sys; print(dict(os.environ), os.getpid(), sys.argv[1], 'gateway' in sys.modules)")
    assert told.wait(30) == 0
    said = log.read_text().splitlines()
    environment = {"SAID": "to the child", "PATH": os.defpath}
    assert said[:2] == ["before", f"{environment} {told.pid} -n False"] and "1 loop, best of 1" in said[2]
    assert run(nursery, log, "1 / 0").wait(30) == 1
    assert "ZeroDivisionError" in log.read_text()


def test_signals_and_who_is_waited_for_in_vain(nursery: Nursery, tmp_path: Path) -> None:
    sleepers = [run(nursery, tmp_path / "log", "import time; time.sleep(60)") for _ in range(2)]
    assert [each.poll() for each in sleepers] == [None] * 2
    with pytest.raises(subprocess.TimeoutExpired):
        sleepers[0].wait(0.01)
    sleepers[0].kill()
    sleepers[1].terminate()
    assert [each.wait(30) for each in sleepers] == [-signal.SIGKILL, -signal.SIGTERM]
    sleepers[0].kill()


def test_an_end_that_nobody_heard_of_is_no_fault(tmp_path: Path) -> None:
    made = Nursery()
    child = run(made, tmp_path / "log", "pass")
    select.select([made._line], [], [])
    assert child.returncode is None and made.close() == 0


def test_a_nursery_that_died_says_so_and_its_children_can_be_killed(tmp_path: Path) -> None:
    made = Nursery()
    sleeper = run(made, tmp_path / "log", "import time; time.sleep(60)")
    end = os.pidfd_open(sleeper.pid)
    os.kill(made._process.pid, signal.SIGKILL)
    made._process.wait()
    for ask in (sleeper.poll, lambda: run(made, tmp_path / "log", "pass")):
        with pytest.raises(RuntimeError, match="has ended"):
            ask()
    sleeper.kill()
    assert select.select([end], [], [], 30)[0]
    os.close(end)
    made.close()
