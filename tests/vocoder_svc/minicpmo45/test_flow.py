"""The flow against the reference's numbers, and against itself: batched and alone, by lists and by lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vocoder_svc.minicpmo45.support import Bench, Fixture, piece
from tests.vocoder_svc.minicpmo45.weights import FLOW
from vocoder_svc.minicpmo45.arena import SCRATCH
from vocoder_svc.minicpmo45.caches import NotFinite
from vocoder_svc.minicpmo45.flow import noise, time_grid
from vocoder_svc.minicpmo45.retention import RING_FRAMES, Newest, Reference, Retention, Span

REFERENCE = np.load(Path(__file__).parent / "fixtures" / "flow.npz")
VOICES = (100, 110)


def _retention(rule: str, slots: int, longest: int) -> Retention:
    return Newest(slots, "cpu") if rule == "newest" else Reference(slots, "cpu", longest, packed=rule == "packed")


@pytest.mark.parametrize("key", list(REFERENCE))
def test_mels_are_the_references_over_twelve_chunks_with_trims_and_the_last(key: str) -> None:
    rule, steps, frames = key.split("_")
    made, prompt = Fixture(int(frames)), int(frames)
    retention = _retention(rule, 2, prompt)
    bench = Bench(retention, 2, [prompt], int(steps))
    if rule == "separate":
        span = Span(SCRATCH + 2 * retention.ring_frames, prompt)
        bench.prompts[0] = bench.voice(made, span, torch.from_numpy(made.codes[:3]))
    bench.caches.begin(1, bench.prompts[0])
    mel = np.concatenate([bench.say([1], [each])[0] for each in made.pieces])
    assert np.abs(mel[:, ::4] - REFERENCE[key]).max() < 1e-5


class _NewestByList(Reference):
    """The prompt and the newest 100 frames, kept as lists of places: what `Newest` says with lengths."""

    def commit(self, slots: object, codes: object) -> None:
        for slot, count in zip(slots, codes, strict=True):  # type: ignore[call-overload]
            held, fresh, frames = self._history[slot], self._fresh(slot, count), self._prompt[slot]
            for name, kept, prompt in (("token", 50, frames // 2), ("mel", 100, frames), ("dit", 100, frames)):
                entries = getattr(held, name) + getattr(fresh, name)
                setattr(held, name, entries[:prompt] + entries[prompt:][-kept:])


def test_newest_is_the_prompt_and_the_newest_hundred_frames() -> None:
    made = Fixture(110)
    benches = [Bench(retention, 1, [110]) for retention in (Newest(1, "cpu"), _NewestByList(1, "cpu", 110, packed=False))]
    for bench in benches:
        bench.caches.begin(0, bench.prompts[0])
    for each in made.pieces:
        ours, listed = (bench.say([0], [each])[0] for bench in benches)
        assert np.abs(ours - listed).max() < 1e-5


def _turns(seed: int) -> list[list[tuple[tuple[int, ...], bool]]]:
    """Pieces of two turns a session, of any lengths, the last of each turn final."""
    rng = np.random.default_rng(seed)
    turns = []
    for _ in range(2):
        sizes = rng.integers(5, 26, rng.integers(1, 4))
        turn = [(tuple(rng.integers(0, 6561, size + 3).tolist()), False) for size in sizes]
        turns.append([*turn, (tuple(rng.integers(0, 6561, rng.integers(1, 26)).tolist()), True)])
    return turns


@pytest.mark.behaviour("N46", "N48", "D1", "S1")
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000), rule=st.sampled_from(["newest", "packed", "separate"]))
def test_rows_of_one_batch_in_any_phases_are_as_they_are_alone(seed: int, rule: str) -> None:
    rng = np.random.default_rng(seed)
    sessions = {slot: [(turn, at) for turn in _turns(seed + slot) for at in range(len(turn))] for slot in range(4)}
    together, alone = (Bench(_retention(rule, 4, max(VOICES)), 4, VOICES) for _ in range(2))
    while any(sessions.values()):
        waiting = [slot for slot, todo in sessions.items() if todo]
        slots = rng.permutation(waiting)[: rng.integers(1, len(waiting) + 1)].tolist()
        pieces = []
        for slot in slots:
            turn, at = sessions[slot].pop(0)
            if at == 0:
                for bench in (together, alone):
                    bench.caches.begin(slot, bench.prompts[slot % 2])
            pieces.append(piece(turn[at][0], final=turn[at][1]))
        batched = together.say(slots, pieces)
        for slot, each, mel in zip(slots, pieces, batched, strict=True):
            assert np.abs(mel - alone.say([slot], [each])[0]).max() < 1e-5


@pytest.mark.behaviour("D1", "N46")
def test_a_turn_begins_as_the_first_one_did_whatever_was_before() -> None:
    made = Fixture(110)
    bench = Bench(Newest(2, "cpu"), 2, [110])
    bench.caches.begin(0, bench.prompts[0])
    first = [bench.say([0], [each])[0] for each in made.pieces[:3]]
    for each in made.pieces[3:8]:
        bench.say([0], [each])
    bench.caches.begin(0, bench.prompts[0])
    assert all(np.array_equal(bench.say([0], [each])[0], mel) for each, mel in zip(made.pieces, first, strict=False))


def test_a_step_that_is_not_committed_leaves_nothing() -> None:
    made = Fixture(110)
    bench = Bench(Newest(1, "cpu"), 1, [110])
    bench.caches.begin(0, bench.prompts[0])
    for each in made.pieces[:4]:
        bench.say([0], [each])
    expected = bench.caches.run([0], [made.pieces[5]], 25)[0]
    bench.caches.run([0], [made.pieces[6]], 25)
    assert torch.equal(bench.caches.run([0], [made.pieces[5]], 25)[0], expected)


@pytest.mark.behaviour("X11")
def test_sessions_point_at_the_voice_and_never_change_it() -> None:
    bench = Bench(Newest(3, "cpu"), 3, [110])
    start = SCRATCH + 3 * RING_FRAMES
    before = bench.arena.dit[..., start:, :].clone()
    for slot in range(3):
        bench.caches.begin(slot, bench.prompts[0])
    for each in Fixture(110).pieces:
        bench.say([0, 1, 2], [each] * 3)
    assert torch.equal(bench.arena.dit[..., start:, :], before)


def test_a_voice_of_nan_is_refused() -> None:
    made = Fixture(110)
    bench = Bench(Newest(1, "cpu"), 1, [110])
    made.mel[3, 4] = np.nan
    with pytest.raises(NotFinite, match="the voice's caches"):
        bench.voice(made, Span(SCRATCH + RING_FRAMES, 110), torch.full((3,), 4218))


def test_the_packed_rule_refuses_prompts_under_two_seconds() -> None:
    with pytest.raises(ValueError, match="at least 100 frames"):
        Reference(1, "cpu", 98, packed=True).begin(0, Span(300, 98), Span(2, 248))


def test_the_grid_and_the_noise() -> None:
    assert torch.allclose(time_grid(4), torch.tensor([0.0, 0.0761205, 0.2928932, 0.6173166, 1.0]), atol=1e-6)
    state = torch.get_rng_state()
    drawn = noise(FLOW, 3)
    assert drawn.shape == (80, 30_000) and torch.equal(drawn, noise(FLOW, 3)) and not torch.equal(drawn, noise(FLOW, 4))
    assert torch.equal(torch.get_rng_state(), state)
