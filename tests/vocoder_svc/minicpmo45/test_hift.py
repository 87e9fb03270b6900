"""Both generations of HiFT against the reference's numbers, and chunk by chunk, batched and whole against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from minicpmo45.config import HiftConfig
from tests.vocoder_svc.minicpmo45.weights import CAUSAL, HIFT, drawn, hift_weights
from vocoder_svc.minicpmo45.continuation import Continuation, lookback
from vocoder_svc.minicpmo45.hift import Hift
from vocoder_svc.minicpmo45.source import noise_table

REFERENCE = np.load(Path(__file__).parent / "fixtures" / "hift.npz")
NOISE = drawn("noise_table", (96_000, 9))
HOP = 480
GENERATIONS = {"first": HIFT, "causal": CAUSAL}
NETWORKS = {name: Hift(hift_weights(config), config) for name, config in GENERATIONS.items()}
Mel = NDArray[np.float32]


def _continuation(name: str, slots: int = 1) -> Continuation:
    return Continuation(NETWORKS[name], NOISE, slots)


def _say(continuation: Continuation, slots: Sequence[int], mels: Sequence[Mel], final: Sequence[bool]) -> list[Mel]:
    """One step; what lies beyond a row's frames is NaN."""
    window = torch.full((len(slots), max(50, *map(len, mels)), 80), torch.nan)
    for row, mel in enumerate(mels):
        window[row, : len(mel)] = torch.from_numpy(mel)
    cuts = [continuation.cut(slot, len(mel), last) for slot, mel, last in zip(slots, mels, final, strict=True)]
    samples, after = continuation.run(slots, cuts, window)
    continuation.commit(slots, cuts, range(len(slots)), after)
    return [samples[row, cut.first * HOP : cut.last * HOP].numpy() for row, cut in enumerate(cuts)]


@pytest.mark.parametrize("name", GENERATIONS)
def test_samples_are_the_references_chunk_by_chunk(name: str) -> None:
    rng = np.random.default_rng(5)
    continuation = _continuation(name, 3)
    continuation.begin(2)
    for index, frames in enumerate((50, 10, 50, 26, 14)):
        mel = rng.standard_normal((frames, 80)).astype(np.float32)
        samples = _say(continuation, [2], [mel], [index == 4])[0][::3]
        reference = REFERENCE[f"{name}_{index}"]
        assert samples.shape == reference.shape
        assert np.abs(samples - reference).max() < 5e-4 * np.abs(reference).max()


@pytest.mark.behaviour("D1")
@pytest.mark.parametrize("name", GENERATIONS)
def test_the_first_chunk_yields_0_84_s_and_nothing_is_lost(name: str) -> None:
    continuation = _continuation(name)
    continuation.begin(0)
    chunks = [drawn(f"m{n}", (frames, 80)).numpy() for n, frames in enumerate((50, 50, 20))]
    lengths = [len(_say(continuation, [0], [mel], [n == 2])[0]) for n, mel in enumerate(chunks)]
    assert lengths == [20_160, 24_000, 20 * HOP + 3840] and sum(lengths) == 120 * HOP
    continuation.begin(0)
    assert len(_say(continuation, [0], [chunks[2]], [True])[0]) == 20 * HOP


@settings(max_examples=3, deadline=None)
@given(sizes=st.lists(st.integers(5, 25), min_size=1, max_size=4))
def test_causal_chunks_are_the_whole(sizes: list[int]) -> None:
    mel = drawn("whole", (2 * sum(sizes) + 6, 80)).numpy()
    whole = _continuation("causal")
    whole.begin(0)
    expected = _say(whole, [0], [mel], [True])[0]
    chunked, parts, at = _continuation("causal"), [], 0
    chunked.begin(0)
    for size in [*sizes, 3]:
        parts += _say(chunked, [0], [mel[at : at + 2 * size]], [at + 2 * size == len(mel)])
        at += 2 * size
    joined = np.concatenate(parts)
    assert joined.shape == expected.shape == (len(mel) * HOP,)
    # phases of the whole are sums of more terms
    assert np.abs(joined - expected).max() < 1e-5


def test_first_generation_overlaps_by_its_window() -> None:
    """Independent of the caches: two decodes, the second with the first one's source, faded over a Hamming window."""
    mel, network = drawn("overlap", (80, 80)).numpy(), NETWORKS["first"]
    continuation = _continuation("first")
    continuation.begin(0)
    sound = np.concatenate([*_say(continuation, [0], [mel[:50]], [False]), *_say(continuation, [0], [mel[50:]], [True])])
    frames = [mel[:50], mel[42:]]
    sources: list[torch.Tensor] = []
    waves = []
    for index, part in enumerate(frames):
        count = torch.tensor([len(part)])
        window = torch.from_numpy(part.T.copy())[None]
        begin, phase = torch.tensor([42 * HOP if index else 0]), torch.zeros(1, 9, dtype=torch.float64)
        source, _ = network.source(network.pitch(window, count), count, count, phase, NOISE, begin)
        if index:
            source = torch.cat((sources[0][:, -3840:], source[:, 3840:]), 1)
        sources.append(source)
        waves.append(network.decode(window, source, count, count)[0].numpy())
    window = np.hamming(7680)
    joint = waves[1][:3840] * window[:3840] + waves[0][-3840:] * window[3840:]
    assert np.abs(sound - np.concatenate((waves[0][:-3840], joint, waves[1][3840:]))).max() < 1e-5


@pytest.mark.behaviour("N46", "S1")
@pytest.mark.parametrize("name", GENERATIONS)
def test_rows_of_one_batch_in_any_phases_are_as_they_are_alone(name: str) -> None:
    rng = np.random.default_rng(11)
    together, alone = _continuation(name, 4), _continuation(name, 4)
    begun = [False] * 4
    for _ in range(4):
        slots = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        mels = [rng.standard_normal((2 * rng.integers(5, 26), 80)).astype(np.float32) for _ in slots]
        final = (rng.random(len(slots)) < 0.3).tolist()
        for slot in slots:
            if not begun[slot]:
                together.begin(slot)
                alone.begin(slot)
        for slot, mel, last, sound in zip(slots, mels, final, _say(together, slots, mels, final), strict=True):
            assert np.abs(sound - _say(alone, [slot], [mel], [last])[0]).max() < 1e-5
            begun[slot] = not last


def test_the_causal_generation_looks_back_31_frames() -> None:
    assert lookback(HiftConfig(causal=True)) == 31


def test_noise_comes_from_a_seed_alone() -> None:
    state = torch.get_rng_state()
    normal, uniform = noise_table(HIFT, 1), noise_table(CAUSAL, 1)
    assert torch.equal(normal, noise_table(HIFT, 1)) and abs(float(normal.std()) - 1) < 0.01
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert torch.equal(torch.get_rng_state(), state)
