"""What was said so far, for a native model that is placed anew."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .history import History
from .items import Item
from .unit_log import Point


class Recap(Struct, frozen=True):
    text: str
    heard_until_ms: int
    """Sound up to here was heard, and answered, by the model before."""
    unit_log: tuple[str, ...] = ()
    """What that model noted of its latest units: `text` is of what was before them."""


def recap(history: History, max_chars: int, until: Point | None = None) -> str:
    """The newest of what was said, whole messages, oldest first, up to a point. Where the user's words are known, too, each is named."""
    said = [(item, text) for item, text in _said(history, until) if text]
    names = any(item.role == "user" for item, _ in said)
    kept: list[str] = []
    room = max_chars
    for item, text in reversed(said):
        line = f"{item.role}: {text}" if names else text
        room -= len(line) + 1
        if room < -1:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _said(history: History, until: Point | None) -> Iterator[tuple[Item, str]]:
    """Messages with their texts; of the one that was being said then, as far as it was said."""
    left = until is not None and until.after not in history.items
    for item_id in history.order:
        item = history.items[item_id]
        if item.kind == "message" and until is not None and item_id == until.item_id:
            yield item, item.text[: until.chars].strip()
        elif item.kind == "message" and not left:
            yield item, item.text.strip()
        left = left or (until is not None and item_id == until.after)
