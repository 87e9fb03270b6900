"""The deadline after which nothing is said before the store was asked."""

from __future__ import annotations

import asyncio

import pytest

from gateway.tenure import RETRY_S, Tenure
from session_store.errors import StoreUnavailable

TTL_MS, MARGIN_MS = 1000, 200


class Keeper:
    """Stands for the store, which answers as it is told to, on a clock that only tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked, self.away = 50.0, 0, 0
        monkeypatch.setattr("gateway.tenure.time.clock_gettime", lambda clock: self.now)
        self.tenure = Tenure(self.renew, TTL_MS, MARGIN_MS)

    async def renew(self) -> None:
        asked_at = self.tenure.now()
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            self.tenure.unanswered(asked_at)
            raise StoreUnavailable("away")
        self.tenure.renewed(asked_at)


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    return Keeper(monkeypatch)


async def test_it_holds_until_the_margin_of_what_was_asked_last(keeper: Keeper) -> None:
    keeper.now += 0.7
    assert keeper.tenure.holds()
    keeper.tenure.renewed(keeper.now)
    keeper.now += 0.7
    assert keeper.tenure.holds()
    keeper.tenure.renewed(keeper.now - 5)
    assert keeper.tenure.holds(), "an old answer takes nothing away"
    keeper.now += 0.2
    assert not keeper.tenure.holds()


@pytest.mark.behaviour("X6")
async def test_past_it_all_wait_for_one_answer(keeper: Keeper) -> None:
    keeper.now += 20
    await asyncio.gather(*(keeper.tenure.confirmed() for _ in range(5)))
    assert keeper.asked == 1 and keeper.tenure.holds()
    await keeper.tenure.confirmed()
    assert keeper.asked == 1


@pytest.mark.behaviour("X4")
async def test_a_store_that_is_away_can_give_the_session_to_nobody(keeper: Keeper) -> None:
    for _ in range(10):
        keeper.now += 0.5
        keeper.tenure.unanswered(keeper.now)
    assert keeper.tenure.holds() and keeper.asked == 0


@pytest.mark.behaviour("X6")
async def test_one_who_slept_is_not_content_with_a_store_that_is_away(keeper: Keeper) -> None:
    keeper.now += 20
    keeper.away = 2
    waiting = asyncio.create_task(keeper.tenure.confirmed())
    await asyncio.wait([waiting], timeout=RETRY_S / 2)
    assert not waiting.done() and not keeper.tenure.holds()
    await waiting
    assert keeper.asked == 3
    await keeper.tenure.close()


async def test_a_margin_that_leaves_nothing_is_refused(keeper: Keeper) -> None:
    with pytest.raises(ValueError, match="lease_margin_ms"):
        Tenure(keeper.renew, 500, 500)
