"""What was said so far, for a native model that is placed anew."""

from __future__ import annotations

from msgspec import Struct

from .history import History
from .items import Item


class Recap(Struct, frozen=True):
    text: str
    heard_until_ms: int
    """Sound up to here was heard, and answered, by the model before."""


def recap(history: History, max_chars: int) -> str:
    """The newest of what was said, whole messages, oldest first. Where the user's words are known, too, each is named."""
    said = [item for i in history.order if (item := history.items[i]).kind == "message" and item.text.strip()]
    names = any(item.role == "user" for item in said)
    kept: list[str] = []
    room = max_chars
    for item in reversed(said):
        line = _line(item, names)
        room -= len(line) + 1
        if room < -1:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _line(item: Item, names: bool) -> str:
    return f"{item.role}: {item.text.strip()}" if names else item.text.strip()
