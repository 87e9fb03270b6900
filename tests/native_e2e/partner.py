"""What a client of a scripted native model says, and what it must hear."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from stage_kit.scripted import SAMPLES_PER_CODE, ramp, reply
from tests.failover.line import Line, until
from tests.support.account import hush, voice

UNIT_MS = 200
CODES_PER_UNIT = 5
SAMPLES_PER_UNIT = CODES_PER_UNIT * SAMPLES_PER_CODE
RATE = 24_000
JPEG = b"\xff\xd8\xff\xe0 a picture"


class Partner:
    """Speaks into a line, each sample once, and knows where it is."""

    def __init__(self, line: Line) -> None:
        self.line, self.samples = line, 0

    async def say(self, ms: int, *, loud: bool = True, **fields: Any) -> None:
        """As fast as the socket takes it."""
        made = (voice if loud else hush)(self.line.session_id, self.samples, ms * RATE // 1000)
        self.samples += len(made)
        await self.line.send("input_audio_buffer.append", audio=base64.b64encode(made.astype("<i2").tobytes()).decode(), **fields)

    async def ask(self, ms: int = 400) -> None:
        """Speech and the pause behind it: the model answers."""
        await self.say(ms)
        await self.say(UNIT_MS + 20, loud=False)  # a stage's filter holds a few milliseconds back

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Meanwhile the microphone is open: nothing but silence, in real time."""
        task = asyncio.create_task(self._be_quiet())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _be_quiet(self) -> None:
        while True:
            await self.say(20, loud=False)
            await asyncio.sleep(0.02)


def words(session_id: str, turn: int, units: int, count: int = 3) -> str:
    return " ".join("".join(reply(f"{session_id}/{turn}/{unit}", count)) for unit in range(units))


def check_turn(line: Line, response: dict[str, Any], turn: int, units: int, before: str = "") -> None:
    """A completed turn of the model: every word and every sample, once and in order. `turn` counts those of the model's placement."""
    assert response["status"] == "completed", response
    text = before + words(line.session_id, turn, units)
    assert line.transcript(response["id"]) == text == response["output"][0]["content"][0]["transcript"]
    heard = np.frombuffer(line.audio(response["id"]), "<i2")
    assert len(heard) == units * SAMPLES_PER_UNIT
    assert np.array_equal(heard, ramp(line.session_id, 0, len(heard)))


def recited(line: Line, response: dict[str, Any], units: int = 2) -> tuple[str, str]:
    """Before its own words the first turn of a new model says what it was told of the time before: the recap, and the words of the log."""
    text, own = line.transcript(response["id"]), words(line.session_id, 1, units)
    assert response["status"] == "completed" and text.endswith(own)
    before, stroke, logged = text.removesuffix(own).partition("/")
    assert stroke, "it was told of its units"
    return before.strip(), logged.strip()


def check_begun(line: Line, response_id: str) -> int:
    """A turn that was cut off: what came is the exact beginning of it. Returns its milliseconds."""
    heard = np.frombuffer(line.audio(response_id), "<i2")
    assert np.array_equal(heard, ramp(line.session_id, 0, len(heard)))
    return len(heard) * 1000 // RATE


def decisions(line: Line) -> list[tuple[int, str]]:
    """Of all units, as they were told."""
    return [(event["unit"], event["decision"]) for event in line.of("session.decision")]


def check_units(line: Line, untold: int = 0) -> None:
    """Each unit decided once, and all told but so many: those that were being made when their turn was cut off. The end of a turn is told
    beside the decision of its unit."""
    units = [unit for unit, decision in decisions(line) if decision != "turn_end"]
    assert units == sorted(set(units)) and units[-1] - len(units) < untold


async def came(line: Line, type: str) -> dict[str, Any]:
    """The first event of this type, whether or not others were waited for since."""

    async def is_there() -> bool:
        return bool(line.of(type))

    await until(is_there)
    return line.of(type)[0]
