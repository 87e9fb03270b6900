"""What `parley costs` makes of a gateway and a service that really hold conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from parley.costs import Controller, Options
from tests.e2e.conftest import MakeHouse
from tests.support.house import House
from tests.support.pods_api import PodsApi, certificates, pod


@pytest.fixture(scope="module")
def small(make_house: MakeHouse) -> House:
    return make_house(services=("all",))


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[PodsApi]:
    with PodsApi(certificates(tmp_path / "certificates")) as served:
        yield served


async def test_costs_follow_conversations(small: House, api: PodsApi, tmp_path: Path) -> None:
    ports = {"gateway": small.gateway.ready["http"], "thinker": small.services["all"].ready["http"]}
    api.put(*(pod(name, [int(address.rpartition(":")[2])], component=name) for name, address in ports.items()))
    costs = Controller(Options("app.kubernetes.io/component in (gateway,thinker)", api.url, api.account(tmp_path / "account"), step=2))
    await costs.round()
    assert api.costs() == {}
    async with AsyncExitStack() as stack:
        for number in range(3):
            await (await stack.enter_async_context(connect(small.realtime))).recv()
            await costs.round()
            assert api.costs() == dict.fromkeys(ports, "4" if number == 2 else "2")
    while api.costs() != dict.fromkeys(ports, "0"):
        await costs.round()
    assert len(api.patched) <= 2 * 4
