"""Clauses: nothing of the text is lost, offsets are code points of the text, cuts do not depend on the deltas."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talker_svc.clauses import Clause, Clauses, Limits

_WORDS = [
    "Hello",
    "Paris",
    "3.5",
    "1,234",
    "Dr.",
    "e.g.",
    "etc.",
    "p.m.",
    "No.",
    "7",
    "I",
    "J.",
    "你好",
    "世界。",
    "“yes”",
    "(ok)",
    "😀",
    "👩‍👩‍👧",
    "e\u0301",
    "**bold**",
]
_JOINS = [" ", ", ", ". ", "! ", "?! ", "... ", "… ", "; ", ": ", "\n", "\n\n", "—", ".", ",", "。", "，", '." ', "  "]
_TEXTS = st.one_of(
    st.text(max_size=400),
    st.lists(st.tuples(st.sampled_from(_WORDS), st.sampled_from(_JOINS)), max_size=60).map(
        lambda parts: "".join(word + join for word, join in parts)
    ),
)


def _whole(text: str, limits: Limits | None = None) -> list[Clause]:
    clauses = Clauses(limits or Limits())
    return [*clauses.add(text), *clauses.flush()]


def _texts(text: str) -> list[str]:
    return [clause.text for clause in _whole(text)]


@pytest.mark.behaviour("O1")
@given(text=_TEXTS, cuts=st.lists(st.integers(0, 400), max_size=30))
def test_joined_clauses_are_the_text_however_it_is_cut(text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    clauses = Clauses(Limits())
    streamed = [clause for start, stop in pairwise(bounds) for clause in clauses.add(text[start:stop])] + clauses.flush()
    assert streamed == _whole(text)
    assert "".join(clause.text for clause in streamed) == text
    assert [clause.index for clause in streamed] == list(range(len(streamed)))
    end = 0
    for clause in streamed:
        end += len(clause.text)
        assert clause.text and clause.end == end


@given(text=_TEXTS, first=st.integers(1, 9), most=st.integers(1, 24), chars=st.integers(16, 80))
def test_limits_hold(text: str, first: int, most: int, chars: int) -> None:
    for clause in _whole(text, Limits(first_words=first, max_words=most, max_chars=chars)):
        assert len(clause.text) <= chars
        words = sum(any(char.isalnum() for char in word) for word in clause.text.split())
        assert words <= min(most, first * (clause.index + 1))


@given(text=st.text(alphabet="e\u0301👩‍👧🏽a", min_size=20, max_size=200))
def test_a_forced_cut_spares_characters_of_several_code_points(text: str) -> None:
    for before, after in pairwise(_whole(text, Limits(max_chars=20))):
        head = after.text[0]
        if len(before.text) > 2 and not all(unicodedata.category(char)[0] == "M" or char in "\u200d🏽" for char in before.text[1:]):
            assert unicodedata.category(head)[0] != "M" and head not in "\u200d🏽" and before.text[-1] != "\u200d"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, my friend. How are you?", ["Hello,", " my friend.", " How are you?"]),
        ("It is 3.5 percent, or 1,234.56 dollars.", ["It is 3.5 percent,", " or 1,234.56 dollars."]),
        ("Dr. Smith met J. Doe vs. Mr. Roe. Good.", ["Dr. Smith met J. Doe vs. Mr. Roe.", " Good."]),
        ("Take fruit, e.g. apples, i.e. food. Done.", ["Take fruit,", " e.g. apples, i.e. food.", " Done."]),
        ("Pens, paper, etc. We have all.", ["Pens,", " paper, etc.", " We have all."]),
        ("Come at 5 p.m. tomorrow. Or at 6 p.m. Then go.", ["Come at 5 p.m. tomorrow.", " Or at 6 p.m.", " Then go."]),
        ("No. 5 is alive. No. I said no.", ["No. 5 is alive.", " No.", " I said no."]),
        ("It was I. He left.", ["It was I.", " He left."]),
        ('She said: "Go!" Then left.', ["She said:", ' "Go!"', " Then left."]),
        ("Well... I think (maybe.) Yes… no", ["Well...", " I think (maybe.)", " Yes…", " no"]),
        ("你好，世界。今天很好！走吧", ["你好，", "世界。", "今天很好！", "走吧"]),
        ("1. Milk\n2. Eggs\n", ["1. Milk\n", "2. Eggs\n"]),
        ("See example.com at 10:30 now.", ["See example.com at 10:30 now."]),
        ("Great!😀 More.", ["Great!", "😀 More."]),
        ("**Bold.** Plain.", ["**Bold.**", " Plain."]),
        ("one two three four five six seven eight nine ten", ["one two three four five six seven eight", " nine ten"]),
        ("", []),
    ],
)
def test_places(text: str, expected: list[str]) -> None:
    assert _texts(text) == expected


def test_sentence_ends_are_told_from_clause_ends() -> None:
    clauses = _whole("Well, one two three four. Five\nand so on")
    assert [(clause.text, clause.sentence_end) for clause in clauses] == [
        ("Well,", False), (" one two three four.", True), (" Five\n", True), ("and so on", True),
    ]  # fmt: skip


def test_the_first_clause_leaves_before_its_sentence_is_whole() -> None:
    clauses = Clauses(Limits())
    assert clauses.add("The weather today") == []
    assert clauses.add(" is fine,") == []
    assert [clause.text for clause in clauses.add(" ")] == ["The weather today is fine,"]


def test_an_endless_text_is_never_held_back() -> None:
    clauses = Clauses(Limits(max_chars=50))
    made = [clause for _ in range(100) for clause in clauses.add("." * 10)]
    assert sum(len(clause.text) for clause in made) > 900
