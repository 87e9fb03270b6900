"""What is said of a clause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talker_svc.spoken import spoken


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("**Hello** `code` [the docs](https://a.b/c?d=e), ok 😀👍🏽", "Hello code the docs, ok"),
        ("docs](https://x.y/z). Next", "docs. Next"),
        ("See https://www.example.com/a/b?q=1.", "See example dot com."),
        ("# Title\n- one\n- two", "Title one two"),
        ("snake_case and _emphasis_", "snake case and emphasis"),
        ("<b>bold</b> is a < b", "bold is a less than b"),
        ("I—well—think…", "I, well, think..."),
        ("$5.50, $1 and $0.99", "five dollars and fifty cents, one dollar and ninety nine cents"),
        ("$2.5 million and £3.01", "two point five million dollars and three pounds and one penny"),
        ("At 10:30 a.m., 7:05, 9:00 or 12:00 pm.", "At ten thirty A M, seven oh five, nine o'clock or twelve P M."),
        ("1984, 2005 and 1900", "nineteen eighty four, two thousand and five and nineteen hundred"),
        ("1,234", "one thousand two hundred and thirty four"),
        ("21st, 3rd, 1990s, 80s", "twenty first, third, nineteen nineties, eighties"),
        ("1/2, 3/4, 1½, 24/7", "one half, three quarters, one and one half, twenty four seven"),
        ("12/25/2024 and 2024-05-17", "twelve twenty five twenty twenty four and twenty twenty four five seventeen"),
        ("415 555 0123 or 555-0123", "four one five five five five zero one two three or five five five zero one two three"),
        ("pages 10-20 in 1990–1995", "pages ten to twenty in nineteen ninety to nineteen ninety five"),
        ("5%, 20°C, 5 km, 1 kg", "five percent, twenty degrees Celsius, five kilometers, one kilogram"),
        ("-5, 3 - 2 = 1, 3x4, x² and 0.05", "minus five, three minus two equals one, three times four, x squared and zero point zero five"),
        ("mp3, 4K and v3.11.7", "mp three, four K and v three point eleven point seven"),
        ("007", "zero zero seven"),
        ("9876543210987654", "nine eight seven six five four three two one zero nine eight seven six five four"),
        ("e.g. this vs. that, No. 5 and #1", "for example this versus that, number five and number one"),
        ("A & B, a@b.com and C++", "A and B, a at b.com and C plus plus"),
        ("café naïve Zoë Straße", "cafe naive Zoe Strasse"),
        ("你好 world", "world"),
        ("٣ and １２", "three and twelve"),
    ],
)  # fmt: skip
def test_reads(text: str, said: str) -> None:
    assert spoken(text) == said


@pytest.mark.parametrize("text", ["", "  ", "😀", "👩‍👩‍👧", "...", "—", "**", "```", "***\n", "你好。", "Привет!", "\u200d", "|---|---|"])
def test_nothing_to_say(text: str) -> None:
    assert spoken(text) == ""


@given(st.text(max_size=120))
def test_any_text_becomes_plain_words(text: str) -> None:
    said = spoken(text)
    assert said.isascii() and said == " ".join(said.split())
    assert not any(char.isdigit() or char in "*`|~[]{}\\_#@&%+=<>/^$" for char in said)
