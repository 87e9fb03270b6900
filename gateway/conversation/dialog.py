"""The dialog: which words the language model is asked with, and which user turns still wait for theirs."""

from __future__ import annotations

import json

from msgspec import Struct

from .config import SessionConfig
from .effects import PromptMessage, PromptTool
from .history import History
from .items import Item
from .response import Live


class Hearing(Struct):
    """A committed user item whose words are not known yet."""

    item_id: str
    start_ms: int
    end_ms: int
    wants_reply: bool
    deadline: int
    said: str = ""
    """Partial text already told to the client."""


class Dialog(Struct):
    hearing: dict[str, Hearing] = {}
    partial: str = ""
    """Last partial transcript of the open utterance."""
    told: str = ""
    """How much of it the client knows."""

    def waiting(self) -> bool:
        return bool(self.hearing)

    def deadline(self) -> int | None:
        return min((h.deadline for h in self.hearing.values()), default=None)

    def answered(self) -> None:
        """A response begins that takes in all turns whose words are awaited: none of them wants another."""
        for hearing in self.hearing.values():
            hearing.wants_reply = False

    def take_told(self) -> str:
        """The open utterance ends: what the client knows of its text."""
        told, self.partial, self.told = self.told, "", ""
        return told


def prompt(live: Live, history: History, max_chars: int) -> tuple[PromptMessage, ...]:
    """The conversation as messages: instructions first, then the newest items that fit, oldest first, whole."""
    source = (
        live.asked.input_items
        if live.asked.input_items is not None
        else tuple(history.items[i] for i in history.order if i != live.item_id)
    )
    kept: list[PromptMessage] = []
    room = max_chars - len(live.asked.instructions)
    for item in reversed(source):
        message = _message(item)
        if message is None:
            continue
        room -= len(message.content) + len(message.arguments)
        if room < 0 and kept:
            break
        kept.append(message)
    kept.reverse()
    system = [PromptMessage("system", live.asked.instructions)] if live.asked.instructions else []
    return tuple(system + kept)


def _message(item: Item) -> PromptMessage | None:
    if item.kind == "function_call":
        return PromptMessage("assistant", "", item.call_id or "", item.name or "", item.arguments or "{}")
    if item.kind == "function_call_output":
        return PromptMessage("tool", item.output or "", item.call_id or "")
    text = item.text.strip()
    return PromptMessage(item.role or "user", text) if text else None


def tools(live: Live) -> tuple[PromptTool, ...]:
    return tuple(PromptTool(t.name, t.description, json.dumps(t.parameters, separators=(",", ":"))) for t in live.asked.tools)


def has_something_to_say(config: SessionConfig, history: History, input_items: tuple[Item, ...] | None, waiting: bool) -> bool:
    """A reply needs words to reply to, words on their way, or instructions to speak from."""
    if waiting or config.instructions:
        return True
    source = input_items if input_items is not None else tuple(history.items.values())
    return any(_message(item) is not None for item in source)
