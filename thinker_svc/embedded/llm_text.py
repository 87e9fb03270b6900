"""Written answers made fit for speech while they stream: no markup, no lists, no line breaks, and a bound on sentences."""

from __future__ import annotations

import re

ENDS = frozenset(".!?…")
CLOSERS = frozenset("\"'”’)]")
NO_SPACE_BEFORE = frozenset(".,!?;:…)]")
MARKUP = frozenset("*`")
ABBREVIATIONS = frozenset(("mr", "mrs", "ms", "dr", "st", "vs", "etc", "no", "e.g", "i.e", "approx", "jr", "sr", "prof"))
LIST_MARKER = re.compile(r"\d{1,2}[.)]|[-•–+>]|#{1,6}")
MARKER_PREFIX = re.compile(r"\d{1,2}[.)]?|[-•–+>]|#{1,6}")


class SpokenText:
    """Takes text as it is generated, gives text as it is spoken. What it gave is never taken back.

    A line break ends a sentence, with a full stop if it had none. `complete` turns true at the end of sentence `max_sentences`
    (0: never); the rest is ignored then.
    """

    def __init__(self, max_sentences: int) -> None:
        self._bound = max_sentences
        self._sentences = 0
        self.complete = False
        self._line_start = True
        self._held = ""  # what may yet turn out to be a list marker
        self._space = False
        self._last = ""
        self._word = ""
        self._ended = False  # the last character may have ended a sentence; white space makes it sure

    def push(self, text: str) -> str:
        """What can be spoken now; may be empty."""
        out = []
        for char in text:
            if self.complete:
                break
            if char not in MARKUP:
                out.append(self._at_line_start(char) if self._line_start else self._inside(char))
        return "".join(out)

    def finish(self) -> str:
        """What was held back; a list marker with nothing behind it stays unspoken unless it is the whole answer."""
        held, self._held = self._held, ""
        return "" if self.complete or self._last else held

    def _at_line_start(self, char: str) -> str:
        if char.isspace():
            if self._held and not LIST_MARKER.fullmatch(self._held):
                return self._release() + self._inside(char)
            self._held = ""
            return ""
        if MARKER_PREFIX.fullmatch(self._held + char):
            self._held += char
            return ""
        return self._release() + self._inside(char)

    def _release(self) -> str:
        held, self._held, self._line_start = self._held, "", False
        return "".join(self._inside(char) for char in held)

    def _inside(self, char: str) -> str:
        if char in "\r\n":
            return self._break_line()
        if char.isspace() or char == "_":
            self._space = True
            self._word = ""
            if self._ended and char != "_":
                self._count()
            return ""
        return self._visible(char)

    def _visible(self, char: str) -> str:
        lead = " " if self._space and self._last and char not in NO_SPACE_BEFORE else ""
        self._space = False
        if char in ENDS:
            self._ended = not (char == "." and self._abbreviated())
        elif not (self._ended and char in CLOSERS):
            self._ended = False
        self._word += char
        self._last = char
        return lead + char

    def _abbreviated(self) -> bool:
        word = self._word.lstrip("\"'“‘([").lower()
        return word in ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word != "i")

    def _break_line(self) -> str:
        stop = ""
        if self._last.isalnum() or (self._last in CLOSERS and not self._ended):
            self._last, self._ended, stop = ".", True, "."
        if self._ended:
            self._count()
        self._space, self._line_start, self._word = True, True, ""
        return stop

    def _count(self) -> None:
        self._ended = False
        self._sentences += 1
        self.complete = self._sentences == self._bound
