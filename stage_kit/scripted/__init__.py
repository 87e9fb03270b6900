"""Engines that follow a script: every stage of a cascade without a model, for load benchmarks and chaos tests.

What they make is a known function of session, response and position, so a reader can prove that nothing was lost, doubled or mixed.
"""

from __future__ import annotations

from stage_kit.engine import Engine
from stage_kit.scripted.asr import ScriptedAsr
from stage_kit.scripted.llm import ScriptedLlm
from stage_kit.scripted.script import SAMPLES_PER_FRAME, ramp, reply
from stage_kit.scripted.talker import ScriptedTalker
from stage_kit.scripted.turn import ScriptedTurn
from stage_kit.scripted.vocoder import ScriptedVocoder

__all__ = [
    "SAMPLES_PER_FRAME",
    "ScriptedAsr",
    "ScriptedLlm",
    "ScriptedTalker",
    "ScriptedTurn",
    "ScriptedVocoder",
    "engines",
    "ramp",
    "reply",
]

SERVICES = ("vad", "thinker", "talker", "vocoder")


def engines(service: str, slots: int = 64) -> list[Engine]:
    """New engines of a service: vad, thinker, talker, vocoder, or all. Raises ValueError for another name."""
    made: dict[str, list[Engine]] = {
        "vad": [ScriptedTurn(slots)],
        "thinker": [ScriptedAsr(slots), ScriptedLlm(slots)],
        "talker": [ScriptedTalker(slots)],
        "vocoder": [ScriptedVocoder(slots)],
    }
    made["all"] = [engine for name in SERVICES for engine in made[name]]
    if service not in made:
        raise ValueError(f"no such service: {service}")
    return made[service]
