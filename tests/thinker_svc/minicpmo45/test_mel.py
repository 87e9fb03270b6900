"""Log-mel features: the reference's numbers, a pass over the whole buffer at every unit, batches, pieces, poison."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.speech import SHARED
from tests.thinker_svc.minicpmo45.perception_support import FIRST, FIXTURES, UNIT, Samples, recording, sound, unit_of
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, FRAMES, LogMel, MelState, mel_filters

torch.set_num_threads(1)
CPU = torch.device("cpu")
UNITS = 40


def heard(samples: Samples, units: int, slot: int = 0, state: MelState | None = None) -> Tensor:
    """Features of each unit, heard alone: [units, 104, 80]."""
    mel, state = LogMel(80, CPU), state or MelState(1, CPU)
    slots = torch.tensor([slot])
    return torch.cat([mel.unit(state, slots, torch.tensor([index]), fresh(samples, index)) for index in range(units)])


def fresh(samples: Samples, index: int) -> Tensor:
    row = torch.full((1, FIRST_SAMPLES), torch.nan)
    unit = torch.from_numpy(unit_of(samples, index))
    row[0, FIRST_SAMPLES - len(unit) :] = unit
    return row


def by_whole_buffer(samples: Samples, units: int) -> list[NDArray[np.float32]]:
    """What a pass over all that is buffered makes of each unit: mirrored ends, the last frame dropped."""
    window, filters = torch.hann_window(400), mel_filters(80)
    begin, made = 0, []
    for index in range(units):
        end = FIRST + UNIT * index
        if end - begin >= 30 * UNIT:
            begin += 10 * UNIT
        wave = torch.from_numpy(samples[begin:end])
        spectrum = torch.stft(wave, 400, 160, window=window, return_complex=True)[:, :-1].abs().square()
        power = (spectrum.T @ filters).clamp(min=1e-10).log10()
        floor = float(power.max()) - 8.0 if end - begin >= 5 * UNIT else -10.0
        frames = 100 * index - begin // 160
        made.append(((power[max(0, frames - 2) : frames + 102].clamp(min=floor) + 4) / 4).numpy())
    return made


def test_the_reference_makes_the_same_features() -> None:
    reference, ours = np.load(FIXTURES / "mel.npz"), heard(sound(UNITS), UNITS).numpy()
    np.testing.assert_allclose(ours[:, 2::6, ::5], reference["some"], atol=2e-6)
    for name, index in (("first", 0), ("dynamic", 4), ("slid", 29)):
        np.testing.assert_allclose(ours[index], reference[name], atol=2e-6)


@pytest.mark.parametrize("seed", [0, 5])
def test_every_unit_equals_a_pass_over_the_buffer(seed: int) -> None:
    samples = sound(UNITS, seed)
    ours = heard(samples, UNITS).numpy()
    for index, expected in enumerate(by_whole_buffer(samples, UNITS)):
        assert len(expected) == (FRAMES - 2 if index == 0 else FRAMES)
        np.testing.assert_allclose(ours[index, -len(expected) :], expected, atol=1e-5, err_msg=f"unit {index}")
    assert not ours[0, :2].any()


@pytest.mark.skipif(not SHARED.exists(), reason="no shared recordings")
def test_recorded_speech_equals_a_pass_over_the_buffer() -> None:
    names = ("librivox_sense_0870", "cards_001", "goforward", "librivox_sense_0880", "librivox_sense_0890")
    speech = np.concatenate([recording(SHARED / f"{name}.wav") for name in names])
    samples = np.resize(speech, FIRST + UNIT * 34)
    ours = heard(samples, 35).numpy()
    for index, expected in enumerate(by_whole_buffer(samples, 35)):
        np.testing.assert_allclose(ours[index, -len(expected) :], expected, atol=1e-5, err_msg=f"unit {index}")


def test_the_floor_is_dynamic_from_five_seconds_on() -> None:
    samples = (1e-4 * np.random.default_rng(0).standard_normal(FIRST + UNIT * 4)).astype(np.float32)
    samples[UNIT : UNIT + 800] = 0.9 * np.sin(np.arange(800) * 0.4)
    samples[2 * UNIT :] *= 0.01
    features = heard(samples, 5)
    assert features[3].min() < features[4].min() - 0.1
    assert float(features[4].min()) == pytest.approx((4.0 + float(features[1].max()) * 4 - 4 - 8) / 4, abs=1e-5)


def test_the_mirrored_end_of_the_buffer_raises_the_floor() -> None:
    samples = (1e-5 * np.random.default_rng(0).standard_normal(FIRST + UNIT * 6)).astype(np.float32)
    quiet = heard(samples, 7)
    # Only the last frame of the buffer of unit 5 reaches it, and no unit is given that frame.
    samples[FIRST + UNIT * 5 - 30 :][:8] = 0.9
    ours, expected = heard(samples, 7), by_whole_buffer(samples, 7)
    assert ours[5].min() > quiet[5].min() + 0.05
    np.testing.assert_allclose(ours[5], expected[5], atol=1e-5)
    np.testing.assert_allclose(ours[6], expected[6], atol=1e-5)


def test_units_equal_the_whole_recording_once_its_loudest_moment_was_heard() -> None:
    samples = sound(20, 1)
    whole, units = LogMel(80, CPU).whole(torch.from_numpy(samples)), heard(samples, 20)
    assert float(whole.max()) == pytest.approx(float(units[:4].max()), abs=1e-6)
    for index in range(4, 20):
        # The last unit's own frames only: behind them the whole recording sees silence.
        end = min(FRAMES, len(whole) - 2 - (100 * index - 2))
        torch.testing.assert_close(units[index, :end], whole[100 * index - 2 :][:end], atol=2e-6, rtol=0)


def test_rows_in_different_phases_equal_rows_alone() -> None:
    mel, state = LogMel(80, CPU), MelState(4, CPU)
    state.tail.fill_(torch.nan), state.loudest.fill_(torch.nan)
    begins = {3: 0, 0: 1, 2: 11}
    sounds = {slot: sound(UNITS, slot) for slot in begins}
    alone = {slot: heard(sounds[slot], UNITS) for slot in begins}
    for tick in range(UNITS):
        slots = [slot for slot, begin in begins.items() if begin <= tick]
        units = [tick - begins[slot] for slot in slots]
        rows = torch.cat([fresh(sounds[slot], unit) for slot, unit in zip(slots, units, strict=True)])
        made = mel.unit(state, torch.tensor(slots), torch.tensor(units), rows)
        for row, slot, unit in zip(made, slots, units, strict=True):
            torch.testing.assert_close(row, alone[slot][unit], atol=1e-6, rtol=0)
    assert state.tail[1].isnan().all() and state.loudest[1].isnan().all()


def test_silence_is_the_lowest_value() -> None:
    features = heard(np.zeros(FIRST + UNIT * 5, np.float32), 6)
    assert set(features[0, 2:].unique().tolist()) == {-1.5}
    assert set(features[5].unique().tolist()) == {-1.5}


def test_filters_are_those_of_whisper() -> None:
    audio_utils = pytest.importorskip("transformers.audio_utils")
    expected = audio_utils.mel_filter_bank(201, 80, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(80).numpy(), expected, atol=1e-8)
