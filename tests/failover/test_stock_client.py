"""The unmodified openai client resumes with the recipe of docs/resume.md, word for word."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from stage_kit.scripted import ramp, reply
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT
from tests.support.checks import SAMPLES_PER_WORD
from tests.support.house import House
from tests.support.listener import sound
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[2]
WORDS = 8


@pytest.fixture(scope="module")
def pair(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateways=2, gateway={"PARLEY_GRACE_MS": "5000", "PARLEY_DRAIN_TIMEOUT_MS": "300", **PATIENT})


def recipe() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "resume.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.behaviour("Y1", "X1")
@pytest.mark.parametrize("loss", ["connection", "gateway", "drain"])
async def test_the_recipe_hears_every_sample_once(pair: House, loss: str) -> None:
    """Behind one address, as with a load balancer, whose connections are cut in mid-sentence and lead to another gateway then."""
    first, second = (gateway.ready["http"] for gateway in pair.gateways)
    made = recipe()
    remember, connect = made["remember"], made["connect"]
    with Proxy(first) as address:
        client = AsyncOpenAI(api_key="k", websocket_base_url=f"ws://{address.address}/v1")
        events: list[Any] = []
        async with asyncio.timeout(30), connect(client) as connection:
            await connection.response.create(response={"instructions": f"words={WORDS}"})
            async for event in connection:
                remember(event)
                events.append(event)
                if event.type == "response.output_audio.delta" and sum(e.type == event.type for e in events) == 3:
                    address.target = second
                    await asyncio.to_thread(_lose, pair, address, loss)
                if event.type == "response.done":
                    break
        await client.close()
    created = [event for event in events if event.type == "session.created"]
    assert len(created) == 2 and created[0].session.id == created[1].session.id
    done = events[-1].response
    assert done.status == "completed"
    deltas = ({"delta": event.delta} for event in events if event.type == "response.output_audio.delta")
    heard = np.frombuffer(sound(deltas), "<i2")
    assert np.array_equal(heard, ramp(created[0].session.id, 0, WORDS * SAMPLES_PER_WORD))
    assert "".join(e.delta for e in events if e.type == "response.output_audio_transcript.delta") == "".join(reply(done.id, WORDS))
    numbers = [int(tail) for event in events if (tail := event.event_id.rpartition("_")[2]).isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    if loss != "connection":
        await asyncio.to_thread(pair.gateway.wait)
        await asyncio.to_thread(pair.restart_gateway)


def _lose(house: House, address: Proxy, loss: str) -> None:
    if loss == "connection":
        address.cut()
    elif loss == "gateway":
        house.gateway.kill()
    else:
        house.gateway.ask_to_stop()
