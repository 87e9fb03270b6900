"""What of a clause is sent to the voice: markup and pictures fall away, numbers and symbols become words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from talker_svc.numerals import read_numbers

_Say = str | Callable[[re.Match[str]], str]
_MARKUP: tuple[tuple[re.Pattern[str], _Say], ...] = (
    (re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE), " "),  # fences
    (re.compile(r"!?\[([^\]\[]*)\](?:\([^)\s]*\)?|\[[^\]]*\])"), r"\1"),  # links and pictures
    (re.compile(r"\]\([^)\s]*\)?"), " "),  # the tail of a link that began in the clause before
    (
        re.compile(r"\bhttps?://(?:www\.)?([^\s/?#)\]>]+)[^\s)\]>]*?(?=[.,;:!?]*(?:[\s)\]>]|$))"),
        lambda match: match[1].replace(".", " dot "),
    ),
    (re.compile(r"^[ \t]*(?:#{1,6}|>+|[-*+•])[ \t]+", re.MULTILINE), " "),  # headings, quotes, list points
    (re.compile(r"^[ \t]*(?:[-*_=|:][ \t]*){3,}$", re.MULTILINE), " "),  # rules
    (re.compile(r"</?[a-zA-Z][^<>]{0,100}>"), " "),  # tags
    (re.compile(r"[*`|~\[\]{}\\]|(?<!\w)_+|_+(?!\w)"), ""),
    (re.compile(r"_+"), " "),
)
_POWERS = {"²": " squared", "³": " cubed"}
_ABBREVIATIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\be\.g\.(?:,)?", re.IGNORECASE), "for example"),
    (re.compile(r"\bi\.e\.(?:,)?", re.IGNORECASE), "that is"),
    (re.compile(r"\bvs\.?(?=\s|$)", re.IGNORECASE), "versus"),
    (re.compile(r"\bapprox\.", re.IGNORECASE), "approximately"),
    (re.compile(r"\bnos?\.\s?(?=\d)", re.IGNORECASE), "number "),
    (re.compile(r"#\s?(?=\d)"), "number "),
    (re.compile(r"~\s?(?=\d)"), "about "),
)
_BETWEEN_NUMBERS = (
    (re.compile(r"(?<=\d)\s*[x×*]\s*(?=\d)"), " times "),
    (re.compile(r"(?<=\d)\s*\^\s*(?=\d)"), " to the power of "),
    (re.compile(r"(?<=\d)\s+[-−]\s+(?=\d)"), " minus "),
    (re.compile(r"(?<=\d)\s*[–—]\s*(?=\d)"), " to "),
    (re.compile(r"−(?=\d)"), "-"),
)
_SYMBOLS = {
    "&": " and ", "@": " at ", "%": " percent ", "+": " plus ", "=": " equals ", "×": " times ", "÷": " divided by ",
    "±": " plus or minus ", "≈": " about ", "<": " less than ", ">": " greater than ", "≤": " at most ", "≥": " at least ",
    "−": " minus ", "°": " degrees ", "§": " section ", "→": " to ", "π": " pi ", "µ": " micro ", "μ": " micro ",
    "/": " ", "^": " ", "#": " ", "…": "...", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'",
    "–": ", ", "—": ", ", "‐": "-", "‑": "-", "。": ". ", "、": ", ", "「": '"', "」": '"',
    "ß": "ss", "æ": "ae", "Æ": "Ae", "ø": "o", "Ø": "O", "œ": "oe", "Œ": "Oe", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i",
}  # fmt: skip
_UNHEARD = frozenset({"So", "Sk", "Sc", "Sm", "Cf", "Cs", "Co", "Cn", "Cc", "Mn", "Me", "Mc"})


def spoken(text: str) -> str:
    """The words to say for `text`; empty when there is none, as for an emoji, a lone mark or a script the voice cannot read."""
    for power, word in _POWERS.items():
        text = text.replace(power, word)
    for pattern, said in _BETWEEN_NUMBERS:
        text = pattern.sub(said, text)
    for pattern, say in _MARKUP[:-2]:
        text = pattern.sub(say, text)
    for pattern, said in _ABBREVIATIONS:
        text = pattern.sub(said, text)
    for pattern, say in _MARKUP[-2:]:
        text = pattern.sub(say, text)
    text = read_numbers(_compatible(text))
    text = _readable("".join(_SYMBOLS.get(char, char) for char in text))
    return text if any(char.isalnum() for char in text) else ""


def _compatible(text: str) -> str:
    """NFKC, with vulgar fractions set apart from the number before them."""
    return unicodedata.normalize("NFKC", re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " and ", text)).replace("\u2044", "/")


def _readable(text: str) -> str:
    """Accents folded, letters of other scripts and all that has no sound dropped, spaces single."""
    kept = []
    for char in unicodedata.normalize("NFD", text):
        if char.isspace():
            kept.append(" ")
        elif char.isascii() and unicodedata.category(char) not in _UNHEARD:
            kept.append(char)
        elif char.isalpha():
            kept.append(" ")
    return re.sub(r"\s+(?=[.,;:!?])", "", re.sub(r"\s+", " ", "".join(kept))).strip()
