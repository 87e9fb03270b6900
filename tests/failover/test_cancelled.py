"""The upgrade handler is cancelled at each await in turn: nothing is left behind, and a session that was resumed is not lost."""

from __future__ import annotations

import asyncio
import gc
import json
import types
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Generator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from gateway.access.principal import Principal
from gateway.actor import Actor
from gateway.app import create_app
from gateway.hub import Hub, Seat
from gateway.live import LiveSession
from gateway.profile_file import load_profile_file
from gateway.settings import Settings
from gateway.stages import StageLink
from session_store import Store, StoreSettings
from tests.e2e.conftest import MakeHouse
from tests.failover.line import until
from tests.support.house import House

PROFILE = Path(__file__).parents[2] / "profiles" / "embedded.yaml"
GRACE_MS = 1500


class Peer:
    """The other end of one upgrade, as the ASGI server shows it: it vanishes when it has heard `words` events, or says goodbye."""

    def __init__(self, app: FastAPI, query: str = "", *, words: int = 1, code: int = 1006) -> None:
        self._app, self._words, self._code = app, words, code
        self.heard: list[dict[str, Any]] = []
        self.status = 101
        self._enough = asyncio.Event()
        self._connected = False
        self._scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": "/v1/realtime",
            "raw_path": b"/v1/realtime",
            "query_string": query.encode(),
            "root_path": "",
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "subprotocols": [],
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }

    def handler(self) -> Coroutine[Any, Any, None]:
        return self._app(self._scope, self._receive, self._send)  # type: ignore[arg-type, return-value]

    async def run(self) -> Peer:
        await self.handler()
        return self

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._connected:
            self._connected = True
            return {"type": "websocket.connect"}
        await self._enough.wait()
        return {"type": "websocket.disconnect", "code": self._code}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)
        if message["type"] == "websocket.send":
            self.heard.append(json.loads(message["text"]))
            if len(self.heard) >= self._words:
                self._enough.set()
        elif message["type"] == "websocket.http.response.start":
            self.status = message["status"]

    @property
    def session(self) -> dict[str, Any]:
        found: dict[str, Any] = next(event["session"] for event in self.heard if event["type"] == "session.created")
        return found


class Steps:
    """Runs a handler and cancels it at the nth await of its own, or of any task that was begun meanwhile; counts them."""

    def __init__(self, at: int | None) -> None:
        self._at = at
        self._task: asyncio.Task[None] | None = None
        self.count = 0

    async def run(self, handler: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, work, **options: asyncio.Task(self._stepped(work), loop=loop, **options))
        try:
            self._task = asyncio.create_task(handler)
            await asyncio.wait([self._task])
        finally:
            loop.set_task_factory(None)
        assert self._task.cancelled() or self._task.exception() is None

    async def _stepped(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self._steps(work)

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        throw: BaseException | None = None
        while True:
            try:
                waits_for = work.send(None) if throw is None else work.throw(throw)
            except StopIteration as end:
                return end.value
            throw = None
            self.count += 1
            if self.count == self._at and self._task is not None:
                self._task.cancel()
            try:
                yield waits_for
            except BaseException as thrown:
                throw = thrown


async def run_cancelled(peer: Peer, at: int | None) -> int:
    """Returns how many awaits there were until the handler returned."""
    steps = Steps(at)
    await steps.run(peer.handler())
    return steps.count


@pytest.fixture(scope="module")
def stages(make_house: MakeHouse) -> House:
    """Stages and a store; the gateway runs here."""
    return make_house(services=("all",), gateways=0)


@pytest.fixture
async def hub(stages: House) -> AsyncIterator[Hub]:
    settings = Settings(
        redis_url=stages.valkey.url, profile=PROFILE, grace_ms=GRACE_MS, reap_interval_s=0.3, gateway_beat_s=0.3, queue_wait_ms=300
    )
    store = await Store.open(stages.valkey.url, StoreSettings(redis_timeout_ms=3000, lease_ttl_ms=1500, grace_ms=GRACE_MS))
    made = Hub(settings, load_profile_file(PROFILE), store)
    await made.start("127.0.0.1:1")
    yield made
    await made.drain()
    await made.stop()


def left_over() -> dict[str, int]:
    """Objects of sessions that are still there."""
    gc.collect()
    kinds = (Actor, LiveSession, StageLink, Seat)
    counts = Counter(type(each) for each in gc.get_objects())
    return {kind.__name__: counts[kind] for kind in kinds if counts[kind]}


async def all_gone(stages: House, hub: Hub) -> None:
    """No slot is taken, no stage holds anything, and nothing of any session is in memory."""
    await stages.wait_free()

    async def forgotten() -> bool:
        return not hub._sessions and not left_over()

    await until(forgotten)


@pytest.mark.behaviour("L7", "K30", "K32", "R7")
async def test_an_open_that_is_cancelled_anywhere_leaves_nothing(stages: House, hub: Hub) -> None:
    app = create_app(hub)
    count = await run_cancelled(Peer(app), None)
    assert count > 20
    for at in range(1, count + 1):
        await run_cancelled(Peer(app), at)
    await all_gone(stages, hub)


@pytest.mark.behaviour("R10", "R4", "L3")
async def test_a_resume_that_is_cancelled_anywhere_loses_nothing(stages: House, hub: Hub) -> None:
    app = create_app(hub)

    def query(session: dict[str, Any]) -> str:
        return f"resume={session['id']}&resume_token={session['resume_token']}&last_event_id=event_x_1"

    first = await Peer(app).run()
    count = await run_cancelled(Peer(app, query(first.session)), None)
    assert count > 20
    for at in range(1, count + 1):
        begun = await Peer(app).run()
        await run_cancelled(Peer(app, query(begun.session)), at)
        again = await Peer(app, query(begun.session), code=1000).run()
        assert (again.status, again.session["id"]) == (101, begun.session["id"]), f"cancelled at await {at} of {count}"
    await all_gone(stages, hub)


@pytest.mark.behaviour("L6", "X7")
async def test_who_is_cancelled_in_the_queue_leaves_it(stages: House, hub: Hub) -> None:
    """All places are taken: whoever waits and goes away takes none when one comes free."""
    app = create_app(hub)
    full = [await hub.open(Principal()) for _ in range(64)]
    count = await run_cancelled(peer := Peer(app), None)
    assert peer.status == 503
    for at in range(1, count, max(1, count // 12)):
        await run_cancelled(Peer(app), at)
    await asyncio.gather(*(hub.abandon(opened) for opened in full))
    await stages.wait_free()
