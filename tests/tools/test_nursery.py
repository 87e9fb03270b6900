"""The nursery forks what `python -m` would start: with its arguments, environment, output and exit code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import process
from tests.support.nursery import ROOT, Forked, Nursery, Order


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    assert made.close() == 0


SLEEPS = "import time; time.sleep(600)"


@contextmanager
def watched(*pids: int) -> Iterator[list[int]]:
    """Of each process what can be read once it has ended; whoever still runs is killed in the end."""
    watches = [os.pidfd_open(pid) for pid in pids]
    try:
        yield watches
    finally:
        for watch in watches:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(watch, signal.SIGKILL)
            os.close(watch)


def ends(watch: int) -> bool:
    return bool(select.select([watch], [], [], 10)[0])


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


@pytest.mark.parametrize("size", [150_000, 1 << 20])
def test_an_order_may_be_long(nursery: Nursery, tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    order = Order("timeit", ["-n", "1", "-r", "1", "import os; print(len(os.environ['LONG']))"], {"LONG": "x" * size}, str(log))
    assert nursery.fork(order).wait(30) == 0
    assert log.read_text().splitlines()[0] == str(size)


def test_a_nursery_that_died_says_so_and_took_its_children_along(tmp_path: Path) -> None:
    made = Nursery()
    sleeper = run(made, tmp_path / "log", SLEEPS)
    with watched(sleeper.pid) as (end,):
        os.kill(made._process.pid, signal.SIGKILL)
        made._process.wait()
        # it may have the nursery's end of the line until then
        assert ends(end)
        for ask in (sleeper.poll, lambda: run(made, tmp_path / "log", "pass")):
            with pytest.raises(RuntimeError, match="has ended"):
                ask()
    sleeper.kill()
    made.close()


def test_a_child_of_a_nursery_that_died_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Nursery()
    monkeypatch.setattr(process, "nursery", lambda: made)
    child = process.Child("sleeper", ["-m", "timeit", SLEEPS], {}, tmp_path, forked=True)
    child.start()
    with watched(child.process.pid) as (end,):
        os.kill(made._process.pid, signal.SIGKILL)
        made._process.wait()
        for stop in (child.ask_to_stop, child.stop, child.kill):
            stop()
        assert ends(end)
    made.close()


TESTS = """
import sys
from tests.support.nursery import Nursery, Order
made = Nursery()
child = made.fork(Order("timeit", [sys.argv[1]], {}, sys.argv[2]))
print(made._process.pid, child.pid, flush=True)
sys.stdin.read()
"""


def test_nobody_outlives_tests_that_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TESTS, SLEEPS, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        with watched(*map(int, tests.stdout.readline().split())) as both:
            tests.kill()
            assert [ends(each) for each in both] == [True, True]
