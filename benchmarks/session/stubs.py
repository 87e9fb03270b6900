"""`python -m benchmarks.session.stubs --service vad|thinker|talker|vocoder`: scripted stages that cost little and speak without end.

Nobody is heard (the turn stage decides nothing), and a reply flows faster than it is played, in pieces of exactly 100 ms.
"""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from stage_kit.engine import Append, Engine
from stage_kit.scripted import SERVICES, ScriptedAsr, ScriptedLlm, ScriptedTalker, ScriptedTurn, ScriptedVocoder
from stage_kit.scripted.llm import LlmScript
from stage_kit.scripted.talker import TalkerScript
from stage_kit.service import serve
from stage_kit.slot import Slot

FRAMES_PER_WORD = 75
"""800 ms: eight pieces of 100 ms."""
WORDS_PER_S = 2.0
WORDS = 600
CLIENT_RATE = 24_000
"""Taken as it comes, so that no stub resamples."""


class StubTurn(ScriptedTurn):
    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.card = msgspec.structs.replace(self.card, input_rate=CLIENT_RATE)

    def receive(self, slot: Slot, append: Append) -> None:
        """Takes it in."""


class StubAsr(ScriptedAsr):
    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.card = msgspec.structs.replace(self.card, input_rate=CLIENT_RATE)


class StubLlm(ScriptedLlm):
    def validate(self, config: dict[str, Any]) -> LlmScript:
        return LlmScript(WORDS, WORDS_PER_S)


class StubTalker(ScriptedTalker):
    def validate(self, config: dict[str, Any]) -> TalkerScript:
        return TalkerScript(FRAMES_PER_WORD)


def stubs(service: str, slots: int) -> list[Engine]:
    made: dict[str, list[Engine]] = {
        "vad": [StubTurn(slots)],
        "thinker": [StubAsr(slots), StubLlm(slots)],
        "talker": [StubTalker(slots)],
        "vocoder": [ScriptedVocoder(slots)],
    }
    return made[service]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session.stubs")
    parser.add_argument("--service", choices=SERVICES, required=True)
    parser.add_argument("--slots", type=int, required=True)
    arguments = parser.parse_args()
    serve(service=arguments.service, engines=stubs(arguments.service, arguments.slots))


if __name__ == "__main__":
    main()
