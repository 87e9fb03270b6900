"""Perception as the engine uses it: the reference's numbers in batches, slots, pieces, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minicpmo45.config import tiny
from tests.thinker_svc.minicpmo45.perception_support import FIRST, FIXTURES, UNIT, Samples, sound, tiny_weights, unit_of
from thinker_svc.minicpmo45.mel import LogMel
from thinker_svc.minicpmo45.perception import BadAudio, Perception

torch.set_num_threads(1)
CONFIG = tiny()
WEIGHTS = tiny_weights(CONFIG)
UNITS = 40


def poison(perception: Perception, slot: int) -> None:
    """Fills what belongs to no session with NaN."""
    perception.cache[:, slot] = torch.nan
    perception.mel_state.tail[slot] = torch.nan
    perception.mel_state.loudest[slot] = torch.nan


def heard_alone(samples: Samples, units: int) -> torch.Tensor:
    perception = Perception(WEIGHTS, CONFIG, 1)
    perception.open(0)
    return torch.cat([perception.hear([0], [unit_of(samples, index)], [index == 0]) for index in range(units)])


def test_the_reference_hears_the_same_with_resets_at_other_times() -> None:
    reference = np.load(FIXTURES / "encoder.npz")
    sounds = {slot: sound(UNITS, slot) for slot in range(3)}
    begins = {0: 0, 1: 7, 2: 15}
    perception = Perception(WEIGHTS, CONFIG, 4)
    for slot in range(4):
        poison(perception, slot)
    worst = 0.0
    for tick in range(UNITS + 15):
        slots = [slot for slot in (2, 0, 1) if 0 <= tick - begins[slot] < UNITS]
        for slot in slots:
            if tick == begins[slot]:
                perception.open(slot)
        units = [tick - begins[slot] for slot in slots]
        made = perception.hear(
            slots, [unit_of(sounds[slot], unit) for slot, unit in zip(slots, units, strict=True)], [unit == 0 for unit in units]
        )
        for row, slot, unit in zip(made.numpy(), slots, units, strict=True):
            if slot == 0:
                worst = max(worst, np.abs(row - reference["zero"][unit]).max())
            elif unit in reference["few"]:
                worst = max(worst, np.abs(row - reference["one" if slot == 1 else "two"][list(reference["few"]).index(unit)]).max())
    assert worst < 1e-5
    assert perception.cache[:, 3].isnan().all()


@pytest.mark.parametrize("seed", [0, 1])
def test_any_mix_of_sessions_equals_each_alone(seed: int) -> None:
    """Sessions begin, pause and end at random; what no session owns is NaN all the time."""
    rng = np.random.default_rng(seed)
    alone = {kind: heard_alone(sound(UNITS, kind), UNITS) for kind in range(4)}
    sounds = {kind: sound(UNITS, kind) for kind in range(4)}
    perception = Perception(WEIGHTS, CONFIG, 5)
    live: dict[int, tuple[int, int]] = {}
    longest = 0
    for slot in range(5):
        poison(perception, slot)
    for _ in range(90):
        for slot in range(5):
            if slot not in live and rng.random() < 0.2:
                perception.open(slot)
                live[slot] = int(rng.integers(4)), 0
        chosen = [slot for slot in rng.permutation(list(live)).tolist() if rng.random() < 0.8]
        if not chosen:
            continue
        pieces = [unit_of(sounds[live[slot][0]], live[slot][1]) for slot in chosen]
        made = perception.hear(chosen, pieces, [live[slot][1] == 0 for slot in chosen])
        for row, slot in zip(made, chosen, strict=True):
            kind, unit = live[slot]
            torch.testing.assert_close(row, alone[kind][unit], atol=1e-5, rtol=0)
            longest = max(longest, unit)
            live[slot] = kind, unit + 1
            perception.cache[:, slot, :, :, unit % 29 * 50 + 50 :] = torch.nan
            if unit + 1 == UNITS or rng.random() < 0.01:
                perception.close(slot)
                poison(perception, slot)
                del live[slot]
    assert longest > 29


def test_pieces_equal_units_at_once() -> None:
    rng, samples = np.random.default_rng(3), sound(8, 2)
    perception = Perception(WEIGHTS, CONFIG, 2)
    perception.open(1)
    expected = heard_alone(samples, 8)
    for index in range(8):
        unit = unit_of(samples, index)
        cuts = np.sort(rng.integers(0, len(unit) + 1, 5))
        *early, last = np.split(unit, cuts)
        for piece in early:
            perception.gather(1, piece)
        assert torch.equal(perception.hear([1], [last], [index == 0])[0], expected[index])


def test_a_short_first_unit_is_preceded_by_silence() -> None:
    samples = sound(2, 1)
    padded = np.concatenate((np.zeros(FIRST - 9000, np.float32), samples[:9000]))
    perception = Perception(WEIGHTS, CONFIG, 2)
    perception.open(0), perception.open(1)
    perception.gather(0, samples[:4000])
    one, two = perception.hear([0, 1], [samples[4000:9000], padded], [True, True])
    assert torch.equal(one, two)


def test_forgotten_samples_are_not_heard() -> None:
    samples = sound(1, 1)
    perception = Perception(WEIGHTS, CONFIG, 1)
    perception.open(0)
    perception.gather(0, samples[:5000])
    perception.forget(0)
    assert torch.equal(perception.hear([0], [samples], [True])[0], heard_alone(samples, 1)[0])


def test_the_reference_hears_the_same_voice() -> None:
    reference, whole = np.load(FIXTURES / "reference_audio.npz"), sound(30, 3)
    perception = Perception(WEIGHTS, CONFIG, 1)
    for name, count, step in (("short", 84_800, 1), ("odd", 33_333, 1), ("full", 480_000, 4), ("least", 1_281, 1)):
        np.testing.assert_allclose(perception.reference(whole[:count])[::step], reference[name], atol=1e-5, err_msg=name)
    features = LogMel(80, torch.device("cpu")).whole(torch.from_numpy(whole[:33_333]))
    np.testing.assert_allclose(features[::3], reference["odd_mel"], atol=2e-6)


def test_a_long_voice_is_heard_in_segments() -> None:
    samples = sound(36, 4)[: 35 * UNIT + 700]
    perception = Perception(WEIGHTS, CONFIG, 1)
    made = perception.reference(samples)
    assert made.shape == (350, CONFIG.llm.hidden_size)
    torch.testing.assert_close(made[300:], perception.reference(samples[30 * UNIT :]))
    assert perception.reference(samples[: 30 * UNIT + 1000]).shape[0] == 300


def test_a_voice_does_not_touch_the_sessions() -> None:
    samples, perception = sound(3, 1), Perception(WEIGHTS, CONFIG, 1)
    expected = heard_alone(samples, 3)
    perception.open(0)
    for index in range(3):
        assert torch.equal(perception.hear([0], [unit_of(samples, index)], [index == 0])[0], expected[index])
        perception.reference(samples)


NAN = np.array([0.0, np.nan], np.float32)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (np.zeros(1000, np.float32), "at least 1281"),
        (np.zeros(0, np.float32), "at least 1281"),
        (np.zeros(61 * UNIT, np.float32), "longer than 60 s"),
        (np.resize(NAN, 20_000), "NaN"),
        (np.zeros(20_000, np.int16), "float32"),
        (np.zeros((2, 20_000), np.float32), "float32"),
    ],
)
def test_a_bad_voice_is_refused(samples: Samples, why: str) -> None:
    with pytest.raises(BadAudio, match=f"reference_voice: .*{why}"):
        Perception(WEIGHTS, CONFIG, 1).reference(samples)


def test_bad_samples_are_refused_and_change_nothing() -> None:
    samples, expected = sound(4, 2), heard_alone(sound(4, 2), 4)
    perception = Perception(WEIGHTS, CONFIG, 2)
    perception.open(0), perception.open(1)
    good, first = unit_of(samples, 0), np.zeros(FIRST, np.float32)
    bad = [
        (np.resize(NAN, FIRST), True, "NaN"),
        (np.full(FIRST, np.inf, np.float32), True, "infinity"),
        (np.zeros(FIRST, np.float64), True, "float32"),
        (np.zeros(FIRST + 1, np.float32), True, "16481 samples in a unit of 16480"),
        (np.zeros(0, np.float32), True, "0 samples"),
        (first, False, "first: 0 units"),
    ]
    for other, flag, why in bad:
        with pytest.raises(BadAudio, match=why):
            perception.hear([0, 1], [good, other], [True, flag])
    assert torch.equal(perception.hear([0], [good], [True])[0], expected[0])
    for other, why in ((unit_of(samples, 1)[1:], "15999 samples in a unit of 16000"), (good, "16480 samples in a unit of 16000")):
        with pytest.raises(BadAudio, match=why):
            perception.hear([0], [other], [False])
    with pytest.raises(BadAudio, match="1 units of the session"):
        perception.hear([0], [good], [True])
    perception.gather(0, unit_of(samples, 1)[:9000])
    for other, why in ((np.zeros(7001, np.float32), "16001 samples gathered"), (NAN, "NaN")):
        with pytest.raises(BadAudio, match=why):
            perception.gather(0, other)
    assert torch.equal(perception.hear([0], [unit_of(samples, 1)[9000:]], [False])[0], expected[1])


def test_slots_are_checked() -> None:
    perception = Perception(WEIGHTS, CONFIG, 2)
    first = np.zeros(FIRST, np.float32)
    perception.open(0)
    for call in (
        lambda: perception.open(0),
        lambda: perception.open(2),
        lambda: perception.open(-1),
        lambda: perception.close(1),
        lambda: perception.gather(1, first),
        lambda: perception.forget(1),
        lambda: perception.hear([1], [first], [True]),
        lambda: perception.hear([0, 0], [first, first], [True, True]),
        lambda: perception.hear([0], [first, first], [True]),
        lambda: perception.hear([], [], []),
    ):
        with pytest.raises(ValueError, match="slot"):
            call()
    perception.close(0)
    perception.open(0)


@pytest.mark.behaviour("S1")
def test_a_unit_that_is_heard_again_after_a_failure_is_heard_as_if_nothing_had_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory between the features and the encoder, of a batch; then each is heard alone, as the kit steps it."""
    sounds, found = [sound(13, seed) for seed in (5, 6)], []
    for fails in (True, False):
        perception = Perception(WEIGHTS, CONFIG, 2)
        whole, made = perception._audio.unit, []
        for slot in range(2):
            poison(perception, slot)
            perception.open(slot)
        for unit in range(13):
            samples, first = [unit_of(each, unit) for each in sounds], [unit == 0] * 2
            if fails:
                monkeypatch.setattr(perception._audio, "unit", _no_memory)
                with pytest.raises(torch.OutOfMemoryError):
                    perception.hear([0, 1], samples, first)
                monkeypatch.setattr(perception._audio, "unit", whole)
                made += [perception.hear([slot], samples[slot : slot + 1], first[:1]) for slot in range(2)]
            else:
                made.append(perception.hear([0, 1], samples, first))
        found.append(torch.cat(made))
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)


def _no_memory(*_: object) -> torch.Tensor:
    raise torch.OutOfMemoryError("no memory")
