"""Sessions of benchmarks begin full, whenever their first unit begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.native.preload import PreloadedThinker
from tests.thinker_svc.minicpmo45.clients import Client, run
from thinker_svc.minicpmo45.session import Kind, Session
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

TOKENS = 100


def test_a_session_whose_first_unit_is_begun_in_a_step_of_others_is_full(tiny_checkpoint: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"units": [["listen"]]}))
    engine = PreloadedThinker(MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, script=script, slots=2, window_tokens=512), TOKENS)
    engine.load()
    first, second = (Client(engine, name) for name in ("first", "second"))
    run(first, second)
    sessions: list[Session] = [client.slot.state for client in (first, second)]
    assert [session.prefix for session in sessions] == [Kind.UNIT] * 2 and not any(session.begun for session in sessions)
    came: list[bool] = []

    def sound(_: object) -> None:
        if not came:
            came.append(True)
            second.sound(1_030)

    engine.on_wait(sound)
    first.sound(1_030)
    engine.step([first.slot])
    assert sessions[1].begun and sessions[1].unit is not None and sessions[1].unit.audio is not None
    run(first, second)
    for client, session in zip((first, second), sessions, strict=True):
        assert client.receipts() == [1030] and session.table.window_length > TOKENS
        assert sum(span.length for span in list(session.window.spans)[:-1]) == TOKENS
