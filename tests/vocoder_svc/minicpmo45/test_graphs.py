"""Sound from graphs against plain sound: three sessions in two voices, in all phases of their turns, in batches padded to four."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minicpmo45.random_checkpoint import write_hift
from minicpmo45.token2wav import ASSETS, HIFT_FILES
from stage_kit import Label
from tests.support.checkpoint import copy_checkpoint
from tests.support.graphs import RehearsedGraphs
from tests.vocoder_svc.minicpmo45.sounds import pcm, text
from tests.vocoder_svc.minicpmo45.test_engine import OPEN, Session, engine_on
from tests.vocoder_svc.minicpmo45.weights import CAUSAL
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine

TURN = Label(1, 1, "t1")
VOICES = ({}, {"reference_voice": text(pcm(16_000, 2.2))}, {})


def _sound(engine: MiniCpmVocoderEngine) -> list[NDArray[np.float32]]:
    draw = np.random.default_rng(7)
    sessions = [Session(engine, **voice) for voice in VOICES]
    for session in sessions:
        session.settle()
    for part in range(4):
        for number, session in enumerate(sessions[: part + 1]):
            session.codes(TURN, draw.integers(0, 6561, 25 - 9 * (part == 2) * number), last=part == 3)
        while ready := [session.slot for session in sessions if session.ready()]:
            engine.step(ready)
    made = [session.sound(TURN) for session in sessions]
    for session in list(OPEN):
        session.close()
    return made


@pytest.mark.behaviour("N48")
@pytest.mark.parametrize("generation", ["first", "causal"])
def test_sound_from_graphs_is_plain_sound(checkpoint: Path, tmp_path: Path, generation: str) -> None:
    folder = copy_checkpoint(checkpoint, tmp_path / "copy")
    if generation == "causal":
        hift = folder / ASSETS / HIFT_FILES[0]
        hift.unlink()
        write_hift(hift, CAUSAL, seed=1)
    engine = engine_on(folder)
    plain = _sound(engine)
    graphs = RehearsedGraphs()
    engine._vocoder._graphs = graphs
    engine._vocoder.warm_up(4, [150, 110])
    before = set(graphs.prepared)
    for fast, slow in zip(_sound(engine), plain, strict=True):
        assert fast.shape == slow.shape and np.abs(fast - slow).max() < 1e-3 * np.abs(slow).max()
    assert {key[0] for key in graphs.keys} == {1, 2, 4} and set(graphs.keys) <= before
    engine._voices.close()
