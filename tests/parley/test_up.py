"""`parley up` as a user runs it: a command of its own, with real processes in place of the models' services."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.commands.sound import load_recording, write_wav
from parley.commands.up import reachable

from . import children, fake_mps
from .children import Watched
from .realtime import REPLY

ROOT = Path(__file__).parents[2]
GATEWAY = """
import asyncio, base64, json, signal, os
from tests.parley.realtime import REPLY, Ears, realtime_server
async def main():
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    ears = Ears(["Par", "is."], REPLY if "SILENT" not in os.environ else bytes(4800))
    async with realtime_server(ears if "DEAF" not in os.environ else ears.deaf) as url:
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
        handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the command would inherit that it is ignored
        try:
            started = subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGHUP, handler)
        with started as running:
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


def until(running: subprocess.Popen[str], word: str) -> list[str]:
    """What was said before the line that begins with it."""
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if line.startswith(word):
            return said
    raise AssertionError(f"ended before it said {word!r}: {said} {running.stderr.read() if running.stderr else ''}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(number: signal.Signals, house: House) -> None:
    with house.up() as running:
        until(running, "serving")
        watched = Watched.of(house.only_run())
        running.send_signal(number)
        assert running.wait(60) == 0
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert watched.alive_after(0.0) == set()
    assert list(house.runs.iterdir()) == []


def test_what_refuses_to_stop_is_killed(house: House) -> None:
    for module in ("gateway", "vad_svc", "talker_svc"):
        house.replace(module, children.IGNORES_SIGTERM.replace("ready()", "ready(http='127.0.0.1:1')"))
    with house.up() as running:
        until(running, "serving")
        watched = Watched.of(house.only_run())
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    assert watched.alive_after(0.0) == set()


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


def test_once_without_an_answer_ends_with_a_code_of_its_own(house: House) -> None:
    write_wav(house.folder / "short.wav", REPLY)
    with house.up("--once", "--speak", "short.wav", "--reply-timeout-s", "1", DEAF="1") as running:
        _, complained = running.communicate(timeout=60)
    assert running.returncode == 3
    assert complained == "parley: no answer within 1 s of the question's end\n"


ON_A_GPU = "services: {thinker: {PARLEY_DEVICE: auto}, talker: {PARLEY_DEVICE: auto}, vocoder: {PARLEY_DEVICE: auto}}"


def shared(house: House, **more: str) -> dict[str, str]:
    """Three services are to share one card; the program that starts MPS is a stand-in."""
    (house.folder / "own.yaml").write_text(ON_A_GPU)
    fake_mps.install(house.folder / "programs")
    return {"CUDA_VISIBLE_DEVICES": "4", "PATH": f"{house.folder / 'programs'}:{os.environ['PATH']}", **more}


@pytest.mark.parametrize("how", ["asked", "killed service"])
def test_services_on_one_card_share_it_through_a_daemon_that_ends_with_them(how: str, house: House) -> None:
    if how == "killed service":
        house.replace("talker_svc", children.READY_THEN_DIES)
    with house.up(**shared(house, PARLEY_MAX_RESTARTS="0", PARLEY_MPS_STOP_S="3")) as running:
        said = until(running, "serving")
        pipes = house.only_run() / "mps-0" / "pipe"
        if how == "asked":
            assert "thinker, talker and vocoder share GPU 4 through MPS\n" in said
            watched = Watched({**fake_mps.processes(pipes), **json.loads((house.only_run() / "pids.json").read_text())})
            running.send_signal(signal.SIGINT)
        assert running.wait(20) == (0 if how == "asked" else 1)
        if how == "asked":
            assert watched.alive_after(0.0) == set()
            assert list(house.runs.iterdir()) == []
        else:
            assert not pipes.exists(), "it quit, and its folder went"


def test_a_card_that_is_shared_by_time_slices_is_said_in_one_line(house: House) -> None:
    with house.up("--no-mps", **shared(house)) as running:
        said = until(running, "serving")
    slices = "thinker, talker and vocoder share GPU 4 by time slices, so that real time is kept for fewer sessions: MPS is turned off\n"
    assert [line for line in said if "GPU" in line] == [slices]


def test_cards_may_be_named(house: House) -> None:
    env = shared(house) | {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    with house.up("--gpus", "0,2,1", **env) as running:
        said = until(running, "serving")
    assert [line for line in said if "GPU" in line] == ["thinker has GPU 4\n", "talker has GPU 6\n", "vocoder has GPU 5\n"]
    with house.up("--gpus", "3", **env) as running:
        _, complained = running.communicate(timeout=60)
    assert (running.returncode, complained) == (1, "parley: there is no GPU 3: 3 GPUs can be seen, counted from 0\n")


def test_a_native_model_that_only_listens_is_said_to(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The released profile, all processes, random weights; what the model decides is scripted."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"units": [["listen"]]}))
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CUDA")},
        "PARLEY_CHECKPOINT": str(tiny_checkpoint), "PARLEY_DEVICE": "cpu", "PARLEY_THINKER_SCRIPT": str(script),
    }  # fmt: skip
    write_wav(tmp_path / "short.wav", REPLY * 8)
    command = [sys.executable, "-m", "parley", "up", "--profile", "minicpmo45", "--port", "0", "--once", "--speak", "short.wav"]
    command += ["--reply-timeout-s", "3"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 3, ended
    assert re.fullmatch(
        r"parley: the model did not speak within 3 s of the question's end: it listened to \d units\n", ended.stderr
    ), ended  # fmt: skip


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
