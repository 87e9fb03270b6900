"""What the load test says of a conversation: computed here by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from benchmarks.native.load import SKIPPED, Level, summary
from benchmarks.native.spurts import TEXTS, spurts
from benchmarks.native.talk import RATE, RESERVE_MS, Talk, units
from benchmarks.native_load import SCRIPT_UNITS, SEED, STAGGER


def conversation(*moments: tuple[int, float], done: float | None = None) -> Talk:
    """Units 0 to 2: one that listens, two of a turn; sound came at these moments (samples so far, seconds). Packet n is due at n / 10."""
    talk = Talk(sent=[packet / 10 for packet in range(40)])
    talk.decisions = [
        (0, "listen", 1030, "", 1.25),
        (1, "speak", 2030, "r", 2.3),
        (2, "speak", 3030, "r", 3.3),
        (2, "turn_end", 3030, "r", 3.3),
    ]
    talk.sound = {"r": list(moments)}
    if done is not None:
        talk.done = {"r": done}
    return talk


def test_a_units_lag_ends_with_all_that_it_made() -> None:
    heard, first, last = units(conversation((9_000, 2.2), (RATE, 2.25), (RATE + 9_000, 3.1), (2 * RATE, 3.2), done=3.2))
    # the packet that holds the end of the unit, 1030 ms, is number 10, due at 1.0
    assert (heard.speaks, heard.lag_ms) == (False, pytest.approx(250))
    assert (first.opens, first.first_ms, first.lag_ms) == (True, pytest.approx(200), pytest.approx(250))
    assert (last.opens, last.first_ms, last.lag_ms) == (False, pytest.approx(100), pytest.approx(200))
    assert not (first.hole_ms or last.hole_ms)


def test_the_last_unit_of_a_turn_is_whole_when_the_response_is_done() -> None:
    assert units(conversation((RATE, 2.25), (RATE + 7, 3.1), done=3.15))[2].lag_ms == pytest.approx(150)


def test_a_unit_that_never_came_whole_lags_for_ever_and_is_missed() -> None:
    talk = conversation((RATE, 2.25), (RATE, 3.1))
    assert math.isinf(units(talk)[2].lag_ms)
    talk.decisions = [(n + 4, *rest) for n, *rest in talk.decisions]  # type: ignore[misc]
    assert summary([talk], Level(1, "step", 8))["missed"] == 2, "one unit never whole, one that nobody told of"


def test_a_hole_is_what_a_player_with_a_reserve_would_hear() -> None:
    sound = RATE
    plays_for = sound / RATE + RESERVE_MS / 1000
    in_time = units(conversation((sound, 2.0), (2 * RATE, 2.0 + plays_for - 0.001), done=3.2))
    assert not in_time[2].hole_ms
    late = units(conversation((sound, 2.0), (2 * RATE, 2.0 + plays_for + 0.05), done=3.2))
    assert late[2].hole_ms == pytest.approx(50) and not late[1].hole_ms


def said(unit: list[str | int]) -> int:
    """Text tokens of a unit; 0: it listens."""
    return sum(isinstance(token, int) for token in unit) + ("turn_eos" in unit)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_spurts_hold_their_share_and_end_whole(share: float) -> None:
    script = spurts(20_000, share, 3)
    spoken = [unit for unit in script if unit[0] == "speak"]
    assert len(script) == 20_000 and len(spoken) == 20_000 * share
    assert max(map(len, script)) <= 20
    ends = [at for at, unit in enumerate(script) if "turn_eos" in unit]
    assert all(said(unit) == 0 for at in ends for unit in script[at + 1 : at + 2] if share < 1), "between two spurts somebody listens"
    begins = [at for at, unit in enumerate(script) if said(unit) and (not at or not said(script[at - 1]) or at - 1 in ends)]
    lengths = [end + 1 - begin for begin, end in zip(begins, ends, strict=True)]
    assert sum(lengths) / len(ends) == pytest.approx(6, rel=0.01) and min(lengths) == 1 and max(lengths) > 20
    assert spurts(100, share, 3) == spurts(100, share, 3) != spurts(100, share, 4)


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("units", [7, 240, 400, 999])
def test_texts_are_as_long_as_stated_to_within_a_deck(units: int, share: float) -> None:
    for seed in range(20):
        lengths = Counter(filter(None, map(said, spurts(units, share, seed))))
        decks, rest = divmod(lengths.total(), 100)
        assert lengths.keys() <= TEXTS.keys()
        for length, cards in TEXTS.items():
            assert decks * cards <= lengths[length] <= decks * cards + min(cards, rest)


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("sessions", [32, 48, 64, 128])
def test_a_level_of_load_says_what_is_stated(sessions: int, share: float) -> None:
    """The 95th percentile of lags is that of the units of 8 and 18 tokens, 5 % of all that speak."""
    script = spurts(SCRIPT_UNITS, share, SEED)
    exact = Counter({length: SCRIPT_UNITS * share * cards / 100 for length, cards in TEXTS.items()})
    assert Counter(filter(None, map(said, script))) == exact
    for seconds in (12, 15, 30):
        windows = (range(row * STAGGER + SKIPPED, row * STAGGER + seconds) for row in range(sessions))
        heard = [said(script[place % SCRIPT_UNITS]) for window in windows for place in window]
        spoken = [length for length in heard if length]
        assert len(spoken) / len(heard) == pytest.approx(share, abs=0.025)
        assert sum(length >= 8 for length in spoken) / len(spoken) == pytest.approx(0.05, abs=0.006)
