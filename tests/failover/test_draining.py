"""A stage replica is told to leave under load: every conversation moves between two turns, and the process goes when it is empty."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, until
from tests.failover.test_stages import holder
from tests.support.account import heard, hush, voice
from tests.support.checks import check_whole
from tests.support.house import STAGES, House
from tests.support.process import Child

DRAIN_S = 120
EXIT_S = 60
RATE = 24_000
QUICK = {**PATIENT, "PARLEY_GRACE_MS": "1000", "PARLEY_REAP_INTERVAL_S": "0.3", "PARLEY_STAY_MS": "200"}
HEARS = {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}}


@pytest.fixture(scope="module")
def doubled(make_house: MakeHouse) -> House:
    """Each stage a process of its own, and each twice; none goes before it is empty."""
    patient = {name: {"PARLEY_DRAIN_S": str(DRAIN_S)} for name in STAGES}
    return make_house(services=STAGES, replicas=2, gateway=QUICK, service_env=patient)


@pytest.fixture
async def spare(doubled: House) -> AsyncIterator[House]:
    """Whole, and afterwards whole again."""
    yield doubled
    for child in doubled.services.values():
        if child.process.poll() is not None:
            await asyncio.to_thread(doubled.restart_service, child.name)
    await doubled.wait_free()


class Talker:
    """A client that never stops sending: what it says, sample by sample, is known to the stages' accounts."""

    def __init__(self, line: Line) -> None:
        self.line, self.sent, self.turns = line, 0, 0
        self.began = asyncio.Event()
        self._voiced_until, self._over = 0, False

    async def talk(self, enough: asyncio.Event) -> None:
        """Turn after turn until it is enough, and one more."""
        await self.line.configure(audio={"input": HEARS}, instructions="words=2")
        sending = asyncio.create_task(self._send())
        try:
            while not enough.is_set():
                await self._turn()
                self.began.set()
            await self._turn()
        finally:
            self._over = True
            await sending

    async def _turn(self) -> None:
        self._voiced_until, self.turns = self.sent + RATE * 400 // 1000, self.turns + 1
        started = await self.line.until("input_audio_buffer.speech_started")
        stopped = await self.line.until("input_audio_buffer.speech_stopped")
        words = await self.line.until("conversation.item.input_audio_transcription.completed")
        assert words["transcript"] == f"heard {stopped['audio_end_ms'] - started['audio_start_ms']} ms"
        check_whole(self.line, (await self.line.until("response.done"))["response"], 2)

    async def _send(self) -> None:
        """As fast as one talks."""
        while not self._over:
            signal_of = voice if self.sent < self._voiced_until else hush
            await self.line.append(signal_of(self.line.session_id, self.sent, 480).tobytes())
            self.sent += 480
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Every turn was one turn and was answered."""
        line = self.line
        assert len(line.of("input_audio_buffer.speech_started")) == len(line.of("input_audio_buffer.speech_stopped")) == self.turns
        assert len(line.of("response.done")) == self.turns and not line.of("error")
        line.check_numbers()

    def check_heard(self, house: House, stage: str) -> None:
        """No sample was lost or doubled within a placement, and each went on from what the one before had."""
        placements = heard(house.accounts, self.line.session_id, stage)
        assert all((each.lost, each.doubled, each.wrong) == (0, 0, 0) for each in placements)
        assert all(later.first <= earlier.end for earlier, later in pairwise(placements))
        assert placements[0].first == 0 and placements[-1].end > self.sent - RATE


async def speaking(house: House, dial: Dial, count: int) -> tuple[list[Talker], asyncio.Event, asyncio.Task[list[None]]]:
    """So many conversations, each in full swing; the event ends them, the task is them all."""
    talkers, enough = [Talker(await dial(house.realtime)) for _ in range(count)], asyncio.Event()
    talking = asyncio.ensure_future(asyncio.gather(*(talker.talk(enough) for talker in talkers)))
    begun = asyncio.ensure_future(asyncio.gather(*(talker.began.wait() for talker in talkers)))
    await asyncio.wait([talking, begun], return_when=asyncio.FIRST_COMPLETED)
    if talking.done():
        begun.cancel()
        talking.result()
    return talkers, enough, talking  # type: ignore[return-value]


def moves(house: House, stage: str, outcome: str) -> float:
    return house.metric("parley_gateway_moves_total", stage=stage, outcome=outcome)


async def gone(child: Child) -> int:
    return await asyncio.to_thread(child.wait, EXIT_S)


@pytest.mark.behaviour("X5", "X16")
@pytest.mark.parametrize("stage", STAGES)
async def test_a_replica_leaves_under_load_and_nobody_hears_it(spare: House, dial: Dial, stage: str) -> None:
    before = moves(spare, stage, "moved")
    talkers, enough, talking = await speaking(spare, dial, 4)
    child = spare.services[stage]
    held = len(await spare.held(child.name))
    assert 0 < held < len(talkers), "both replicas are in use"
    child.signal(signal.SIGTERM)
    assert await gone(child) == 0, "it went by itself"
    enough.set()
    await talking
    assert moves(spare, stage, "moved") - before == held
    for talker in talkers:
        talker.check()
        if stage in ("turn", "asr"):
            talker.check_heard(spare, stage)


@pytest.mark.behaviour("X5")
@pytest.mark.parametrize("stage", ["asr", "vocoder"])
async def test_a_stage_stays_while_no_other_replica_has_room_and_leaves_when_one_comes(spare: House, dial: Dial, stage: str) -> None:
    other = spare.services[f"{stage}-2"]
    other.signal(signal.SIGTERM)
    assert await gone(other) == 0
    talkers, enough, talking = await speaking(spare, dial, 2)
    child, stayed = spare.services[stage], moves(spare, stage, "stayed")
    child.signal(signal.SIGTERM)

    async def asked_in_vain() -> bool:
        return await asyncio.to_thread(moves, spare, stage, "stayed") >= stayed + 4

    await until(asked_in_vain, 30)
    assert child.process.poll() is None and len(await spare.held(child.name)) == len(talkers)
    await asyncio.to_thread(other.start)
    await asyncio.to_thread(other.wait_ready)
    assert await gone(child) == 0
    enough.set()
    await talking
    for talker in talkers:
        talker.check()


@pytest.mark.behaviour("X5", "L5")
async def test_who_cannot_be_opened_elsewhere_goes_on_where_it_is(spare: House, dial: Dial) -> None:
    """There is a place, but the engine there fails: back to the old one, as often as it takes."""
    line = await dial(spare.realtime)
    child, stayed = await holder(spare, "talker", line.session_id), moves(spare, "talker", "stayed")
    with spare.fault("talker-open"):
        child.signal(signal.SIGTERM)

        async def failed_twice() -> bool:
            return await asyncio.to_thread(moves, spare, "talker", "stayed") >= stayed + 2

        await until(failed_twice, 30)
        for _ in range(3):
            check_whole(line, await line.reply("hello", instructions="words=2"), 2)
        # the other replica may have it, too, for the moment in which it fails to open it
        assert await spare.held(child.name) == [("talker", line.session_id)] and child.process.poll() is None
    assert await gone(child) == 0
    check_whole(line, await line.reply("hello", instructions="words=2"), 2)
    assert not line.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X5", "X3")
async def test_a_reply_that_outlasts_the_drain_ends_by_type_and_the_next_works(spare: House, dial: Dial) -> None:
    await asyncio.to_thread(spare.services["vocoder"].stop)
    await asyncio.to_thread(spare.services["vocoder-2"].stop)
    brief = spare.services["vocoder"]
    brief.start({"PARLEY_DRAIN_S": "0.5"})
    await asyncio.to_thread(brief.wait_ready)
    await asyncio.to_thread(spare.wait_registered)
    line = await dial(spare.realtime)
    # before the reply begins, which would be over if a slow machine started a process meanwhile
    await asyncio.to_thread(spare.restart_service, "vocoder-2")
    made = await line.ask("hello", instructions="words=60")
    await line.until("response.output_audio.delta")
    assert (await holder(spare, "vocoder", line.session_id)) is brief
    brief.signal(signal.SIGTERM)
    done = await line.response_done(made["id"])
    assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_lost"
    check_whole(line, await line.reply("again", instructions="words=2"), 2)
    assert await gone(brief) == 0
    line.check_numbers()
