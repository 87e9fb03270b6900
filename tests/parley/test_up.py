"""`parley up` as a user runs it: a command of its own, with real processes in place of the models' services."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.commands.sound import load_recording, write_wav
from parley.commands.up import reachable

from . import children
from .children import Watched
from .realtime import REPLY

ROOT = Path(__file__).parents[2]
GATEWAY = """
import asyncio, base64, json, signal, os
from tests.parley.realtime import REPLY, Ears, realtime_server
async def main():
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with realtime_server(Ears(["Par", "is."], REPLY if "SILENT" not in os.environ else bytes(4800))) as url:
        ready(http=url.removeprefix("http://"))
        await stopping.wait()
asyncio.run(main())
"""


class House:
    """A folder with stand-ins for the service modules, and a `parley up` that runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        for name in ("vad", "thinker", "talker", "vocoder"):
            self.replace(f"{name}_svc", children.SERVES)
        self.replace("gateway", GATEWAY)
        (folder / "own.yaml").touch()

    def replace(self, module: str, code: str) -> None:
        package = self.folder / module
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(children.HEAD + code)

    @contextlib.contextmanager
    def up(self, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """The running command; killed at the end if it still runs."""
        env = {**os.environ, "PARLEY_RUN_DIR": str(self.runs), "PYTHONPATH": f"{self.folder}:{ROOT}", "PYTHONUNBUFFERED": "1", **more}
        command = [sys.executable, "-m", "parley", "up", "--profile", "own.yaml", "--port", "0", *arguments]
        with subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            try:
                yield running
            finally:
                running.kill()

    def only_run(self) -> Path:
        [folder] = self.runs.iterdir()
        return folder


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def until(running: subprocess.Popen[str], word: str) -> None:
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if line.startswith(word):
            return
    raise AssertionError(f"ended before it said {word!r}: {said} {running.stderr.read() if running.stderr else ''}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_within_five_seconds(number: signal.Signals, house: House) -> None:
    with house.up() as running:
        until(running, "serving")
        watched = Watched.of(house.only_run())
        begun = time.monotonic()
        running.send_signal(number)
        assert running.wait(10) == 0
        took_s = time.monotonic() - begun
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert watched.alive_after(0.0) == set()
    assert took_s < 5.0
    assert list(house.runs.iterdir()) == []


def test_what_refuses_to_stop_is_gone_within_five_seconds(house: House) -> None:
    for module in ("gateway", "vad_svc", "talker_svc"):
        house.replace(module, children.IGNORES_SIGTERM.replace("ready()", "ready(http='127.0.0.1:1')"))
    with house.up() as running:
        until(running, "serving")
        watched = Watched.of(house.only_run())
        begun = time.monotonic()
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 0
        took_s = time.monotonic() - begun
    assert watched.alive_after(0.0) == set()
    assert took_s < 5.0


def test_once_speaks_prints_and_ends(house: House) -> None:
    with house.up("--once") as running:
        said, complained = running.communicate(timeout=60)
    assert (running.returncode, complained) == (0, "")
    assert "What is it?" in said
    assert "answers   Paris." in said
    assert "first audio" in said
    assert load_recording(house.folder / "reply.wav").pcm
    assert list(house.runs.iterdir()) == []


def test_speaking_does_not_end_the_run(house: House) -> None:
    write_wav(house.folder / "short.wav", REPLY)
    with house.up("--speak", "short.wav", "--reply", "other.wav") as running:
        until(running, "talk page")
        assert (house.folder / "other.wav").exists()
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 0


def test_once_without_speech_is_a_failure(house: House) -> None:
    write_wav(house.folder / "short.wav", REPLY)
    with house.up("--once", "--speak", "short.wav", SILENT="1") as running:
        _, complained = running.communicate(timeout=60)
    assert running.returncode == 1
    assert complained == "parley: the answer has no sound\n"


def test_a_dead_service_is_said_in_one_line_and_its_log_stays(house: House) -> None:
    house.replace("thinker_svc", children.DIES_AT_ONCE)
    with house.up() as running:
        _, complained = running.communicate(timeout=60)
    assert running.returncode == 1
    log = house.only_run() / "thinker.log"
    assert complained == f"parley: thinker exited with code 3: there is no such file: weights.bin (log: {log})\n"
    assert "weights.bin" in log.read_text()
    assert {path.suffix for path in house.only_run().iterdir()} == {".log"}


def test_a_busy_port_is_said_in_one_line(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with house.up("--port", str(port)) as running:
            _, complained = running.communicate(timeout=60)
    assert running.returncode == 1
    assert complained.startswith(f"parley: port {port} on 127.0.0.1 is in use by another process")
    assert complained.count("\n") == 1
    assert not house.runs.exists()


def test_missing_models_are_said_in_one_line(house: House) -> None:
    (house.folder / "embedded.yaml").touch()
    with house.up("--profile", "embedded.yaml", PARLEY_MODELS=str(house.folder / "none")) as running:
        _, complained = running.communicate(timeout=60)
    assert running.returncode == 1
    assert complained.startswith("parley: models are missing: moonshine-tiny, smollm2-135m,")
    assert complained.endswith(": run `parley models fetch`\n")
    assert complained.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:80", "http://127.0.0.1:80"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("::1:8080", "http://[::1]:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("localhost:1", "http://localhost:1"),
    ],
)
def test_where_a_gateway_is_reached(address: str, url: str) -> None:
    assert reachable(address) == url


def test_an_unknown_profile_is_said_in_one_line(house: House) -> None:
    with house.up("--profile", "nothing") as running:
        _, complained = running.communicate(timeout=60)
    assert (running.returncode, complained.count("\n")) == (1, 1)
    assert "there is no profile 'nothing'" in complained
