"""Numbers in English text, written as the words that are said."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from sanotts.nano_g2p import cardinal_words, ordinal_words, year_words

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_LARGEST_DIGITS = 15  # longer integers are read digit by digit
_COINS = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny"), "¥": ("yen", ""), "₹": ("rupee", "")}
_PARTS = {2: "half", 4: "quarter"}
_IDIOMS = {"24/7": "twenty four seven", "9/11": "nine eleven"}
_UNITS = {
    "km/h": "kilometer per hour", "m/s": "meter per second", "mph": "mile per hour",
    "km": "kilometer", "cm": "centimeter", "mm": "millimeter", "kg": "kilogram", "mg": "milligram", "ml": "milliliter",
    "lb": "pound", "lbs": "pound", "kwh": "kilowatt hour", "ms": "millisecond",
    "kb": "kilobyte", "mb": "megabyte", "gb": "gigabyte", "tb": "terabyte",
    "hz": "hertz", "khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz",
}  # fmt: skip
_INVARIANT = frozenset({"hertz", "kilohertz", "megahertz", "gigahertz", "yen"})
_Say = Callable[[re.Match[str]], str]
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SCALE = r"(?:\s(?:thousand|million|billion|trillion))?"


def read_numbers(text: str) -> str:
    """`text` with every number in words; what is around the numbers stays."""
    for pattern, say in _RULES:
        text = pattern.sub(partial(_apart, say), text)
    return text


def _apart(say: _Say, match: re.Match[str]) -> str:
    """The words, with spaces where letters touch the number."""
    before, after = match.string[match.start() - 1 : match.start()], match.string[match.end() : match.end() + 1]
    return f"{' ' if before.isalpha() else ''}{say(match)}{' ' if after.isalpha() else ''}"


def _plain(words: str) -> str:
    return words.replace(",", "").replace("-", " ")


def digit_by_digit(text: str) -> str:
    """The digits in `text`, one word each."""
    return " ".join(_DIGITS[int(char)] for char in text if char.isdecimal())


def cardinal(text: str) -> str:
    """An integer as a quantity; with leading zeros or too long: digit by digit."""
    text = text.replace(",", "")
    if len(text) > _LARGEST_DIGITS or (len(text) > 1 and int(text[0]) == 0):
        return digit_by_digit(text)
    return _plain(cardinal_words(int(text)))


def _year(text: str) -> str:
    return _plain(year_words(int(text)))


def _is_year(text: str) -> bool:
    return len(text) == 4 and text.isdecimal() and 1100 <= int(text) <= 2099


def quantity(text: str) -> str:
    """An integer or decimal, thousands commas allowed."""
    whole, point, rest = text.partition(".")
    return f"{cardinal(whole)} point {digit_by_digit(rest)}" if point else cardinal(whole)


def _plural(words: str) -> str:
    head, _, tail = words.rpartition(" per ")
    if head:
        return f"{_plural(head)} per {tail}"
    if words in _INVARIANT:
        return words
    return words[:-1] + "ies" if words.endswith("y") else words + ("es" if words.endswith("x") else "s")


def _money(match: re.Match[str]) -> str:
    coin, cent = _COINS[match["coin"]]
    amount, scale = match["amount"], match["scale"] or ""
    whole, _, rest = amount.partition(".")
    if scale or not (len(rest) == 2 and cent):
        return f"{quantity(amount)}{scale} {coin if amount == '1' and not scale else _plural(coin)}"
    said = [f"{cardinal(whole)} {coin if whole == '1' else _plural(coin)}"] if int(whole.replace(",", "")) or not int(rest) else []
    if int(rest):
        said.append(f"{_plain(cardinal_words(int(rest)))} {cent if int(rest) == 1 else 'pence' if cent == 'penny' else _plural(cent)}")
    return " and ".join(said)


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match["hour"]), int(match["minute"]), match["half"]
    if hour > 24 or minute > 59:
        return f"{cardinal(match['hour'])} {cardinal(match['minute'])}"
    said = _plain(cardinal_words(hour))
    if minute:
        said += f" oh {_DIGITS[minute]}" if minute < 10 else f" {_plain(cardinal_words(minute))}"
    elif not half:
        said += " o'clock" if 0 < hour <= 12 else " hundred"
    return f"{said} {half[0].upper()} M" if half else said


def _slash_date(match: re.Match[str]) -> str:
    year = match[3]
    return f"{cardinal(str(int(match[1])))} {cardinal(str(int(match[2])))} {_year(year) if _is_year(year) else cardinal(year)}"


def _iso_date(match: re.Match[str]) -> str:
    return f"{_year(match[1]) if _is_year(match[1]) else cardinal(match[1])} {cardinal(str(int(match[2])))} {cardinal(str(int(match[3])))}"


def _fraction(match: re.Match[str]) -> str:
    if match[0] in _IDIOMS:
        return _IDIOMS[match[0]]
    top, bottom = int(match[1]), int(match[2])
    if not 2 <= bottom <= 20 or top >= 20:
        return f"{cardinal(match[1])} over {cardinal(match[2])}"
    part = _PARTS.get(bottom) or _plain(ordinal_words(bottom))
    return f"{cardinal(match[1])} {part if top == 1 else 'halves' if part == 'half' else _plural(part)}"


def _decade(match: re.Match[str]) -> str:
    return _plural(_year(match[1]) if len(match[1]) == 4 else _plain(cardinal_words(int(match[1]))))


def _ordinal(match: re.Match[str]) -> str:
    digits = match[1].replace(",", "")
    return _plain(ordinal_words(int(digits))) if len(digits) <= _LARGEST_DIGITS else digit_by_digit(digits)


def _hyphenated(match: re.Match[str]) -> str:
    first, last = match[1], match[2]
    if int(last) > int(first) and not (len(first) >= 3 and len(last) == 4 and not _is_year(first)):
        return f"{_integer(first)} to {_integer(last)}"
    return f"{digit_by_digit(first)} {digit_by_digit(last)}"


def _unit(match: re.Match[str]) -> str:
    unit = _UNITS[match["unit"].lower()]
    return f"{quantity(match['amount'])} {unit if match['amount'] == '1' else _plural(unit)}"


def _degrees(match: re.Match[str]) -> str:
    scale = {"C": " Celsius", "F": " Fahrenheit"}.get(match["scale"] or "", "")
    return f"{quantity(match['amount'])} degree{'' if match['amount'] == '1' else 's'}{scale}"


def _integer(text: str) -> str:
    return _year(text) if _is_year(text) else quantity(text)


def _version(match: re.Match[str]) -> str:
    return " point ".join(cardinal(part) for part in match[0].split("."))


def _any_number(match: re.Match[str]) -> str:
    return ("minus " if match["minus"] else "") + _integer(match["amount"])


_RULES: tuple[tuple[re.Pattern[str], _Say], ...] = (
    (re.compile(rf"(?P<coin>[{''.join(_COINS)}])\s?(?P<amount>{_NUMBER})(?P<scale>{_SCALE})"), _money),
    (re.compile(r"\b(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::\d{2})?(?:\s?(?P<half>[aApP]\.[mM]\.|[aApP][mM]\b))?(?![\d:])"), _time),
    (re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b"), _slash_date),
    (re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b"), _iso_date),
    (re.compile(r"\b(\d{1,6})/(\d{1,6})\b"), _fraction),
    (re.compile(r"\b(\d[\d,]*)(?:st|nd|rd|th)\b"), _ordinal),
    (re.compile(r"\b(\d{4}|\d0)['’]?s\b"), _decade),
    (re.compile(r"(?<![\d,.])\+?\d{3,4}(?: \d{3,4})+(?![\d,.])"), lambda match: digit_by_digit(match[0])),
    (
        re.compile(r"(?<![\w.])\+?\d{1,6}(?:[-.]\d{2,6}){2,}(?![\w.]\d)"),
        lambda match: digit_by_digit(match[0]) if "-" in match[0] else _version(match),
    ),
    (re.compile(r"\b(\d{1,6})-(\d{1,6})\b"), _hyphenated),
    (re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}\b"), _version),
    (re.compile(rf"(?P<amount>{_NUMBER})\s?%"), lambda match: f"{quantity(match['amount'])} percent"),
    (re.compile(rf"(?P<amount>{_NUMBER})\s?°\s?(?P<scale>[CF]\b)?"), _degrees),
    (re.compile(rf"(?P<amount>{_NUMBER})\s?(?P<unit>{'|'.join(sorted(_UNITS, key=len, reverse=True))})\b", re.IGNORECASE), _unit),
    (re.compile(rf"(?P<minus>(?<![\w)])-(?=\d))?(?P<amount>{_NUMBER})"), _any_number),
)
