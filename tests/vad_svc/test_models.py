"""The models alone: batches, checks, refusals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.vad_svc.support.audio import recording, silence
from vad_svc.models import SHA256, SMART_TURN, ModelMismatch, ModelMissing, models_root, open_model
from vad_svc.silero import FRAME, Silero, SileroState
from vad_svc.smart_turn import InvalidScore, SmartTurn, checked

pytestmark = pytest.mark.models


@pytest.fixture(scope="module", autouse=True)
def _present() -> None:
    if not all((models_root() / name).exists() for name in SHA256):
        pytest.skip("the models are not here")


def test_batch_gives_each_session_what_it_gets_alone() -> None:
    silero = Silero()
    names = ["goforward", "cards_001", "synth_q_sky_blue"]
    audio = [np.concatenate([recording(name), silence(2000)])[: 60 * FRAME] for name in names]
    alone = []
    for samples in audio:
        state = SileroState()
        alone.append([silero.probabilities([state], [samples[at : at + FRAME]])[0] for at in range(0, samples.size, FRAME)])
    states = [SileroState() for _ in names]
    together = [silero.probabilities(states, [samples[at : at + FRAME] for samples in audio]) for at in range(0, 60 * FRAME, FRAME)]
    np.testing.assert_allclose(np.array(together).T, alone, atol=1e-6)


def test_end_of_turn_scores() -> None:
    model = SmartTurn()
    assert model.score(recording("synth_q_capital_france")) > 0.9
    assert model.score(recording("synth_incomplete_um_because")) < 0.1


@pytest.mark.behaviour("U42")
@pytest.mark.parametrize("answer", [math.nan, math.inf, -0.1, 1.1])
def test_invalid_probability_is_refused(answer: float) -> None:
    with pytest.raises(InvalidScore):
        checked(answer)


@pytest.mark.behaviour("U42")
def test_model_of_another_checksum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="parley models fetch"):
        open_model(SMART_TURN, tmp_path)
    (tmp_path / SMART_TURN).parent.mkdir()
    (tmp_path / SMART_TURN).write_bytes((models_root() / SMART_TURN).read_bytes() + b"\0")
    with pytest.raises(ModelMismatch):
        open_model(SMART_TURN, tmp_path)
