"""Which sound the units of a log hear again, and what the units behind them do."""

from __future__ import annotations

import numpy as np
import pytest

from thinker_svc.minicpmo45.gather import Gatherer, HeardUnit
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES
from thinker_svc.minicpmo45.note import Note


def _sound(begin_ms: int, end_ms: int) -> np.ndarray:
    """Every sample is its position, but for the very first."""
    return np.arange(begin_ms * 16, end_ms * 16, dtype=np.float32)


def _log(*times: tuple[int, int]) -> tuple[Note, ...]:
    return tuple(Note(start, end, number, (5,), ()) for number, (start, end) in enumerate(times, 40))


LOG = _log((0, 1030), (1030, 2030), (2030, 3030))


def _heard(gather: Gatherer) -> list[tuple[int, int, int, bool]]:
    return [(unit.start_ms, unit.end_ms, unit.noted.number if unit.noted else -1, unit.first) for unit in gather.waiting]


@pytest.mark.parametrize("piece", [7, 20, 1000, 5000])
def test_all_sound_again_gives_the_units_that_there_were(piece: int) -> None:
    before, gather = Gatherer(), Gatherer(LOG)
    for begin in range(0, 5000, piece):
        end = min(begin + piece, 5000)
        for each in (before, gather):
            each.push(_sound(begin, end), begin, end, 1.0)
    assert _heard(gather) == [(0, 1030, 40, True), (1030, 2030, 41, False), (2030, 3030, 42, False), (3030, 4030, -1, False)]
    for ours, theirs in zip(gather.waiting, before.waiting, strict=True):
        assert np.array_equal(ours.samples, theirs.samples) and ours.first == theirs.first
    assert (gather.start_ms, gather.end_ms, gather.next_span) == (4030, 5030, (3030, 4030))


def test_sound_that_is_gone_is_silence_and_a_unit_may_straddle_its_end() -> None:
    gather = Gatherer(LOG)
    assert not gather.begun and gather.next_span == (3030, 4030)
    gather.push(_sound(0, 0), 1500, 1500, 2.0)
    assert _heard(gather) == [(0, 1030, 40, True)] and gather.replays
    gather.push(_sound(1500, 3230), 1500, 3230, 2.0)
    first, straddling, whole = gather.waiting
    assert len(first.samples) == FIRST_SAMPLES and not first.samples.any()
    assert len(straddling.samples) == UNIT_SAMPLES
    assert not straddling.samples[: 470 * 16].any() and np.array_equal(straddling.samples[470 * 16 :], _sound(1500, 2030))
    assert np.array_equal(whole.samples, _sound(2030, 3030))
    assert not gather.replays and (gather.start_ms, gather.end_ms) == (3030, 4030) and gather.held_ms() == 200


@pytest.mark.parametrize("begins", [3030, 9000])
def test_a_log_whose_sound_is_gone_altogether(begins: int) -> None:
    gather = Gatherer(LOG)
    gather.push(_sound(begins, begins + 20), begins, begins + 20, 2.0)
    assert len(gather.waiting) == 3 and not any(unit.samples.any() for unit in gather.waiting)
    assert (gather.start_ms, gather.end_ms) == (begins, begins + 1000), "no first unit any more"


def test_the_first_unit_of_a_log_is_the_encoders_first() -> None:
    """480 samples of silence stand in front of a unit that was not the first; a first one in mid-log gives them up."""
    gather = Gatherer(_log((1030, 2030), (2030, 3060)))
    gather.push(_sound(0, 4000), 0, 4000, 0.0)
    first, second = gather.waiting
    assert first.first and not first.samples[:480].any() and np.array_equal(first.samples[480:], _sound(1030, 2030))
    assert np.array_equal(second.samples, _sound(2060, 3060)) and gather.start_ms == 3060


def test_units_that_silence_filled() -> None:
    gather = Gatherer(_log((1030, 1330), (1330, 1330), (1330, 1830)))
    gather.push(_sound(1030, 2800), 1030, 2800, 0.0)
    first, silent, filled = gather.waiting
    assert not first.samples[:480].any() and np.array_equal(first.samples[480 : 480 + 4800], _sound(1030, 1330))
    assert not first.samples[480 + 4800 :].any() and len(first.samples) == FIRST_SAMPLES and not silent.samples.any()
    assert np.array_equal(filled.samples[:8000], _sound(1330, 1830)) and not filled.samples[8000:].any()
    assert gather.start_ms == 1830 and gather.held_ms() == 970


