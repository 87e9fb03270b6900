"""What leaves the window, and when: pure policies over the lengths of whole units."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Mode = Literal["off", "basic", "context"]


class WindowRules(msgspec.Struct, frozen=True):
    """Which policy, and its marks, in tokens of prefix and window together."""

    mode: Mode = "basic"
    high_tokens: int = 8000
    """basic: when a unit ends above this, the oldest units leave."""
    low_tokens: int = 6000
    """basic: until it holds no more than this."""
    units: int = 24
    """context: most units that stay."""
    previous_tokens: int = 500
    """context: most tokens of what units that left had said."""


class UnitSpan(msgspec.Struct, frozen=True):
    """A unit that ended: what it takes, and what it said."""

    length: int
    """Tokens from `<unit>` to `</unit>`."""
    said: tuple[int, ...] = ()
    """Its text tokens."""


class Leaving(msgspec.Struct, frozen=True):
    """What a policy decides: the oldest `units` leave."""

    units: int
    tokens: int
    said: tuple[int, ...] = ()


STAYS = Leaving(0, 0)


def after_unit(rules: WindowRules, prefix: int, spans: Sequence[UnitSpan]) -> Leaving:
    """A unit ended: which of `spans`, oldest first, leave? `prefix`: tokens that stand before them and stay."""
    if rules.mode == "context":
        return _leaving(spans, max(0, len(spans) - rules.units))
    total = prefix + sum(span.length for span in spans)
    if rules.mode == "off" or total <= rules.high_tokens:
        return STAYS
    return _leaving(spans, _until(spans, total - rules.low_tokens))


def before_unit(rules: WindowRules, spans: Sequence[UnitSpan], short: int) -> Leaving | None:
    """The coming unit lacks room for `short` tokens: as many of the oldest units leave. None: that does not help, or the mode is off."""
    if short <= 0:
        return STAYS
    if rules.mode == "off" or sum(span.length for span in spans) < short:
        return None
    return _leaving(spans, _until(spans, short))


class Window:
    """Units of a session that are in its window, and the recap of those that left."""

    def __init__(self, previous: Iterable[int] = ()) -> None:
        self.spans: deque[UnitSpan] = deque()
        self.previous: tuple[int, ...] = tuple(previous)

    def drop(self, leaving: Leaving, rules: WindowRules) -> bool:
        """The units are gone. True when the recap changed: only in mode `context`, where it keeps the newest tokens."""
        for _ in range(leaving.units):
            self.spans.popleft()
        if rules.mode != "context" or not leaving.said:
            return False
        self.previous = newest((*self.previous, *leaving.said), rules.previous_tokens)
        return True


def newest(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """The last `count` tokens."""
    return tuple(tokens[max(0, len(tokens) - count) :])


def _until(spans: Sequence[UnitSpan], tokens: int) -> int:
    """How many of the oldest units hold at least so many tokens; all, if they do not."""
    for index, span in enumerate(spans):
        if tokens <= 0:
            return index
        tokens -= span.length
    return len(spans)


def _leaving(spans: Sequence[UnitSpan], count: int) -> Leaving:
    gone = [spans[index] for index in range(count)]
    return Leaving(count, sum(span.length for span in gone), tuple(token for span in gone for token in span.said))
