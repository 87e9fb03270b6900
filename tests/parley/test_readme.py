"""What the README shows runs."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from parley.commands.sound import load_recording, write_wav

from .realtime import REPLY, Ears, realtime_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


async def test_the_client_example_holds_a_spoken_turn(tmp_path: Path) -> None:
    [example] = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "parley.connect" in code]
    write_wav(tmp_path / "question.wav", REPLY)
    async with realtime_server(Ears(["It is ", "this."], REPLY)) as url:
        code = example.replace("http://127.0.0.1:8080", url)
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, complained = await running.communicate()
    assert (running.returncode, complained) == (0, b"")
    assert said.decode() == "heard: What is it?\nIt is this."
    assert load_recording(tmp_path / "answer.wav").pcm == REPLY
    assert len(example.splitlines()) <= 26


def test_every_page_that_the_readme_names_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
