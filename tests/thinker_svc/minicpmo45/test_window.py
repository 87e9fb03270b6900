"""Which units leave, and when."""

from __future__ import annotations

import pytest

from thinker_svc.minicpmo45.window import STAYS, Leaving, UnitSpan, Window, WindowRules, after_unit, before_unit, newest

SPANS = [UnitSpan(10, (1,)), UnitSpan(20, (2, 3)), UnitSpan(30), UnitSpan(40, (4,))]


@pytest.mark.behaviour("X9")
def test_basic_cuts_above_the_high_mark_to_the_low_one_in_whole_units() -> None:
    rules = WindowRules("basic", 115, 80)
    assert after_unit(rules, 15, SPANS) == STAYS
    assert after_unit(rules, 16, SPANS) == Leaving(3, 60, (1, 2, 3))
    assert after_unit(WindowRules("basic", 100, 86), 16, SPANS) == Leaving(2, 30, (1, 2, 3))
    assert after_unit(WindowRules("basic", 50, 10), 16, SPANS) == Leaving(4, 100, (1, 2, 3, 4)), "a prefix above the mark stays"
    assert after_unit(WindowRules("off", 50, 10), 16, SPANS) == STAYS


def test_context_counts_units_and_keeps_what_they_said() -> None:
    rules = WindowRules("context", units=2, previous_tokens=3)
    leaving = after_unit(rules, 1000, SPANS)
    assert leaving == Leaving(2, 30, (1, 2, 3)) and after_unit(rules, 0, SPANS[:2]) == STAYS
    window = Window((8, 9))
    window.spans.extend(SPANS)
    assert window.drop(leaving, rules) and window.previous == (1, 2, 3) and list(window.spans) == SPANS[2:]
    assert not window.drop(Leaving(1, 30), rules) and window.previous == (1, 2, 3)
    basic = Window((8, 9))
    basic.spans.extend(SPANS)
    assert not basic.drop(leaving, WindowRules("basic")) and basic.previous == (8, 9)


def test_room_for_the_next_unit() -> None:
    rules = WindowRules("basic")
    assert before_unit(rules, SPANS, 0) == STAYS
    assert before_unit(rules, SPANS, 1) == Leaving(1, 10, (1,)) and before_unit(rules, SPANS, 11) == Leaving(2, 30, (1, 2, 3))
    assert before_unit(rules, SPANS, 100) == Leaving(4, 100, (1, 2, 3, 4)) and before_unit(rules, SPANS, 101) is None
    assert before_unit(WindowRules("off"), SPANS, 1) is None


def test_newest() -> None:
    assert newest((1, 2, 3), 2) == (2, 3) and newest((1,), 2) == (1,) and newest((1, 2), 0) == ()
