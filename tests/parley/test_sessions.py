"""`parley sessions show`: from the id of a session to its stages, and nothing of what was said."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc

from session_store import Commit, Placement, Store
from session_store.errors import SessionClosed

SESSION = "sess_1"
SAID = b"the words of a conversation"
HELD = pb.HeldSession(session_id=SESSION, stage="asr", placement=7, attachment=9, epoch=3, attached=True, waiting_appends=4, kept_outputs=2)


class Inspected(stage_pb2_grpc.StageServicer):
    """A replica that holds the session at `asr` alone."""

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.InspectResponse:
        return pb.InspectResponse(replica_id="thinker-1", sessions=[HELD] if request.session_id == SESSION else [])


@pytest.fixture
async def replica() -> AsyncIterator[str]:
    server = grpc.aio.server()
    stage_pb2_grpc.add_StageServicer_to_server(Inspected(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def shown(url: str, session_id: str, what: str = "show") -> tuple[int, str]:
    command = (sys.executable, "-m", "parley", "sessions", what, session_id)
    ran = await asyncio.to_thread(
        subprocess.run, command, env={**os.environ, "PARLEY_REDIS_URL": url}, capture_output=True, text=True, timeout=60, check=False
    )
    return ran.returncode, ran.stdout + ran.stderr


async def test_a_session_is_shown_with_its_gateway_and_what_each_stage_says(store: Store, valkey_url: str, replica: str) -> None:
    places = {
        "asr": Placement("thinker-1", replica, 7),
        "llm": Placement("thinker-1", replica, 8),
        "vocoder": Placement("vocoder-1", "127.0.0.1:1", 9),
    }
    lease = await store.records.create(SESSION, "gw_1", "h1", "acme", "embedded", places)
    await store.records.commit(Commit(lease, 1, [(SAID, SAID)], SAID, {"items": SAID}))
    await store.registry.beat_gateway("gw_1", "10.0.0.1:8080")
    code, said = await shown(valkey_url, SESSION)
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert code == 0
    assert lines["state"].split() == ["state", "attached"]
    assert "tenant acme, profile embedded" in lines["of"]
    assert f"gw_1, at 10.0.0.1:8080; attachment {lease.attachment}" in lines["gateway"]
    assert "last 1, kept from 1 on" in lines["events"]
    assert "placement 7: attached, attachment 9, epoch 3, 4 appends wait, 2 outputs kept" in lines["asr"]
    assert lines["llm"].endswith("placement 8: not held")
    assert "vocoder-1 at 127.0.0.1:1, gone" in lines["vocoder"] and "does not answer (UNAVAILABLE)" in lines["vocoder"]
    assert SAID.decode() not in said


async def test_a_session_that_is_over_says_why(store: Store, valkey_url: str) -> None:
    lease = await store.records.create(SESSION, "gw_1", "h1", "acme", "embedded", {})
    await store.records.close(lease, "idle_timeout")
    code, said = await shown(valkey_url, SESSION)
    assert (code, "closed idle_timeout" in said, "gw_1, gone" in said) == (0, True, True)


async def test_nobody_knows_such_a_session(store: Store, valkey_url: str) -> None:
    assert await shown(valkey_url, "sess_2") == (1, "sessions: the session has no record\n")
    code, said = await shown(valkey_url, "a b")
    assert (code, len(said.splitlines())) == (1, 1)


async def test_an_operator_ends_a_session_for_good(store: Store, valkey_url: str) -> None:
    lease = await store.records.create(SESSION, "gw_1", "h1", "acme", "embedded", {})
    code, said = await shown(valkey_url, SESSION, "end")
    assert code == 0 and "closing" in said
    with pytest.raises(SessionClosed) as closed:
        await store.records.commit(Commit(lease, 1, [(SAID, SAID)], SAID, {"items": SAID}))
    assert closed.value.reason == "ended_by_operator"
    code, said = await shown(valkey_url, SESSION, "end")
    assert "closing" not in said.splitlines()[-1] and (await shown(valkey_url, "sess_2", "end"))[0] == 1
