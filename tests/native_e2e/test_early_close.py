"""A recorded question, and a unit that does not wait for the end of its second."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line
from tests.native_e2e.conftest import PROFILE, STAGES
from tests.native_e2e.partner import RATE
from tests.support.house import House
from tests.support.speech import ROOT, recording

UNIT_MS, EARLY_MS, PAUSE_MS, PACKET_MS = 1000, 200, 100, 20
ENOUGH_MS = 80
"""Of silence more, for what the detector and a packet add."""
QUESTION = recording(ROOT / "parley" / "assets" / "synthetic_question.wav", RATE)
NATIVE = f"native: {{unit_ms: {UNIT_MS}, early_close_ms: {EARLY_MS}, "
TURN = f"configure:\n  turn: {{values: {{pause_ms: {PAUSE_MS}}}}}\n"


@pytest.fixture(scope="module")
def eager(make_house: MakeHouse, tmp_path_factory: pytest.TempPathFactory) -> House:
    """The native model in units of a second that are closed early."""
    profile = tmp_path_factory.mktemp("profile") / "eager.yaml"
    text = Path(PROFILE["PARLEY_PROFILE"]).read_text()
    profile.write_text(text.replace("native: {unit_ms: 200, ", NATIVE).replace("configure:\n", TURN))
    gateway = {**PATIENT, "PARLEY_PROFILE": str(profile)}
    return make_house(services=("native",), gateway=gateway, stages=STAGES, service_env={"native": {"PARLEY_TEST_UNIT_MS": str(UNIT_MS)}})


def voice_end_ms(lead_ms: int) -> int:
    """Where the question ends, as a detector by energy hears it."""
    heard = soxr.resample(np.concatenate([np.zeros(lead_ms * RATE // 1000, np.float32), QUESTION]), RATE, 16_000)
    windows = heard[: len(heard) // 320 * 320].reshape(-1, 320)
    return int(np.flatnonzero(np.sqrt((windows * windows).mean(1)) > 0.01)[-1] + 1) * 20


async def converse(line: Line, lead_ms: int, script: str, length_ms: int, early: int) -> list[dict[str, Any]]:
    """The question at the pace in which it is spoken, silence around it: the units that were decided, to the last whole one.

    Behind the question the speaker waits, however slow the machine is, until so many units are decided: the last needs no more silence.
    """
    await line.configure(model_options={"script": script})
    said = np.zeros(length_ms * RATE // 1000, np.float32)
    said[lead_ms * RATE // 1000 :][: len(QUESTION)] = QUESTION
    pcm, packet, begun = (said * 32767).astype("<i2"), PACKET_MS * RATE // 1000, time.monotonic()
    holds_at = (voice_end_ms(lead_ms) + EARLY_MS + ENOUGH_MS) * RATE // 1000 // packet * packet
    units: list[dict[str, Any]] = []

    async def decided(enough: Callable[[], bool]) -> None:
        while not enough():
            event = await line.until("session.decision")
            if event["decision"] != "turn_end":
                units.append(event)

    for start in range(0, len(pcm), packet):
        if start == holds_at:
            await decided(lambda: len(units) >= early)
            begun = time.monotonic() - start / RATE
        await asyncio.sleep(max(0.0, start / RATE + begun - time.monotonic()))
        await line.send("input_audio_buffer.append", audio=base64.b64encode(pcm[start : start + packet].tobytes()).decode())
    await decided(lambda: units[-1]["end_ms"] + UNIT_MS > length_ms - PACKET_MS)
    assert not line.of("error")
    return units


async def test_a_question_is_answered_when_it_is_over_and_not_at_the_end_of_its_second(eager: House, dial: Dial) -> None:
    """In three phases of the grid; in the last the voice ends in one unit, and the next, that just began, is closed."""
    lines = [await dial(eager.realtime, extended=True) for _ in range(3)]
    cases = [(0, "lle"), (500, "lle"), (900, "llle")]
    asked = [converse(line, lead, script, 4400, len(script)) for line, (lead, script) in zip(lines, cases, strict=True)]
    talks = await asyncio.gather(*asked)
    for line, units, (lead, script) in zip(lines, talks, cases, strict=True):
        ends, spoken = voice_end_ms(lead), units[len(script) - 1]
        assert [unit["decision"] for unit in units[: len(script)]] == ["listen"] * (len(script) - 1) + ["speak"]
        assert [unit["end_ms"] for unit in units[: len(script) - 1]] == pytest.approx([1000, 2000, 3000][: len(script) - 1], abs=1)
        assert ends + EARLY_MS - 30 <= spoken["end_ms"] <= ends + EARLY_MS + ENOUGH_MS, "a packet, and the detector's way"
        whole_ms = len(script) * UNIT_MS
        assert ends + EARLY_MS + ENOUGH_MS < whole_ms, "it was known before its second was over"
        after = units[len(script)]
        assert after["t_ms"] == pytest.approx(spoken["end_ms"], abs=1), "what it hears while it speaks has no hole"
        assert len(line.of("response.created")) == 1
        line.check_numbers()


async def test_a_model_that_goes_on_listening_regains_the_clock(eager: House, dial: Dial) -> None:
    line = await dial(eager.realtime, extended=True)
    units = await converse(line, 500, "l" * 8, 6000, 3)
    ends = voice_end_ms(500)
    spans = [(unit["t_ms"], unit["end_ms"]) for unit in units]
    assert spans[:2] == [(0, 1000), (1000, 2000)] and spans[2] == (2000, pytest.approx(ends + EARLY_MS, abs=ENOUGH_MS))
    begins = spans[3][0]
    assert spans[2][1] + 60 <= begins <= min(3000, ends + 500), "silence was passed over, as far as the end of the turn tells that it is"
    assert [end - start for start, end in spans[3:]] == [1000] * (len(spans) - 3) and len(spans) == 5 + (begins <= 3000)
    assert [start for start, _ in spans[4:]] == [end for _, end in spans[3:-1]], "and nothing else"
