"""A native conversation through every real process: the three services of the model on a tiny random checkpoint, on the CPU."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from PIL import Image
from websockets.exceptions import ConnectionClosed

from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line
from tests.support.house import House
from tests.support.process import ROOT, Child
from tests.support.speech import question

STAGES = ("turn", "thinker", "talker", "vocoder")
SCRIPT = [["listen"], ["listen"], ["speak", None, None, None, "chunk_eos"], ["speak", None, None, "turn_eos", "chunk_eos"], ["listen"]]
"""What the model decides; what it says is its own."""
HEARD_MS = 1030 + 4000 + 40
RATE = 24_000
GREEDY = {"greedy": True, "force_listen_count": 0, "repetition_penalty": 1.0}
SPEAKS = 2
WINDOW = 512
"""Tokens of a session: half a minute of listening."""


class TinyHouse(House):
    """A detector by energy, and the services as they ship. Nothing goes on in silence: a machine that stalls for a second would have
    units of its own."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        script = folder / "script.json"
        folder.mkdir(parents=True, exist_ok=True)
        script.write_text(json.dumps({"units": SCRIPT, "repeat": False}))
        self._chosen = {"PARLEY_CHECKPOINT": str(checkpoint), "PARLEY_THINKER_SCRIPT": str(script), "OMP_NUM_THREADS": "1"}
        self._chosen["PARLEY_THINKER_WINDOW_TOKENS"] = str(WINDOW)
        profile = {
            "PARLEY_PROFILE": str(self._profile(folder / "profile.yaml")),
            "PARLEY_OPEN_TIMEOUT_MS": "30000",
            "PARLEY_STAGE_WAIT_MS": "300000",
        }
        super().__init__(folder, gateway={**PATIENT, **profile}, slots=4, stages=STAGES)

    def _profile(self, file: Path) -> Path:
        shipped = yaml.safe_load((ROOT / "profiles" / "minicpmo45.yaml").read_text())
        shipped["native"]["continue_silence"] = False
        file.write_text(yaml.safe_dump(shipped))
        return file

    def _service(self, service: str, number: int) -> Child:
        if service == "vad":
            return super()._service(service, number)
        slots = {f"PARLEY_{service.upper()}_SLOTS": "4", f"PARLEY_{service.upper()}": "minicpmo45"}
        env = {"PARLEY_REDIS_URL": self.valkey.url, "PARLEY_HEARTBEAT_S": "0.2", "PARLEY_DRAIN_S": "1", **self._chosen, **slots}
        return Child(service, ["-m", f"{service}_svc"], env, self.folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[House]:
    house = TinyHouse(tmp_path_factory.mktemp("tiny"), tiny_checkpoint)
    try:
        yield house.start()
    finally:
        house.stop()


class Spoken(msgspec.Struct, frozen=True):
    """What came of one conversation."""

    text: str
    pcm: bytes
    decisions: list[tuple[int, str]]

    @property
    def samples(self) -> NDArray[np.float64]:
        return np.frombuffer(self.pcm, "<i2").astype(np.float64)


def said(offset_s: float) -> bytes:
    """So much of a recording, from there on."""
    recorded, first = question(RATE), int(offset_s * RATE)
    samples = np.frombuffer(recorded, "<i2")
    count = HEARD_MS * RATE // 1000
    return np.resize(np.roll(samples, -first), count).astype("<i2").tobytes()


async def converse(line: Line, sound: bytes, **append: Any) -> Spoken:
    """The model hears this, and answers once."""
    await line.configure(model_options=GREEDY, overlap={"policy": "model"})
    if append:
        await line.send("input_audio_buffer.append", audio="", **append)
    await line.append(sound)
    created = (await line.until("response.created", 60.0))["response"]
    done = await line.response_done(created["id"])
    assert done["status"] == "completed", done
    decisions = [(event["unit"], event["decision"]) for event in line.of("session.decision")]
    assert line.transcript(done["id"]) == done["output"][0]["content"][0]["transcript"]
    line.check_numbers()
    return Spoken(line.transcript(done["id"]), line.audio(done["id"]), decisions)


_alone: dict[float, Spoken] = {}


async def alone(house: House, dial: Dial, offset_s: float) -> Spoken:
    """A conversation with nobody beside it; the same each time."""
    if offset_s not in _alone:
        _alone[offset_s] = await converse(await dial(house.realtime, extended=True), said(offset_s))
    return _alone[offset_s]


def likeness_db(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Signal to difference."""
    count = min(len(one), len(other))
    difference = one[:count] - other[:count]
    return float(10 * np.log10(np.sum(one[:count] ** 2) / max(np.sum(difference**2), 1e-9)))


@pytest.mark.behaviour("S1", "E1")
async def test_two_conversations_at_once_are_what_each_is_alone(tiny: House, dial: Dial) -> None:
    """Greedy and deterministic: texts are equal, sound is alike as far as sums of floats are, and nothing of one is in the other."""
    sounds = [said(0.0), said(1.3)]
    each_alone = [await alone(tiny, dial, 0.0), await alone(tiny, dial, 1.3)]
    lines = [await dial(tiny.realtime, extended=True) for _ in sounds]
    together = await asyncio.gather(*(converse(line, sound) for line, sound in zip(lines, sounds, strict=True)))
    decided = [(0, "listen"), (1, "listen"), (2, "speak"), (3, "speak"), (3, "turn_end")]
    for each, again in zip(each_alone, together, strict=True):
        assert each.decisions[:5] == again.decisions[:5] == decided
        assert again.text == each.text
        assert len(again.samples) == len(each.samples) > RATE, "more than its first second"
        assert likeness_db(each.samples, again.samples) > 20
    assert likeness_db(each_alone[0].samples, each_alone[1].samples) < 3


@pytest.mark.behaviour("X10")
async def test_sound_leaves_within_its_unit(tiny: House, dial: Dial) -> None:
    """The first speaking unit is heard while no later one can be decided: sound waits for no receipt of a later unit."""
    line = await dial(tiny.realtime, extended=True)
    await line.configure(model_options=GREEDY, overlap={"policy": "model"})
    sound = said(0.0)
    at = (1030 + 2000 + 40) * RATE // 1000 * 2
    await line.append(sound[:at])
    await line.until(lambda e: e["type"] == "session.decision" and e["decision"] == "speak", 60.0)
    await line.until("response.output_audio.delta")
    assert [event["unit"] for event in line.of("session.decision")] == list(range(SPEAKS + 1))
    await line.append(sound[at:])
    assert (await line.until("response.done"))["response"]["status"] == "completed"


@pytest.mark.behaviour("W22")
async def test_a_picture_is_seen_and_what_is_none_is_refused_to_its_event(tiny: House, dial: Dial) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(file, "JPEG")
    picture = base64.b64encode(file.getvalue()).decode()
    line = await dial(tiny.realtime, extended=True)
    broken = base64.b64encode(file.getvalue()[:40]).decode()
    event_id = await line.send("input_audio_buffer.append", audio=base64.b64encode(bytes(960)).decode(), video_frames=[broken])
    refused = await line.error(event_id)
    assert (refused["code"], refused["param"]) == ("input_refused", "video_frames")
    plain = await alone(tiny, dial, 0.0)
    seeing = await converse(await dial(tiny.realtime, extended=True), said(0.0), video_frames=[picture], max_slice_nums=1)
    assert seeing.decisions[:5] == plain.decisions[:5]
    assert likeness_db(plain.samples, seeing.samples) < 20, "what it sees is in what it says"


@pytest.mark.behaviour("W23")
async def test_it_speaks_like_the_voice_that_a_client_brings(tiny: House, dial: Dial) -> None:
    line = await dial(tiny.realtime, extended=True)
    voice = np.frombuffer(question(16_000), "<i2")[: 2 * 16_000].tobytes()
    output = {"reference_voice": {"audio": base64.b64encode(voice).decode(), "rate": 16_000}}
    session = await line.configure(audio={"output": output})
    assert session["audio"]["output"]["reference_voice"] == {"rate": 16_000, "length_ms": 2000}
    brought, named = await converse(line, said(0.0)), await alone(tiny, dial, 0.0)
    assert brought.decisions[:5] == named.decisions[:5] and likeness_db(named.samples, brought.samples) < 10


async def test_what_an_engine_refuses_is_named_as_the_client_knows_it(tiny: House, dial: Dial) -> None:
    line = await dial(tiny.realtime)
    for session, param in (
        ({"model_options": {"temperature": 99}}, "session.model_options.temperature"),
        ({"model_options": {"talker_temperature": 99}}, "session.model_options.talker_temperature"),
        ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice"),
        ({"audio": {"output": {"reference_voice": {"audio": "AAAA" * 4}}}}, "session.audio.output.reference_voice"),
    ):
        asked = await line.send("session.update", session={"type": "realtime", **session})
        refused = await line.error(asked)
        assert (refused["code"], refused["param"]) == ("update_refused", param)


@pytest.mark.behaviour("X3", "L5")
async def test_a_session_that_overflows_ends_alone_at_once_and_by_type(tiny: House, dial: Dial) -> None:
    """Its stage lives and cannot go on with it: no other process is waited for."""
    full, beside = await dial(tiny.realtime, extended=True), await dial(tiny.realtime, extended=True)
    await full.configure(model_options={**GREEDY, "window": "off"})
    with contextlib.suppress(ConnectionClosed):
        for _ in range(WINDOW // 12):
            await full.append(bytes(2 * RATE))
    assert await full.until_closed(60.0) == (1011, "stage_lost")
    assert [error["error"]["code"] for error in full.of("error")] == ["stage_lost"]
    assert (await converse(beside, said(0.0))).text == (await alone(tiny, dial, 0.0)).text
