"""Tells a full stop that ends a sentence from one that only ends an abbreviation, an initial or a list number."""

from __future__ import annotations

import re

_NEVER = frozenset(
    {"mr", "mrs", "ms", "mx", "dr", "prof", "st", "rev", "gen", "gov", "sen", "rep", "capt", "lt", "col", "sgt", "adm", "mt", "ft", "hon"}
    | {"messrs", "mme", "mlle", "vs", "cf", "approx", "e.g", "i.e", "viz", "al", "dept", "est"}
)
_BEFORE_LOWER_CASE = frozenset(
    {"etc", "inc", "ltd", "co", "corp", "bros", "jr", "sr", "a.m", "p.m", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept"}
    | {"oct", "nov", "dec", "mon", "tue", "tues", "wed", "thu", "thurs", "fri", "sat", "sun", "min", "max"}
)
_BEFORE_NUMBER = frozenset({"no", "nos", "fig", "figs", "vol", "ch", "p", "pp", "sec", "art", "eq"})
_DOTTED = re.compile(r"(?:[a-z]\.)+[a-z]")
_OPENING = "\"'“‘«([{（「『【《*_`"


def stops(before: str, after: str, *, closed: bool) -> bool | None:
    """Whether the full stop between `before` and `after` ends a sentence; None: it depends on text that has not come yet.

    `before` ends right before the stop, `after` starts behind it (and its closing quotes); `closed`: nothing follows `after`.
    """
    head, word = _last_word(before)
    lower = word.lower()
    if _is_list_number(head, word):
        return False
    if lower in _NEVER or (len(word) == 1 and word.isupper() and word != "I"):
        return False
    if lower in _BEFORE_LOWER_CASE or lower in _BEFORE_NUMBER:
        following = after.lstrip()
        if not following:
            return True if closed else None
        return not following[0].isdigit() if lower in _BEFORE_NUMBER else following.lstrip(_OPENING)[:1].isupper()
    return _DOTTED.fullmatch(lower) is None


def _last_word(before: str) -> tuple[str, str]:
    start = len(before)
    while start and not before[start - 1].isspace():
        start -= 1
    return before[:start], before[start:].lstrip(_OPENING)


def _is_list_number(head: str, word: str) -> bool:
    """A line that starts with a short number and a stop is an item of a list."""
    line = head.rpartition("\n")[2]
    return 0 < len(word) <= 2 and word.isdecimal() and not line.strip(" \t*_#>")
