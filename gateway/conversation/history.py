"""The history: conversation items in order, and for each spoken reply how much of it was heard."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .errors import Refusal
from .items import Item, Part
from .playback import Sound

ROOT = "root"
MAX_SOUNDS = 64


class History(Struct):
    items: dict[str, Item] = {}
    order: list[str] = []
    sounds: dict[str, Sound] = {}
    """Sound behind the newest spoken items, for a truncate that comes late."""
    full_text: dict[str, str] = {}
    """What was said in full, while a cut may still move."""
    cuts: dict[str, int] = {}
    """Milliseconds heard, as cut so far: moves down, never up."""
    changed: set[str] = set()

    def get(self, item_id: str) -> Item:
        try:
            return self.items[item_id]
        except KeyError:
            raise Refusal("item_not_found", "item_id", item_id=item_id) from None

    def previous(self, item_id: str) -> str | None:
        at = self.order.index(item_id)
        return self.order[at - 1] if at else None

    def check_place(self, item_id: str, previous: str | None, limit: int) -> None:
        """Refuse what insert could not do."""
        if item_id and item_id in self.items:
            raise Refusal("item_already_exists", "item.id", item_id=item_id)
        if previous not in (None, ROOT) and previous not in self.items:
            raise Refusal("item_not_found", "previous_item_id", item_id=previous)
        if len(self.items) >= limit:
            raise Refusal("conversation_full", None, limit=limit)

    def insert(self, item: Item, previous: str | None = None) -> str | None:
        """Add after `previous` (None: at the end, "root": at the head). Returns the id before it."""
        if previous is None:
            self.order.append(item.id)
        else:
            self.order.insert(0 if previous == ROOT else self.order.index(previous) + 1, item.id)
        self.put(item)
        return self.previous(item.id)

    def put(self, item: Item) -> None:
        self.items[item.id] = item
        self.changed.add(item.id)

    def delete(self, item_id: str) -> str | None:
        """Returns the id before it."""
        self.get(item_id)
        before = self.previous(item_id)
        self.order.remove(item_id)
        del self.items[item_id]
        for table in (self.sounds, self.full_text, self.cuts):
            table.pop(item_id, None)
        self.changed.add(item_id)
        return before

    def oldest(self) -> str | None:
        """What leaves first when room is needed: system messages stay, and so does what is being made."""
        return next((i for i in self.order if self.items[i].role != "system" and self.items[i].status != "in_progress"), None)

    def remember(self, item_id: str, text: str, sound: Sound) -> None:
        self.sounds[item_id], self.full_text[item_id] = sound, text
        while len(self.sounds) > MAX_SOUNDS:
            oldest = next(iter(self.sounds))
            for table in (self.sounds, self.full_text, self.cuts):
                table.pop(oldest, None)

    def cut(self, item_id: str, heard_ms: int) -> None:
        """Keep of a spoken reply what had been heard by then, up to a sentence end."""
        sound, item = self.sounds.get(item_id), self.items.get(item_id)
        if sound is None or item is None:
            return
        heard_ms = min(heard_ms, self.cuts.get(item_id, heard_ms))
        self.cuts[item_id] = heard_ms
        text = self.full_text[item_id][: sound.text_heard(heard_ms)].rstrip()
        part = Part("output_audio", transcript=text, audio_ms=heard_ms)
        self.put(msgspec.structs.replace(item, content=(part,), status="incomplete"))

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int, playing: Sound | None = None) -> None:
        """A client's truncate: assistant sound only, never beyond it, and a second one only cuts further.

        `playing` is the sound of the live reply: its cut takes effect when the reply ends.
        """
        item = self.get(item_id)
        if item.kind != "message" or item.role != "assistant":
            raise Refusal("invalid_truncate", "item_id", item_id=item_id, why="only assistant messages have sound to cut")
        live = playing is not None and playing.item_id == item_id and item_id not in self.sounds
        if content_index != 0 or not (item.content or live):
            raise Refusal("invalid_content_index", "content_index", item_id=item_id, content_index=content_index)
        sound = playing if live else self.sounds.get(item_id)
        if sound is None:
            raise Refusal("invalid_truncate", "item_id", item_id=item_id, why="it has no sound of this session")
        if audio_end_ms > sound.sent_ms:
            why = f"its audio of {sound.sent_ms} ms is shorter than {audio_end_ms} ms"
            raise Refusal("invalid_truncate", "audio_end_ms", item_id=item_id, why=why)
        if live:
            self.cuts[item_id] = min(audio_end_ms, self.cuts.get(item_id, audio_end_ms))
            self.changed.add(item_id)
        elif audio_end_ms < min(sound.sent_ms, self.cuts.get(item_id, sound.sent_ms)):
            self.cut(item_id, audio_end_ms)
