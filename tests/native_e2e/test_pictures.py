"""What our client shows, through real gateways to a scripted native model that counts what it sees."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import parley
from parley import Limits, Session, events
from parley.commands import app
from parley.commands.camera import BadFrames, load_frames
from parley.commands.sound import Recording, write_wav
from parley.commands.talk import Server, hold
from tests.e2e.conftest import MakeHouse
from tests.native_e2e.conftest import PROFILE, STAGES
from tests.native_e2e.partner import JPEG, RATE, UNIT_MS
from tests.support.account import heard, hush
from tests.support.house import House
from tests.support.proxy import Proxy

LIMITS = Limits(backoff_first_s=0.05, backoff_max_s=0.5)
PACKET = RATE // 50
UNITS = 8
SCRIPT = "l" * (UNITS - 1) + "e"
"""It listens, and says in the last unit how many frames it saw until then."""


class Camera:
    """Silence in packets of 20 ms, twice as fast as real time, and a frame at the beginning of each unit."""

    def __init__(self, session: Session) -> None:
        self.session, self.at, self.frames = session, 0, 0

    async def run(self, units: int) -> None:
        for _ in range(units):
            await self.session.see(JPEG + bytes([self.frames]), max_slices=1)
            self.frames += 1
            for _ in range(UNIT_MS // 20):
                await self.session.send_audio(hush(self.session.id, self.at, PACKET).astype("<i2").tobytes())
                self.at += PACKET
                await asyncio.sleep(0.01)


async def told(session: Session, *kinds: type[events.Event]) -> events.Event:
    async for event in session:
        assert not isinstance(event, events.Error | events.InputLost | events.ResyncRequired), event
        if isinstance(event, kinds):
            return event
    raise AssertionError("the session ended")


async def said(session: Session) -> str:
    done = await told(session, events.ResponseDone)
    assert isinstance(done, events.ResponseDone) and done.response.status == "completed"
    return done.response.output[0].text


@pytest.mark.behaviour("W22")
async def test_frames_are_seen_once_over_a_connection_that_is_cut_again_and_again(duplex: House) -> None:
    async with parley.connect(duplex.http, limits=LIMITS) as session, asyncio.timeout(40):
        await session.update(model_options={"script": SCRIPT, "words": 1})
        await told(session, events.SessionUpdated)
        camera = Camera(session)
        for _ in range(UNITS // 2):
            await camera.run(1)
            session.cut()
            await camera.run(1)
            await told(session, events.Resumed)
        await camera.run(1)  # a filter holds the last milliseconds of a unit back
        assert (await said(session)).startswith(f"{UNITS} seen. ")
        (account,) = heard(duplex.accounts, session.id, "seer")
        assert (account.first, account.lost, account.doubled, account.wrong) == (0, 0, 0, 0)


@pytest.mark.behaviour("W22", "X1")
async def test_frames_go_on_at_another_gateway(make_house: MakeHouse) -> None:
    house = make_house(services=("native",), gateways=2, gateway={**PROFILE}, stages=STAGES)
    with Proxy(house.gateways[0].ready["http"]) as proxy:
        async with parley.connect(f"http://{proxy.address}", limits=LIMITS) as session, asyncio.timeout(40):
            await session.update(model_options={"script": SCRIPT, "words": 1})
            await told(session, events.SessionUpdated)
            camera = Camera(session)
            await camera.run(UNITS // 2)
            proxy.target = house.gateways[1].ready["http"]
            running = asyncio.create_task(camera.run(UNITS // 2 + 1))
            await asyncio.sleep(0.05)
            house.gateways[0].kill()
            resumed = await told(session, events.Resumed)
            assert isinstance(resumed, events.Resumed) and 0 < resumed.input_frames <= camera.frames
            await running
            assert (await said(session)).startswith(f"{UNITS} seen. ")


async def test_a_refusal_names_the_frame_and_counts_for_nothing(duplex: House) -> None:
    async with parley.connect(duplex.http, limits=LIMITS) as session, asyncio.timeout(20):
        await session.update(model_options={"script": "le", "words": 1})
        await told(session, events.SessionUpdated)
        for number in range(4):
            await session.see(JPEG + bytes([number]))
        refused = [await session.see(JPEG)]
        errors = [event async for event in _errors(session, 1)]
        session.cut()
        await told(session, events.Resumed)
        camera = Camera(session)
        await camera.session.send_audio(bytes(PACKET * 2 * (UNIT_MS // 20)))
        unreadable = await session.see(JPEG + b"broken")
        errors += [event async for event in _errors(session, 1)]
        session.cut()
        await told(session, events.Resumed)
        await session.see(JPEG)
        await session.send_audio(bytes(PACKET * 2 * (UNIT_MS // 20 + 1)))
        assert (await said(session)).startswith("5 seen. ")
    assert [(each.error.code, each.error.event_id) for each in errors] == [
        ("too_many_frames", refused[0]),
        ("input_refused", unreadable),
    ]


async def _errors(session: Session, count: int):  # type: ignore[no-untyped-def]
    async for event in session:
        if isinstance(event, events.Error):
            yield event
            count -= 1
        if not count:
            return


async def test_talk_shows_recorded_frames_one_a_second(duplex: House, tmp_path: Path) -> None:
    """The model answers what it heard for 2.4 s, and has seen three frames by then: the last of two again."""
    tone = (8000 * np.sin(np.arange(RATE * 12 // 5) / 9)).astype("<i2").tobytes()
    screen = io.StringIO()
    ending = await hold(
        Server(duplex.http),
        Recording(tone, 2400),
        tmp_path / "reply.wav",
        "server",
        Console(file=screen, width=200),
        20,
        frames=[JPEG, JPEG],
    )
    assert ending.spoke and "3 seen. " in screen.getvalue()


def test_frames_come_from_files_and_folders_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "shots"
    folder.mkdir()
    for number, name in enumerate(("b.PNG", "a.jpeg", "notes.txt")):
        (folder / name).write_bytes((b"\x89PNG\r\n\x1a\n" if name == "b.PNG" else JPEG) + bytes([number]))
    (tmp_path / "one.jpg").write_bytes(JPEG)
    assert [data[-1] for data in load_frames([tmp_path / "one.jpg", folder], Limits())] == [JPEG[-1], 1, 0]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("missing.png", None, "cannot read"),
        ("a.jpg", b"GIF89a", "neither a JPEG nor a PNG"),
        ("a.jpg", JPEG + bytes(204_800), "more than 204800"),
    ],
)
def test_what_is_no_picture_is_said_with_its_name(name: str, content: bytes | None, why: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFrames, match=why) as error:
        load_frames([tmp_path / name], Limits())
    assert name in str(error.value)


def test_a_folder_without_pictures_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadFrames, match="no JPEG or PNG file"):
        load_frames([tmp_path], Limits())


def test_the_command_shows_nothing_but_pictures(tmp_path: Path) -> None:
    write_wav(tmp_path / "question.wav", (8000 * np.sin(np.arange(RATE) / 9)).astype("<i2").tobytes())
    done = CliRunner().invoke(app, ["talk", str(tmp_path / "question.wav"), "--frames", str(tmp_path / "missing.jpg")])
    assert done.exit_code == 1
