"""Gateways that die and stages that are lost in a native conversation."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, until
from tests.failover.test_stages import holder, lose, placements, until_placed
from tests.native_e2e.conftest import PROFILE, STAGES
from tests.native_e2e.partner import Partner, check_begun, check_turn, check_units, recited, words
from tests.support.account import heard
from tests.support.house import House

QUICK = {**PATIENT, **PROFILE, "PARLEY_CLOSE_TIMEOUT_MS": "500", "PARLEY_PULSE_TIMEOUT_MS": "2500"}
UNITS = 12


@pytest.fixture(scope="module")
def doubled(make_house: MakeHouse) -> House:
    """Each stage a process of its own, and each twice; two gateways."""
    return make_house(services=STAGES, replicas=2, gateways=2, gateway=QUICK, stages=STAGES)


@pytest.fixture
async def spare(doubled: House) -> AsyncIterator[House]:
    """Whole, and afterwards whole again."""
    yield doubled
    for child in doubled.services.values():
        if child.process.poll() is not None:
            await asyncio.to_thread(doubled.restart_service, child.name)
    await doubled.wait_free()


async def in_mid_turn(line: Line, partner: Partner) -> str:
    """The model speaks for a while: the response's id."""
    await line.configure(model_options={"turn_units": UNITS})
    await partner.ask()
    response_id: str = (await line.until("response.created"))["response"]["id"]
    await line.until("response.output_audio.delta")
    return response_id


@pytest.mark.behaviour("X1", "E1")
async def test_a_takeover_in_mid_turn_loses_nothing_of_it(spare: House, dial: Dial) -> None:
    line = await dial(spare.realtimes[0], extended=True)
    partner = Partner(line)
    response_id = await in_mid_turn(line, partner)
    await asyncio.to_thread(spare.gateways[0].kill)
    try:
        line = await line.resume(spare.realtimes[0])
        back = line.of("session.resumed")[-1]
        assert back["input_samples"] <= partner.samples and back["input_frames"] == 0
        partner.line, partner.samples = line, back["input_samples"]
        async with partner.listening():
            done = await line.response_done(response_id)
            check_turn(line, done, 1, UNITS)
            await line.configure(model_options={"turn_units": 2})
            await partner.ask()
            again = (await line.until("response.created"))["response"]
            check_turn(line, await line.response_done(again["id"]), 2, 2)
        for stage in ("turn", "seer"):
            (account,) = heard(spare.accounts, line.session_id, stage)
            assert (account.lost, account.doubled, account.wrong) == (0, 0, 0)
        check_units(line)
        line.check_numbers()
    finally:
        await asyncio.to_thread(spare.restart_gateway, 1)


@pytest.mark.behaviour("X1", "T5")
async def test_a_turn_goes_on_in_silence_over_a_lost_connection(spare: House, dial: Dial) -> None:
    """Nobody is connected, and the model still speaks to its end."""
    line = await dial(spare.realtimes[0], extended=True)
    partner = Partner(line)
    response_id = await in_mid_turn(line, partner)
    line.vanish()
    await asyncio.sleep(1.0)
    line = await line.resume(spare.realtimes[1])
    check_turn(line, await line.response_done(response_id), 1, UNITS)
    check_units(line)
    line.check_numbers()


@pytest.mark.behaviour("X3")
async def test_a_lost_model_is_placed_anew_and_knows_what_was_said(spare: House, dial: Dial) -> None:
    line = await dial(spare.realtimes[0], extended=True)
    await line.configure(model_options={"turn_units": 2, "recite": True})
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        first = (await line.until("response.created"))["response"]
        await line.response_done(first["id"])
        before = placements(spare, "seer")
        await lose(spare, "seer", line)
        await until_placed(spare, "seer", before)
        await partner.ask()
        second = (await line.until("response.created"))["response"]
        done = await line.response_done(second["id"])
    assert " ".join(recited(line, done)).strip() == words(line.session_id, 1, 2)
    check_units(line)
    assert len(line.of("response.created")) == 2, "to what it only heard again it gave no answer"
    old, new = heard(spare.accounts, line.session_id, "seer")
    assert (new.first, new.lost, new.doubled, new.wrong) == (0, 0, 0, 0), "all of it was heard again"
    assert new.end > old.end and not line.of("error")
    line.check_numbers()


