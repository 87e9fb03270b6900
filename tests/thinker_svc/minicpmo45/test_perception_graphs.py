"""What is heard and seen from graphs against plain passes: padded rows, several sizes of pictures, what is captured when."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minicpmo45.config import tiny
from tests.support.graphs import RehearsedGraphs
from tests.thinker_svc.minicpmo45.perception_support import picture, sound, tiny_weights, unit_of
from thinker_svc.minicpmo45 import perception as module
from thinker_svc.minicpmo45 import sight
from thinker_svc.minicpmo45.frames import Picture, Slice, cut
from thinker_svc.minicpmo45.perception import Perception

torch.set_num_threads(1)
CONFIG = tiny()
WEIGHTS = tiny_weights(CONFIG)


class ReusingGraphs(RehearsedGraphs):
    """What a call returned is overwritten by the next call with its key."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[Hashable, Tensor] = {}

    def __call__(self, key: Hashable, function: Callable[..., Any], inputs: tuple[Tensor, ...], blank: Any) -> Any:
        made = super().__call__(key, function, inputs, blank)
        return self._held.setdefault(key, torch.empty_like(made)).copy_(made)


def rehearsed(slots: int) -> tuple[Perception, ReusingGraphs]:
    perception, graphs = Perception(WEIGHTS, CONFIG, slots), ReusingGraphs()
    perception.graphs = graphs
    return perception, graphs


def _near(found: Tensor, truth: Tensor) -> bool:
    """Equal to 1e-5 of the largest value, of which plain passes of other batches differ by half."""
    return bool((found - truth).abs().max() < 1e-5 * truth.abs().max())


def drawn(*shapes: tuple[int, int]) -> list[Picture]:
    draw = np.random.default_rng(len(shapes))
    return [Picture((Slice(rows, columns, draw.integers(0, 256, (rows * columns, 588), np.uint8)),), None) for rows, columns in shapes]


@pytest.mark.behaviour("N48")
def test_any_mix_hears_from_graphs_what_it_hears_without() -> None:
    """Five sessions that began at other times, through both the 5 s rule and a fresh start of the cache; free slots are NaN."""
    plain, (fast, graphs) = Perception(WEIGHTS, CONFIG, 6), rehearsed(6)
    draw, heard = np.random.default_rng(2), [0] * 5
    sounds = [sound(34, slot) for slot in range(5)]
    for each in (plain, fast):
        each.cache.fill_(torch.nan)
        each.mel_state.tail.fill_(torch.nan)
        each.mel_state.loudest.fill_(torch.nan)
        for slot in range(5):
            each.open(slot)
    kept: list[tuple[Tensor, Tensor]] = []
    for tick in range(33):
        slots = [slot for slot in draw.permutation(5).tolist() if tick >= slot and (slot == 0 or draw.random() < 0.8)]
        samples, first = [unit_of(sounds[slot], heard[slot]) for slot in slots], [heard[slot] == 0 for slot in slots]
        kept.append((fast.hear(slots, samples, first), plain.hear(slots, samples, first)))
        for slot in slots:
            heard[slot] += 1
    for made, expected in kept:
        torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    assert max(heard) > 29 and fast.cache[:, 5].isnan().all()
    assert {key[1] for key in graphs.keys} == {1, 2, 4, 8} and {key[2] for key in graphs.keys} == {500, 1000, 1500}


def test_what_is_heard_is_captured_at_start() -> None:
    perception, graphs = rehearsed(3)
    perception.warm_up()
    before = set(graphs.prepared)
    assert {key for key in before if key[0] == "hear"} == {("hear", size, span) for size in (1, 2, 4) for span in (500, 1000, 1500)}  # type: ignore[index]
    # square, 4:3, 16:9
    assert {key for key in before if key[0] == "see"} == {("see", size, length) for size in (1, 2, 3) for length in (1024, 1036, 1032)}  # type: ignore[index]
    for slot in range(3):
        perception.open(slot)
    perception.hear([0], _units((0, 0)), [True])
    perception.hear([1, 0, 2], _units((1, 0), (0, 1), (2, 0)), [True, False, True])
    perception.see([cut(picture(640, 480), 1, CONFIG.vision)])
    assert set(graphs.keys) <= before and len(graphs.keys) == 3


def test_many_rows_of_plain_kernels_are_heard_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_ROWS", 2)
    (perception, graphs), plain = rehearsed(3), Perception(WEIGHTS, CONFIG, 3)
    made = []
    for each in (perception, plain):
        for slot in range(3):
            each.open(slot)
        made.append(each.hear([0, 1, 2], _units((0, 0), (1, 0), (2, 0)), [True] * 3))
    assert not graphs.keys
    torch.testing.assert_close(made[0], made[1], atol=1e-5, rtol=0)


def _units(*which: tuple[int, int]) -> list[Any]:
    """Of each sound and number."""
    return [unit_of(sound(2, seed), number) for seed, number in which]


@pytest.mark.behaviour("N48")
def test_pictures_of_several_sizes_are_seen_from_graphs_as_without() -> None:
    """Images of one patch count go together whatever their sides; nothing is padded."""
    pictures = drawn(*[(3, 4), (2, 6), (5, 5), (4, 3), (1, 12), (6, 2)] * 4, (7, 1))
    (fast, graphs), plain = rehearsed(1), Perception(WEIGHTS, CONFIG, 1)
    made = fast.see(pictures)
    again = fast.see(pictures[:3])
    for ours, theirs in zip([*made, *again], [*(expected := plain.see(pictures)), *expected[:3]], strict=True):
        assert _near(ours, theirs)
    assert [key[1:] for key in graphs.keys] == [(1, 7), (16, 12), (4, 12), (4, 25), (2, 12), (1, 25)]


def test_only_so_many_sizes_get_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "LENGTHS", 2)
    (fast, graphs), plain = rehearsed(1), Perception(WEIGHTS, CONFIG, 1)
    pictures = drawn((1, 5), (2, 3), (1, 7), (2, 4), (1, 5))
    for _ in range(2):
        assert all(_near(*each) for each in zip(fast.see(pictures), plain.see(pictures), strict=True))
    assert set(graphs.keys) == {("see", 2, 5), ("see", 1, 6)}