def test_a_hole_is_where_it_was_and_one_that_is_new_is_silence() -> None:
    """A hole moved the start of its unit: the sound in front of the hole is the unit's, too."""
    before = Gatherer()
    parts = [(0, 1500), (1800, 4000)]
    for start, end in parts:
        before.push(_sound(start, end), start, end, 0.0)
    there: list[HeardUnit] = list(before.waiting)
    again = Gatherer(tuple(Note(unit.start_ms, unit.end_ms, 0, (5,), ()) for unit in there))
    for start, end in parts:
        again.push(_sound(start, end), start, end, 0.0)
    assert [unit.samples.tolist() for unit in again.waiting] == [
        unit.samples.tolist() for unit in there
    ] and again.start_ms == before.start_ms
    new = Gatherer(LOG)
    for start, end in ((0, 1500), (1900, 2100), (3500, 3600)):
        new.push(_sound(start, end), start, end, 0.0)
    _, holed, cut = new.waiting
    assert np.array_equal(holed.samples[: 470 * 16], _sound(1030, 1500)) and np.array_equal(holed.samples[870 * 16 :], _sound(1900, 2030))
    assert not holed.samples[470 * 16 : 870 * 16].any()
    assert np.array_equal(cut.samples[: 70 * 16], _sound(2030, 2100)) and not cut.samples[70 * 16 :].any() and new.start_ms == 3500


def test_a_clear_forgets_new_sound_only() -> None:
    gather = Gatherer(LOG)
    gather.push(_sound(0, 2500), 0, 2500, 0.0)
    gather.clear()
    assert len(gather.waiting) == 2 and gather.replays
    gather.push(_sound(2500, 4500), 2500, 4500, 0.0)
    assert _heard(gather)[-2:] == [(2030, 3030, 42, False), (3030, 4030, -1, False)]
    assert np.array_equal(gather.waiting[2].samples, _sound(2030, 3030))
    gather.clear()
    assert len(gather.waiting) == 3 and gather.start_ms == 4500 and gather.held_ms() == 0
    gather.push(_sound(4500, 5500), 4500, 5500, 0.0)
    assert _heard(gather)[-1] == (4500, 5500, -1, False)


def test_sound_that_is_heard_again_is_no_backlog() -> None:
    gather = Gatherer(LOG)
    gather.push(_sound(0, 9130), 0, 9130, 0.0)
    assert (gather.held_ms(), gather.held_ms(5_030), gather.held_ms(99_999)) == (6_100, 4_100, 100)
    long = Gatherer()
    long.push(np.zeros(70_030 * 16, np.float32), 0, 70_030, 0.0)
    assert long.held_ms(99_999) == 10_030, "a minute of it, no more"


def test_a_long_stretch_between_two_units_is_not_kept() -> None:
    gather = Gatherer(_log((0, 1030), (100_000, 101_000)))
    for start in range(0, 99_000, 1000):
        gather.push(_sound(start, start + 1000), start, start + 1000, 0.0)
    assert sum(len(part) for _, part in gather._replay._parts) < FIRST_SAMPLES + UNIT_SAMPLES


@pytest.mark.parametrize("piece", [7, 20, 5000])
def test_units_that_were_closed_early_are_what_they_were(piece: int) -> None:
    """The very first of a session, two more, and silence that no unit heard behind one of them."""
    before = Gatherer()
    closes, skips = {500: (500, 700), 1_900: (1_900, 2_050), 2_500: (0, 0)}, {500: 800, 1_900: 2_100}
    for begin in range(0, 6_000, 20):
        before.push(_sound(begin, begin + 20), begin, begin + 20, 0.0)
        for at, span in closes.items():
            if begin + 20 == at:
                before.close(0.0)
            if begin + 20 == skips.get(at):
                before.skip(*span)
    there = list(before.waiting)
    assert [(unit.start_ms, unit.end_ms) for unit in there][:5] == [(0, 500), (700, 1700), (1700, 1900), (2050, 2500), (2500, 3500)]
    log = tuple(Note(unit.start_ms, unit.end_ms, number, (5,), ()) for number, unit in enumerate(there[:4]))
    again = Gatherer(log)
    for begin in range(0, 6_000, piece):
        end = min(begin + piece, 6_000)
        again.push(_sound(begin, end), begin, end, 0.0)
    assert len(again.waiting) == len(there) == 7
    for ours, theirs in zip(again.waiting, there, strict=True):
        assert np.array_equal(ours.samples, theirs.samples) and (ours.start_ms, ours.end_ms, ours.first) == (
            theirs.start_ms,
            theirs.end_ms,
            theirs.first,
        )
    late = Gatherer(log)
    late.push(_sound(300, 3_000), 300, 3_000, 0.0)
    first = late.waiting[0]
    assert not first.samples[: 300 * 16].any() and np.array_equal(first.samples[300 * 16 : 500 * 16], _sound(300, 500))
    assert not first.samples[500 * 16 :].any() and len(first.samples) == FIRST_SAMPLES