async def until_held(house: House, stage: str, line: Line) -> None:
    """By a process that lives."""

    async def is_held() -> bool:
        with contextlib.suppress(AssertionError):
            await holder(house, stage, line.session_id)
            return True
        return False

    await until(is_held)


async def says_much(line: Line, partner: Partner) -> None:
    """A turn of which the log keeps only the end, just over when this returns."""
    response_id = await in_mid_turn(line, partner)
    await line.response_done(response_id)
    await line.configure(model_options={"turn_units": 2, "recite": True})


async def check_told(line: Line, partner: Partner) -> None:
    """The next model says each word of that turn once: as text, or as a unit of the log."""
    await partner.ask()
    second = (await line.until("response.created"))["response"]
    before, logged = recited(line, await line.response_done(second["id"]))
    assert before and logged and f"{before} {logged}" == words(line.session_id, 1, UNITS)
    check_units(line)
    assert not line.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X3")
async def test_a_lost_model_knows_its_latest_units_and_what_was_before_as_text(spare: House, dial: Dial) -> None:
    line = await dial(spare.realtimes[0], extended=True)
    partner = Partner(line)
    async with partner.listening():
        await says_much(line, partner)
        before = placements(spare, "seer")
        await lose(spare, "seer", line)
        await until_placed(spare, "seer", before)
        await check_told(line, partner)


@pytest.mark.behaviour("X1", "X3")
async def test_the_log_of_units_outlives_its_gateway(spare: House, dial: Dial) -> None:
    line = await dial(spare.realtimes[0], extended=True)
    partner = Partner(line)
    async with partner.listening():
        await says_much(line, partner)
    await asyncio.to_thread(spare.gateways[0].kill)
    try:
        line = await line.resume(spare.realtimes[0])
        partner.line, partner.samples = line, line.of("session.resumed")[-1]["input_samples"]
        child = await holder(spare, "seer", line.session_id)
        await asyncio.to_thread(child.kill)
        await until_held(spare, "seer", line)
        async with partner.listening():
            await check_told(line, partner)
    finally:
        await asyncio.to_thread(spare.restart_gateway, 1)


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("stage", ["seer", "singer", "sounder"])
async def test_a_turn_whose_stage_dies_ends_as_failed_and_the_next_is_whole(spare: House, dial: Dial, stage: str) -> None:
    other, line = await dial(spare.realtimes[0]), await dial(spare.realtimes[0], extended=True)
    partner = Partner(line)
    response_id = await in_mid_turn(line, partner)
    before = placements(spare, stage)
    await lose(spare, stage, line)
    done = await line.response_done(response_id)
    assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_lost"
    check_begun(line, response_id)
    await until_placed(spare, stage, before)
    async with partner.listening():
        await line.configure(model_options={"turn_units": 2})
        await partner.ask()
        again = (await line.until("response.created"))["response"]
        check_turn(line, await line.response_done(again["id"]), 1 if stage == "seer" else 2, 2)
    bystander = Partner(other)
    async with bystander.listening():
        await bystander.ask()
        check_turn(other, (await other.until("response.done"))["response"], 1, 3)
    check_units(line, untold=3)
    line.check_numbers()


@pytest.mark.behaviour("X16")
async def test_a_model_leaves_a_draining_replica_between_two_turns(spare: House, dial: Dial) -> None:
    line = await dial(spare.realtimes[0], extended=True)
    await line.configure(model_options={"turn_units": 2, "recite": True})
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        first = (await line.until("response.created"))["response"]
        await line.response_done(first["id"])
        child = await holder(spare, "seer", line.session_id)
        child.signal(signal.SIGTERM)
        await asyncio.to_thread(child.process.wait, 20)
        await partner.ask()
        second = (await line.until("response.created"))["response"]
        done = await line.response_done(second["id"])
    assert " ".join(recited(line, done)).strip() == words(line.session_id, 1, 2)
    assert not line.of("error")
    line.check_numbers()
