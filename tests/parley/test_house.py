"""The whole house, with its models: `parley up` from the first process to the last."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parley.commands.sound import is_sound, load_recording

from .children import Watched

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.models


def test_the_recorded_question_is_heard_and_answered_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    reply, runs = tmp_path / "reply.wav", tmp_path / "runs"
    question = ROOT / "parley" / "assets" / "synthetic_question.wav"
    command = [sys.executable, "-m", "parley", "up", "--port", "0", "--speak", str(question), "--reply", str(reply)]
    env = {**os.environ, "PARLEY_RUN_DIR": str(runs), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = ""
        for line in running.stdout:
            said += line
            if line.startswith("talk page"):
                break
        [folder] = runs.iterdir()
        watched = Watched.of(folder)
        running.send_signal(signal.SIGINT)
        code = running.wait(60)
        assert running.stderr is not None
        complained = running.stderr.read()
    assert (code, complained) == (0, "")
    assert watched.alive_after(0.0) == set()
    assert list(runs.iterdir()) == []
    heard = re.search(r"heard +(.*)", said)
    assert heard is not None and "capital of france" in heard[1].lower()
    assert re.search(r"answers +\S+", said)
    for step in ("speech stopped", "transcript", "first text", "first audio"):
        assert re.search(rf"{step} .*\d+ ms +\d+ ms", said)
    assert is_sound(load_recording(reply).pcm)
