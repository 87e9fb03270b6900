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
