"""A stage is killed and started again, as load and soak runs do it: a real process, however it fared before."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.native.deployment import STAGES, Deployed, _ready

SERVES = """
import pathlib, signal, sys
ready = pathlib.Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
ready.write_text('{"http": "127.0.0.1:1"}')
signal.sigwait([signal.SIGTERM])
ready.unlink()
"""


@pytest.mark.parametrize("fared", ["serves", "ended", "is reaped"])
async def test_a_stage_is_revived_however_it_fared(tmp_path: Path, fared: str) -> None:
    for stage in STAGES:
        (tmp_path / f"{stage}.json").write_text(json.dumps({"http": "127.0.0.1:1"}))
    (tmp_path / "vocoder.log").touch()

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SERVES, str(tmp_path / f"{name}.json")])

    processes: dict[str, subprocess.Popen[bytes]] = {}
    there = Deployed(tmp_path, processes, start, 0)
    (tmp_path / "vocoder.json").unlink()
    first = processes["vocoder"] = start("vocoder")
    try:
        await _ready(tmp_path, "vocoder", first)
        if fared != "serves":
            first.terminate()
            await asyncio.to_thread(os.waitid, os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        if fared == "is reaped":
            assert first.wait() == 0
        seconds, starts = await there.revive("vocoder")
        assert first.returncode == (-signal.SIGKILL if fared == "serves" else 0)
        assert processes["vocoder"] is not first and not there.dead and (seconds > 0, starts) == (True, 1)
    finally:
        processes["vocoder"].kill()
        processes["vocoder"].wait()
