"""Engines that follow a script: every stage of a cascade, and of a native conversation, without a model.

For load benchmarks and chaos tests.

What they make is a known function of session, response and position, so a reader can prove that nothing was lost, doubled or mixed.
"""

from __future__ import annotations

from stage_kit.engine import Engine
from stage_kit.scripted.asr import ScriptedAsr
from stage_kit.scripted.codes import SAMPLES_PER_CODE, ScriptedCoder, ScriptedSounder
from stage_kit.scripted.duplex import ScriptedDuplex
from stage_kit.scripted.llm import ScriptedLlm
from stage_kit.scripted.script import SAMPLES_PER_FRAME, ramp, reply
from stage_kit.scripted.talker import ScriptedTalker
from stage_kit.scripted.turn import ScriptedTurn
from stage_kit.scripted.vocoder import ScriptedVocoder

__all__ = [
    "SAMPLES_PER_CODE",
    "SAMPLES_PER_FRAME",
    "ScriptedAsr",
    "ScriptedCoder",
    "ScriptedDuplex",
    "ScriptedLlm",
    "ScriptedSounder",
    "ScriptedTalker",
    "ScriptedTurn",
    "ScriptedVocoder",
    "duplex_engines",
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


DUPLEX = ("thinker", "talker", "vocoder")


def duplex_engines(slots: int = 64, unit_ms: int = 1000, stages: tuple[str, str, str] = DUPLEX) -> list[Engine]:
    """New engines of a native conversation, under the names of these stages: who decides, who sings, who sounds.

    unit_ms: a multiple of 40, for 25 codes a second.
    """
    model, coder, sounder = stages
    return [ScriptedDuplex(slots, unit_ms, model), ScriptedCoder(slots, unit_ms, coder), ScriptedSounder(slots, sounder)]
