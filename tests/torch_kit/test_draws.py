"""Draws: the published numbers, the right distribution, and independence from batch and padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_kit.draws import choose, exponentials, philox, session_seed

# known answers of the Random123 distribution (kat_vectors, philox4x32-10)
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def _rows(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_equals_the_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([value]) for value in counter)
    k0, k1 = (torch.tensor([value]) for value in key)
    assert tuple(word.item() for word in philox((c0, c1, c2, c3), (k0, k1))) == words


def test_a_row_draws_the_same_in_any_batch() -> None:
    seeds, units, steps = _rows(5, 2**62 + 9, 5, 7), _rows(1, 1, 2**40, 0), _rows(0, 3, 0, 2**31)
    together = exponentials(seeds, units, steps, 1, 101)
    for row in range(4):
        alone = exponentials(seeds[row : row + 1], units[row : row + 1], steps[row : row + 1], 1, 101)
        assert torch.equal(alone[0], together[row])
    assert len({tuple(row.tolist()) for row in together}) == 4


def test_chosen_columns_equal_those_of_all() -> None:
    seeds, zeros = _rows(3, 4), _rows(0, 0)
    every = exponentials(seeds, zeros, zeros, 0, 1000)
    columns = torch.tensor([[7, 0, 999], [500, 8, 8]])
    assert torch.equal(exponentials(seeds, zeros, zeros, 0, columns), every.gather(1, columns))
    assert torch.equal(exponentials(seeds, zeros, zeros, 0, columns[0]), every[:, columns[0]])


def test_every_part_of_the_key_matters() -> None:
    seen = set()
    for seed, unit, step, draw in ((1, 2, 3, 0), (1 + 2**32, 2, 3, 0), (1, 2 + 2**32, 3, 0), (1, 2, 4, 0), (1, 2, 3, 1), (1, 3, 3, 0)):
        seen.add(tuple(exponentials(_rows(seed), _rows(unit), _rows(step), draw, 4)[0].tolist()))
    assert len(seen) == 6
    with pytest.raises(ValueError, match="draw"):
        exponentials(_rows(1), _rows(1), _rows(1), 64, 4)


def test_variates_are_exponential() -> None:
    sample = exponentials(_rows(11), _rows(0), _rows(0), 0, 200_000)[0].double()
    assert (sample > 0).all() and sample.isfinite().all()
    assert abs(sample.mean() - 1) < 0.01 and abs(sample.var() - 1) < 0.03
    uniform = torch.exp(-sample).sort().values
    assert (uniform - torch.linspace(0, 1, len(uniform), dtype=torch.float64)).abs().max() < 1.63 / len(uniform) ** 0.5


def test_choices_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    steps = torch.arange(20_000)
    draws = exponentials(torch.full_like(steps, 9), torch.zeros_like(steps), steps, 0, 4)
    counts = torch.bincount(choose(probabilities.expand(len(steps), 4), draws), minlength=4)
    expected = probabilities * len(steps)
    assert counts[1] == 0
    assert ((counts - expected).square() / expected.clamp(min=1)).sum() < 16.3


def test_an_injected_draw_decides() -> None:
    assert choose(torch.tensor([[0.5, 0.4, 0.1]]), torch.tensor([[1.0, 0.9, 0.1]])).tolist() == [2]


def test_seeds_of_names_differ() -> None:
    assert session_seed("a") != session_seed("b") and 0 <= session_seed("a") < 2**63
