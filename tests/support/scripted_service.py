"""`python -m tests.support.scripted_service`: the kit's scripted stages, directed by the conversation itself.

Directives in a prompt (`words=40 words_per_s=8 recite`) set the reply, so that one house serves every test: the instructions' own, else
those of the newest message that has some.
Stages that hear keep an account of every sample in the folder `PARLEY_TEST_ACCOUNTS`; see account.
Faults are files: while `PARLEY_TEST_FAULTS/talker-open` exists, no session opens there; `vocoder-append` fails the next append and is gone.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from stage_kit.engine import Append, Engine
from stage_kit.scripted import (
    SERVICES,
    ScriptedAsr,
    ScriptedCoder,
    ScriptedDuplex,
    ScriptedLlm,
    ScriptedSounder,
    ScriptedTalker,
    ScriptedTurn,
    ScriptedVocoder,
    engines,
)
from stage_kit.scripted.llm import LlmScript
from stage_kit.service import serve
from stage_kit.slot import Slot
from tests.support.account import Accounts

DEFAULT_WORDS = 4
UNIT_MS = int(os.environ.get("PARLEY_TEST_UNIT_MS", "200"))
"""Of the native model."""
_DIRECTIVE = re.compile(r"\b(words|words_per_s)=(\d+(?:\.\d+)?)")


class DirectedLlm(ScriptedLlm):
    """`words` and `words_per_s` as the prompt says; with `recite` the reply is the prompt itself."""

    def receive(self, slot: Slot, append: Append) -> None:
        payload = append.payload
        if payload is None or payload.WhichOneof("value") != "messages":
            super().receive(slot, append)
            return
        messages = payload.messages.messages
        instructions = [m.content for m in messages if m.role == "system"]
        said = [m.content for m in reversed(messages) if m.role != "system"]
        directions = next((found for text in instructions + said if (found := dict(_DIRECTIVE.findall(text)))), {})
        slot.config = LlmScript(int(float(directions.get("words", DEFAULT_WORDS))), float(directions.get("words_per_s", 0)))
        super().receive(slot, append)
        if messages and any("recite" in m.content.split() for m in messages):
            told = msgspec.json.encode([[m.role, m.content] for m in messages if m.role != "system"]).decode()
            slot.state[-1].chunks, slot.state[-1].words = deque([told]), slot.config.words


def _fault(name: str) -> Path:
    return Path(os.environ.get("PARLEY_TEST_FAULTS", ""), name)


class FaultyTalker(ScriptedTalker):
    def open(self, slot: Slot) -> None:
        if _fault("talker-open").exists():
            raise RuntimeError("told to fail")
        super().open(slot)


class FaultyVocoder(ScriptedVocoder):
    def receive(self, slot: Slot, append: Append) -> None:
        if (fault := _fault("vocoder-append")).exists():
            fault.unlink()
            raise RuntimeError("told to fail")
        super().receive(slot, append)


class CountingTurn(ScriptedTurn):
    def __init__(self, slots: int = 64) -> None:
        super().__init__(slots)
        self._accounts = Accounts("turn")

    def receive(self, slot: Slot, append: Append) -> None:
        self._accounts.hear(slot, append)
        super().receive(slot, append)

    def close(self, slot: Slot) -> None:
        self._accounts.close(slot)


class CountingAsr(ScriptedAsr):
    def __init__(self, slots: int = 64) -> None:
        super().__init__(slots)
        self._accounts = Accounts("asr")

    def receive(self, slot: Slot, append: Append) -> None:
        self._accounts.hear(slot, append)
        super().receive(slot, append)

    def close(self, slot: Slot) -> None:
        self._accounts.close(slot)


class CountingDuplex(ScriptedDuplex):
    """A native model under a name of its own."""

    def __init__(self, slots: int = 64) -> None:
        super().__init__(slots, UNIT_MS, "seer")
        self._accounts = Accounts("seer")

    def receive(self, slot: Slot, append: Append) -> None:
        self._accounts.hear(slot, append)
        super().receive(slot, append)

    def close(self, slot: Slot) -> None:
        self._accounts.close(slot)


NATIVE = ("seer", "singer", "sounder")
"""Stages of tests/native_e2e/duplex.yaml, none of which the gateway knows by name."""


def native(service: str, slots: int) -> list[Engine]:
    """The engine of one of them, or all with a detector."""
    made: dict[str, Engine] = {
        "seer": CountingDuplex(slots),
        "singer": ScriptedCoder(slots, UNIT_MS, "singer"),
        "sounder": ScriptedSounder(slots, "sounder"),
    }
    return [CountingTurn(slots), *made.values()] if service == "native" else [made[service]]


_DIRECTED: dict[str, type[Any]] = {
    "turn": CountingTurn,
    "asr": CountingAsr,
    "llm": DirectedLlm,
    "talker": FaultyTalker,
    "vocoder": FaultyVocoder,
}


def directed(service: str, slots: int) -> list[Engine]:
    """Engines of a service, or of the one stage of that name."""
    if service in ("native", *NATIVE):
        return native(service, slots)
    if service in _DIRECTED and service not in SERVICES:
        return [_DIRECTED[service](slots)]
    return [_DIRECTED[engine.card.stage](slots) for engine in engines(service, slots)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.scripted_service")
    parser.add_argument("--service", choices=(*SERVICES, *_DIRECTED, *NATIVE, "native", "all"), default="all")
    parser.add_argument("--slots", type=int, default=64)
    arguments = parser.parse_args()
    serve(service=arguments.service, engines=directed(arguments.service, arguments.slots))


if __name__ == "__main__":
    main()
