"""Units out of samples, and their place on the input timeline."""

from __future__ import annotations

import numpy as np

from thinker_svc.minicpmo45.gather import Gatherer
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES


def _ramp(begin: int, count: int) -> np.ndarray:
    return np.arange(begin, begin + count, dtype=np.float32)


def test_any_cut_of_the_sound_gives_the_same_units() -> None:
    whole = _ramp(0, FIRST_SAMPLES + 3 * UNIT_SAMPLES + 160)
    for size in (160, 7_777, len(whole)):
        gather = Gatherer()
        for begin in range(0, len(whole), size):
            part = whole[begin : begin + size]
            gather.push(part, 500 + begin // 16, 500 + (begin + len(part)) // 16, 1.0)
        units = list(gather.waiting)
        assert np.array_equal(np.concatenate([unit.samples for unit in units]), whole[:-160])
        assert [unit.first for unit in units] == [True, False, False, False]
        assert [(unit.start_ms, unit.end_ms) for unit in units] == [(500, 1530), (1530, 2530), (2530, 3530), (3530, 4530)]
        assert (gather.start_ms, gather.end_ms, gather.held_ms()) == (4530, 5530, 4040)


def test_silence_fills_a_unit_and_counts_for_nothing() -> None:
    gather = Gatherer()
    gather.push(_ramp(0, FIRST_SAMPLES + 4_800), 0, 1330, 0.0)
    gather.silence(0.0)
    gather.silence(0.0)
    first, padded, silent = gather.waiting
    assert first.consumed_ms == 1030 and (padded.start_ms, padded.end_ms) == (1030, 1330) and silent.consumed_ms == 0
    assert padded.samples[4_799] == FIRST_SAMPLES + 4_799 and not padded.samples[4_800:].any() and len(silent.samples) == UNIT_SAMPLES
    gather.push(_ramp(0, 160), 1330, 1340, 0.0)
    assert (gather.start_ms, gather.end_ms) == (1330, 2330)


def test_a_clear_and_a_hole_move_the_timeline_on() -> None:
    gather = Gatherer()
    gather.push(_ramp(0, FIRST_SAMPLES + 8_000), 0, 1530, 0.0)
    gather.clear()
    assert not gather.waiting and gather.start_ms == 1530
    gather.push(_ramp(0, FIRST_SAMPLES), 1530, 2560, 0.0)
    assert gather.waiting[0].first and gather.waiting[0].start_ms == 1530
    gather.push(_ramp(0, UNIT_SAMPLES), 4000, 5000, 0.0)
    assert (gather.waiting[1].start_ms, gather.waiting[1].end_ms) == (4000, 5000)


def test_a_unit_that_is_closed_early_has_whole_milliseconds_and_what_is_over_begins_the_next() -> None:
    gather = Gatherer()
    gather.push(_ramp(0, FIRST_SAMPLES + 4_805), 0, 1330, 0.0)
    gather.close(0.0)
    early = gather.waiting[1]
    assert (early.start_ms, early.end_ms, early.consumed_ms, gather.start_ms, gather.end_ms) == (1030, 1330, 300, 1330, 2330)
    assert len(early.samples) == UNIT_SAMPLES and early.samples[4_799] == FIRST_SAMPLES + 4_799 and not early.samples[4_800:].any()
    gather.close(0.0)
    assert len(gather.waiting) == 2, "less than a millisecond is no unit"
    gather.push(_ramp(FIRST_SAMPLES + 4_805, UNIT_SAMPLES - 5), 1330, 2330, 0.0)
    assert np.array_equal(gather.waiting[2].samples, _ramp(FIRST_SAMPLES + 4_800, UNIT_SAMPLES))


def test_silence_behind_it_is_passed_over_once_and_no_more_than_filled_it() -> None:
    for stop, passed in ((1_500, 170), (9_000, 500), (1_330, 0), (1_200, 0)):
        gather = Gatherer()
        gather.push(_ramp(0, FIRST_SAMPLES + 4_800), 0, 1330, 0.0)
        gather.close(0.0)
        gather.push(_ramp(FIRST_SAMPLES + 4_800, 8_007), 1330, 1830, 0.0)
        gather.skip(1_329, stop)
        assert gather.start_ms == 1330, "of another unit"
        gather.skip(1_330, stop)
        gather.skip(1_330, stop)
        if passed:
            gather.skip(1_330 + passed, stop + 500)
        assert (gather.start_ms, gather.end_ms) == (1330 + passed, 2330 + passed)
        gather.push(_ramp(FIRST_SAMPLES + 12_807, UNIT_SAMPLES), 1830, 2830, 0.0)
        unit = gather.waiting[2]
        assert np.array_equal(unit.samples, _ramp(FIRST_SAMPLES + 4_800 + passed * 16, UNIT_SAMPLES))
        assert (unit.start_ms, unit.end_ms) == (1330 + passed, 2330 + passed)


def test_nothing_is_passed_over_behind_another_unit() -> None:
    def early() -> Gatherer:
        gather = Gatherer()
        gather.push(_ramp(0, FIRST_SAMPLES + 4_800), 0, 1330, 0.0)
        gather.close(0.0)
        return gather

    whole, cleared, silent, holed = early(), early(), early(), early()
    whole.push(_ramp(0, UNIT_SAMPLES + 1_600), 1330, 2430, 0.0)
    cleared.push(_ramp(0, 1_600), 1330, 1430, 0.0)
    cleared.clear()
    cleared.push(_ramp(0, 1_600), 1430, 1530, 0.0)
    silent.push(_ramp(0, 1_600), 1330, 1430, 0.0)
    silent.silence(0.0)
    silent.push(_ramp(0, 1_600), 1430, 1530, 0.0)
    holed.push(_ramp(0, 1_600), 1400, 1500, 0.0)
    for gather, begins in ((whole, 2330), (cleared, 1430), (silent, 1430)):
        gather.skip(begins, begins + 100)
        assert gather.start_ms == begins
    holed.skip(1_330, 1_400)
    assert holed.start_ms == 1400, "its timeline moved on"
