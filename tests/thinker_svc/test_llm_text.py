"""Answers made fit for speech."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinker_svc.embedded.llm_text import SpokenText


def spoken(text: str, max_sentences: int = 0, size: int = 1) -> str:
    filtered = SpokenText(max_sentences)
    pieces = [filtered.push(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join(pieces) + filtered.finish()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("The capital of France is Paris.", "The capital of France is Paris."),
        ("One. Two! Three? Four.", "One. Two!"),
        ("Pi is 3.14. Really. No.", "Pi is 3.14. Really."),
        ("Dr. Who met Mr. J. Smith. He left. Gone.", "Dr. Who met Mr. J. Smith. He left."),
        ('He said "go." She went. Then.', 'He said "go." She went.'),
        ("Wait... what?! Yes. No.", "Wait... what?!"),
        ("Sure! Here they are:\n\n1. Apples\n2. Pears\n3. Plums", "Sure! Here they are: Apples."),
        ("# Title\n- first\n- second\n", "Title. first."),
        ("It is **very** `good` and *fine*. Yes.", "It is very good and fine. Yes."),
        ("A _quiet_ word.", "A quiet word."),
        ("12 is the answer.", "12 is the answer."),
        ("12", "12"),
        ("-5 degrees. Cold.", "-5 degrees. Cold."),
        ("\n\n  Hello there", "Hello there"),
        ("Hello\tmy   friend\r\nBye", "Hello my friend. Bye"),
        ("", ""),
        ("😀 Hi! 👍🏽 Good. More", "😀 Hi! 👍🏽 Good."),
    ],
)
def test_what_is_said(written: str, said: str) -> None:
    assert spoken(written, 2) == said


def test_nothing_is_cut_without_a_bound() -> None:
    assert spoken("One. Two. Three. Four.") == "One. Two. Three. Four."


def test_the_end_is_known_at_the_space_after_it() -> None:
    filtered = SpokenText(1)
    assert filtered.push("Yes.") == "Yes." and not filtered.complete
    assert filtered.push(" No") == "" and filtered.complete
    assert filtered.push("thing") == "" and filtered.finish() == ""


@given(st.text(alphabet=st.sampled_from("ab .!?\n-1*#()\"'_:é😀"), max_size=60), st.integers(0, 3), st.integers(1, 7))
def test_the_pieces_do_not_matter(text: str, bound: int, size: int) -> None:
    assert spoken(text, bound, size) == spoken(text, bound, 1000)


@given(st.text(max_size=80), st.integers(0, 3))
def test_no_line_breaks_and_no_markup(text: str, bound: int) -> None:
    said = spoken(text, bound)
    assert not set(said) & set("*`\n\r")
    assert said == said.lstrip() or not said.strip()
