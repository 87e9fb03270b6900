"""Cuts a stream of text into clauses: short ones first, so that speech starts early, whole sentences later.

Pure: no clock, no model. The clauses depend on the text alone, never on how it was cut into deltas.
"""

from __future__ import annotations

import unicodedata

import msgspec

from talker_svc.abbreviations import stops

_TERMINAL = frozenset(".!?;…。！？；｡")
_SOFT = frozenset(",:—–，：、､،")
_WIDE = frozenset("。！？；｡，：、､")  # these need no space after them
_DASHES = frozenset("—–")
_CLOSING = frozenset("\"'”’»›)]}）」』】》*_`")


class Limits(msgspec.Struct, frozen=True):
    """When a clause is cut. Words are stretches between spaces that hold a letter or a digit."""

    first_words: int = 8  # most words of the first clause; the second may have twice as many, and so on up to max_words
    soft_words: int = 8  # fewest words, from the third clause on, before a comma, colon or dash may end it
    max_words: int = 24  # most words of any clause
    max_chars: int = 300  # most Unicode code points of any clause


class Clause(msgspec.Struct, frozen=True):
    """A stretch of the response's text."""

    index: int  # counts from 0 within the response
    text: str  # exactly as the model wrote it; all clauses joined are the text
    end: int  # Unicode code points of the response's text up to the end of this clause
    sentence_end: bool


class Clauses:
    """The clauses of one response, taken out as its text comes in."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rest = ""
        self._end = 0
        self._made = 0

    def add(self, text: str) -> list[Clause]:
        """Takes a delta in; returns the clauses that are certain now."""
        self._rest += text
        return self._cut(ended=False)

    def flush(self) -> list[Clause]:
        """The text is complete: returns what is left, up to its last character."""
        made = self._cut(ended=True)
        if self._rest:
            made.append(self._take(len(self._rest), sentence_end=True))
        return made

    def _cut(self, *, ended: bool) -> list[Clause]:
        made: list[Clause] = []
        while self._rest:
            window = self._rest[: self._limits.max_chars]
            full = len(window) == self._limits.max_chars
            found = _Scan(window, self._made, self._limits, closed=full or ended).boundary()
            if found is None and full:
                found = (_without_splitting(window), False)
            if found is None:
                break
            made.append(self._take(*found))
        return made

    def _take(self, length: int, sentence_end: bool) -> Clause:
        text, self._rest = self._rest[:length], self._rest[length:]
        self._end += length
        clause = Clause(index=self._made, text=text, end=self._end, sentence_end=sentence_end)
        self._made += 1
        return clause


class _Scan:
    """Looks for the first place at which `text` may be cut; `closed` tells that nothing follows it that counts."""

    def __init__(self, text: str, index: int, limits: Limits, *, closed: bool) -> None:
        self._text = text
        self._closed = closed
        self._most_words = min(limits.max_words, limits.first_words * (index + 1))
        self._soft_words = 1 if index == 0 else min(limits.soft_words, 4 * index)

    def boundary(self) -> tuple[int, bool] | None:
        """(length of the clause, whether a sentence ends there), or None while it is not certain."""
        words, in_word, at = 0, False, 0
        while at < len(self._text):
            char = self._text[at]
            if char.isspace():
                in_word = False
                if words and char == "\n":
                    return at + 1, True
                if words >= self._most_words:
                    return at, False
            elif char.isalnum():
                words, in_word = words + (not in_word), True
            elif char in _TERMINAL or char in _SOFT:
                after = self._after_run(at)
                decided = self._ends_here(at, after, words)
                if decided is None:
                    return None
                if decided:
                    return after, any(mark in _TERMINAL for mark in self._text[at:after])
                at = after
                continue
            at += 1
        return None

    def _after_run(self, at: int) -> int:
        """Where the punctuation that begins at `at`, with the closing quotes behind it, ends."""
        while at < len(self._text) and (self._text[at] in _TERMINAL or self._text[at] in _SOFT or self._text[at] in _CLOSING):
            at += 1
        return at

    def _ends_here(self, at: int, after: int, words: int) -> bool | None:
        """Whether the run of punctuation [at, after) ends a clause; None: more text is needed to tell."""
        run = self._text[at:after]
        if after == len(self._text):
            if not self._closed:
                return None
        elif not self._parts(run, self._text[after]):
            return False
        if not any(mark in _TERMINAL for mark in run):
            return words >= self._soft_words
        if run.strip("".join(_CLOSING)) == ".":
            verdict = stops(self._text[:at], self._text[after:], closed=self._closed)
            if verdict is not True:
                return verdict
        return words > 0

    @staticmethod
    def _parts(run: str, following: str) -> bool:
        if following.isspace() or any(mark in _WIDE for mark in run):
            return True
        if any(mark in _DASHES for mark in run):
            return not following.isdigit()
        return unicodedata.category(following) in ("So", "Lo")


def _without_splitting(window: str) -> int:
    """A length for a clause that is cut by force: at its last space, else anywhere but inside a character of several code points."""
    space = next((at for at in range(len(window) - 1, 0, -1) if window[at].isspace()), 0)
    if space:
        return space
    at = len(window) - 1
    while at > 1 and (
        unicodedata.category(window[at])[0] == "M" or unicodedata.category(window[at]) == "Sk" or "\u200d" in window[at - 1 : at + 1]
    ):
        at -= 1
    return at if at > 1 else len(window)
