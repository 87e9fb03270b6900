"""Which of the client's numbered commands were decided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.state import State


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40))
def test_every_number_is_decided_once_and_none_that_was_not(script: list[tuple[int, bool]]) -> None:
    state, decided = State(), set[int]()
    for number, overtakes in script:
        assert state.has_decided(number) == (number in decided)
        if number in decided:
            continue
        state.decide(number, overtakes=overtakes)
        decided |= {number} if overtakes else set(range(number + 1))
        assert all(state.has_decided(each) == (each in decided) for each in range(1, 32))
        assert all(first > before + count for (before, count), (first, _) in zip(state.overtaken, state.overtaken[1:], strict=False))
        assert not state.overtaken or state.overtaken[0][0] > state.client_seq
