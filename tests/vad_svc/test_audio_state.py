"""Samples by their number, and their place on the client's timeline."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vad_svc.samples import Samples
from vad_svc.timeline import Timeline


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 900)), max_size=30))
def test_samples_keep_what_is_not_forgotten(steps: list[tuple[int, int]]) -> None:
    samples, whole = Samples(), np.empty(0, np.float32)
    for grow, forget in steps:
        more = np.arange(whole.size, whole.size + grow, dtype=np.float32)
        whole = np.concatenate([whole, more])
        samples.append(more)
        samples.forget(samples.first + forget)
        assert samples.end == whole.size
        np.testing.assert_array_equal(samples.copy(0, whole.size + 5), whole[samples.first :])


def test_timeline_is_the_count_of_samples() -> None:
    timeline = Timeline(16_000)
    for append in range(1000):
        timeline.take(1600 - 3 * (append == 0), append * 100)
    assert timeline.ms(1600 * 999) == 99_900


def test_timeline_anchors_anew_after_a_gap_and_after_a_restart() -> None:
    timeline = Timeline(16_000)
    timeline.take(1600, 5000)
    timeline.take(1600, 9000)
    assert (timeline.ms(0), timeline.ms(1599), timeline.ms(1600), timeline.ms(3200)) == (5000, 5099, 9000, 9100)
    timeline.restart()
    timeline.take(160, 20_000)
    assert timeline.ms(3200) == 20_000
