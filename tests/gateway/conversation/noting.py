"""A native model that leaves a note of each unit, and what the next one is told of them."""

from __future__ import annotations

from binascii import a2b_base64

import msgspec

from gateway.conversation.policy import stage_config
from gateway.graph import Graph

from .duplex import DUPLEX, Duplex, DuplexTale


def noting(graph: Graph = DUPLEX) -> DuplexTale:
    tale = DuplexTale(graph=graph)
    tale.noting = True
    return tale


def listen(tale: Duplex, units: int) -> None:
    for _ in range(units):
        tale.say(1000)
        tale.listens()


def talk(tale: Duplex, *words: str, ends: bool = False) -> None:
    """A turn of so many units and more; its sound follows at once."""
    for at, word in enumerate(words):
        tale.say(1000)
        last = ends and at == len(words) - 1
        tale.speaks(word, begins=at == 0, ends=last)
        tale.sings(last=last)
        tale.sounds(1000, last=last)


def kept(tale: Duplex) -> list[bytes]:
    return [note.data for note in tale.c.unit_log.notes.values()]


def lose(tale: DuplexTale) -> tuple[str, list[tuple[int, int, bytes]]]:
    """What the next model is told: the recap, and the notes."""
    tale.arrive()
    tale.lose("seer")
    config = stage_config(tale.graph, "seer", tale.c.config, tale.c.memory.recap)
    assert config["known_ms"] == tale.heard_ms and config.get("before") != "" and config.get("notes") != []
    return config.get("before", ""), [
        msgspec.msgpack.decode(a2b_base64(note), type=tuple[int, int, bytes]) for note in config.get("notes", [])
    ]


def place(tale: DuplexTale) -> None:
    tale.place("seer")
    tale.arrive()
    tale.units = tale.model_turn = 0
