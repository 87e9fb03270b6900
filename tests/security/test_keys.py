"""Who is let in: keys that are missing, wrong, revoked, expired, used too much; and pages from elsewhere. All before the upgrade."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection

from gateway.wire.handshake import digest_key
from session_store import ApiKey, Store, StoreSettings
from session_store.keys import API_KEYS, POOL
from tests.e2e.conftest import MakeHouse, Talk
from tests.failover.conftest import PATIENT
from tests.failover.line import Line, until
from tests.security.conftest import (
    BRISK,
    EXPIRED,
    GOOD,
    NARROW,
    OTHER,
    REVOKED,
    SECRETS,
    STORED,
    WRONG,
    Keys,
    Knock,
    Refused,
    bearer,
    entry,
)
from tests.support.house import House

CACHE_MS = 400
OPENS = 3


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(
        tmp_path_factory.mktemp("keys") / "keys.json",
        entry(GOOD),
        entry(OTHER, "other"),
        entry(REVOKED, revoked=True),
        entry(EXPIRED, not_after="2020-01-01T00:00:00Z"),
        entry(NARROW, max_sessions=1),
        entry(BRISK, opens_per_minute=OPENS),
    )


@pytest.fixture(scope="module")
def house(make_house: MakeHouse, keys: Keys) -> House:
    """Two gateways that ask for keys, from a file and from the store."""
    env = {
        "PARLEY_KEYS_FILE": str(keys.path),
        "PARLEY_KEYS_IN_REDIS": "1",
        "PARLEY_KEYS_CACHE_MS": str(CACHE_MS),
        "PARLEY_GRACE_MS": "3000",
    }
    return make_house(services=("all",), gateways=2, gateway=env)


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No log holds a key, whatever was done with it."""
    yield
    if "house" in request.fixturenames:
        made: House = request.getfixturevalue("house")
        for log in (child.log.read_text() for child in (*made.gateways, *made.services.values())):
            assert not [key for key in SECRETS if key in log or digest_key(key) in log]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "missing"),
        ({"additional_headers": {"Authorization": "Basic abc"}}, "missing"),
        (bearer(WRONG), "unknown"),
        (bearer(REVOKED), "revoked"),
        (bearer(EXPIRED), "expired"),
        (bearer("ek_nobody"), "expired"),
        ({"subprotocols": ["realtime", f"openai-insecure-api-key.{WRONG}"]}, "unknown"),
    ],
)
async def test_who_has_no_good_key_is_not_let_in_and_holds_nothing(house: House, knock: Knock, options: dict, why: str) -> None:  # type: ignore[type-arg]
    before = house.metric("parley_gateway_access_refusals_total", why=why)
    refused = await knock(house.realtime, **options)
    assert refused.told == (401, "invalid_api_key") and refused.headers["WWW-Authenticate"] == "Bearer"
    assert house.metric("parley_gateway_access_refusals_total", why=why) == before + 1
    assert await house.held() == [] and not any((await house.used()).values())


async def test_a_refusal_does_not_tell_what_is_wrong_with_a_key(house: House, knock: Knock) -> None:
    told = [(await knock(house.realtime, **bearer(key))).error for key in (WRONG, REVOKED, EXPIRED)]
    assert told[0] == told[1] == told[2]


async def test_a_key_in_a_subprotocol_lets_in_and_is_never_sent_back(house: House, knock: Knock) -> None:
    for offered, selected in (
        (["realtime", f"openai-insecure-api-key.{GOOD}", "openai-beta.realtime-v1"], "realtime"),
        ([f"openai-insecure-api-key.{GOOD}", "realtime"], "realtime"),
    ):
        socket = await knock(house.realtime, subprotocols=offered)
        assert isinstance(socket, ClientConnection) and socket.subprotocol == selected
        assert socket.response is not None and GOOD not in str(socket.response.headers)


@pytest.mark.parametrize(
    ("origin", "let_in"), [("https://evil.example", False), ("null", False), ("http://{host}", True), ("http://{host}.evil.example", False)]
)
async def test_a_page_from_elsewhere_is_not_let_in_even_with_a_key(house: House, knock: Knock, origin: str, let_in: bool) -> None:
    answer = await knock(house.realtime, **bearer(GOOD, Origin=origin.format(host=house.gateway.ready["http"])))
    if let_in:
        assert isinstance(answer, ClientConnection)
    else:
        assert answer.told == (403, "origin_not_allowed")


@pytest.mark.behaviour("X14")
async def test_a_key_has_as_many_sessions_as_it_may(house: House, knock: Knock) -> None:
    first = await knock(house.realtimes[0], **bearer(NARROW))
    refused = await knock(house.realtimes[1], **bearer(NARROW))
    assert refused.told == (429, "tenant_limit") and int(refused.headers["Retry-After"]) >= 1
    assert isinstance(await knock(house.realtimes[1], **bearer(GOOD)), ClientConnection), "another key of the tenant"
    await first.close()

    async def has_a_place_again() -> bool:
        return not isinstance(await knock(house.realtimes[1], **bearer(NARROW)), Refused)

    await until(has_a_place_again)


@pytest.mark.behaviour("X14")
async def test_two_gateways_share_the_count_of_a_keys_opens(house: House, knock: Knock) -> None:
    for nth in range(OPENS):
        assert isinstance(await knock(house.realtimes[nth % 2], **bearer(BRISK)), ClientConnection)
    for url in house.realtimes:
        refused = await knock(url, **bearer(BRISK))
        assert refused.told == (429, "rate_limit_exceeded") and 1 <= int(refused.headers["Retry-After"]) <= 60
    assert isinstance(await knock(house.realtime, **bearer(GOOD)), ClientConnection)


@pytest.mark.behaviour("X14")
async def test_what_holds_for_keys_that_say_nothing_themselves(make_house: MakeHouse, knock: Knock) -> None:
    """A session that was refused its place was asked for all the same."""
    env = {"PARLEY_API_KEYS": GOOD, "PARLEY_KEY_MAX_SESSIONS": "2", "PARLEY_OPENS_PER_MINUTE": "3", "PARLEY_QUEUE_WAIT_MS": "0"}
    house = make_house(services=("all",), gateway=env)
    for _ in range(2):
        assert isinstance(await knock(house.realtime, **bearer(GOOD)), ClientConnection)
    assert (await knock(house.realtime, **bearer(GOOD))).told == (429, "tenant_limit")
    assert (await knock(house.realtime, **bearer(GOOD))).told == (429, "rate_limit_exceeded")


async def test_a_key_of_the_file_that_is_revoked_opens_and_resumes_nothing_and_ends_what_it_began(house: House, keys: Keys) -> None:
    ended = await Line.dial(house.realtime, extended=True, additional_headers={"Authorization": f"Bearer {GOOD}"})
    stays = await Line.dial(house.realtime, additional_headers={"Authorization": f"Bearer {OTHER}"})
    keys.change(GOOD, revoked=True)
    try:
        with pytest.raises(Exception, match="401"):
            await Line.dial(house.realtime, additional_headers={"Authorization": f"Bearer {GOOD}"})
        assert await ended.until_closed() == (1008, "api_key_revoked")
        with pytest.raises(Exception, match="401"):
            await ended.resume(house.realtimes[1])
    finally:
        keys.change(GOOD, revoked=False)
    assert (await stays.reply("hello", instructions="words=1"))["status"] == "completed"
    again = await Line.dial(house.realtime, additional_headers={"Authorization": f"Bearer {GOOD}"})
    await asyncio.gather(stays.hang_up(), again.hang_up())


async def test_a_key_that_expires_opens_nothing_new_and_lets_end_what_it_began(house: House, keys: Keys, talk: Talk) -> None:
    began = await talk(house, **bearer(OTHER))
    keys.change(OTHER, not_after="2020-01-01T00:00:00Z")
    try:
        with pytest.raises(Exception, match="401"):
            await talk(house, **bearer(OTHER))
        assert (await began.reply())["status"] == "completed"
    finally:
        keys.change(OTHER, not_after="2100-01-01T00:00:00Z")


async def test_a_file_that_breaks_leaves_its_keys_as_they_were(house: House, keys: Keys, knock: Knock) -> None:
    keys.path.write_text("- no [ list")
    try:
        assert isinstance(await knock(house.realtime, **bearer(GOOD)), ClientConnection)
        assert (await knock(house.realtime, **bearer(WRONG))).status == 401
        assert house.metric("parley_gateway_key_file_reads_total", outcome="failed") >= 1
    finally:
        keys.write()


@pytest.mark.behaviour("X14")
async def test_a_key_of_the_store_is_good_at_once_and_revoked_within_the_cache_time(house: House, knock: Knock) -> None:
    assert (await knock(house.realtime, **bearer(STORED))).status == 401
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
        await store.api_keys.put(ApiKey(id="stored", tenant="acme", sha256=digest_key(STORED)))
        running = await knock(house.realtime, **bearer(STORED))
        assert isinstance(running, ClientConnection)
        await store.api_keys.revoke("stored")
    await asyncio.sleep(CACHE_MS / 1000)
    assert (await knock(house.realtime, **bearer(STORED))).told == (401, "invalid_api_key")
    await asyncio.wait_for(running.wait_closed(), 10)
    assert running.close_code == 1008


async def test_a_store_that_is_away_lets_nobody_in_by_a_key_it_has(make_house: MakeHouse, knock: Knock) -> None:
    house = make_house(services=("all",), gateway={"PARLEY_KEYS_IN_REDIS": "1"})
    house.valkey.pause()
    try:
        refused = await knock(house.realtime, **bearer(GOOD))
    finally:
        house.valkey.resume()
    assert refused.told == (503, "stages_unavailable")


async def test_a_key_of_the_file_that_is_revoked_ends_its_sessions_while_the_store_is_away(house: House, keys: Keys, knock: Knock) -> None:
    """Also beside sessions whose keys only the store could tell of."""
    stored = ApiKey(id="away", tenant="acme", sha256=digest_key("away-key-of-a-test"))
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
        await store.api_keys.put(stored)
    beside = await knock(house.realtime, **bearer("away-key-of-a-test"))
    ended = await knock(house.realtime, **bearer(OTHER))
    house.valkey.pause()
    try:
        keys.change(OTHER, revoked=True)
        await asyncio.wait_for(ended.wait_closed(), 10)
        assert ended.close_code == 1008 and isinstance(beside, ClientConnection) and beside.close_code is None
    finally:
        house.valkey.resume()
        keys.change(OTHER, revoked=False)


async def test_what_cannot_be_read_of_a_key_costs_no_beat(make_house: MakeHouse, knock: Knock, tmp_path: Path) -> None:
    """Neither an entry of the store nor a file: the gateway stays known, its sessions go on, and who comes hears a typed refusal."""
    keys = Keys(tmp_path / "keys.json", entry(GOOD))
    env = {"PARLEY_KEYS_FILE": str(keys.path), "PARLEY_KEYS_IN_REDIS": "1", "PARLEY_KEYS_CACHE_MS": "0"}
    house = make_house(services=("all",), gateway=env)
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store, Redis.from_url(house.valkey.url) as admin:
        await store.api_keys.put(ApiKey(id="stored", tenant="acme", sha256=digest_key(STORED)))
        running = await knock(house.realtime, **bearer(STORED))
        await admin.hset(f"{API_KEYS}:by_id", "stored", '{"id": "stored", "from": "a newer version"}')
        keys.path.write_text("[" * 900 + "]" * 900)
        assert (await knock(house.realtime, **bearer(STORED))).told == (503, "stages_unavailable")
        assert isinstance(await knock(house.realtime, **bearer(GOOD)), ClientConnection)

        async def was_looked_at() -> bool:
            return "a key cannot be read" in house.gateway.log.read_text()

        await until(was_looked_at)
        before = await admin.zrange(f"{POOL}:gateways", 0, -1, withscores=True)

        async def beats() -> bool:
            return await admin.zrange(f"{POOL}:gateways", 0, -1, withscores=True) > before

        await until(beats)
    assert running.close_code is None


FAILURES = 3


@pytest.mark.behaviour("X14")
async def test_keys_that_are_guessed_all_at_once_are_no_more(make_house: MakeHouse, knock: Knock) -> None:
    env = {**PATIENT, "PARLEY_KEYS_IN_REDIS": "1", "PARLEY_FAILED_AUTH_PER_MINUTE": str(FAILURES)}
    house = make_house(services=("all",), gateway=env)
    told = await asyncio.gather(*(knock(house.realtime, **bearer(f"{WRONG}-{nth}")) for nth in range(30)))
    assert sorted(each.status for each in told) == [401] * FAILURES + [429] * (30 - FAILURES)


@pytest.mark.parametrize("begun", [b"GET /" + b"x", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: x", b"GET /health HTTP/1.1\r\n"])
async def test_the_head_of_a_request_has_an_end(house: House, begun: bytes) -> None:
    """Who never ends it is hung up on, and costs no memory."""
    host, _, port = house.gateway.ready["http"].rpartition(":")
    piece = b"x" * 65536 if begun.endswith(b"x") else b"X-Another: header\r\n" * 3000

    def send() -> int:
        sent = 0
        with socket.create_connection((host, int(port)), timeout=10) as line, contextlib.suppress(ConnectionError):
            line.sendall(begun)
            while sent < 64 * 1024 * 1024:
                line.sendall(piece)
                sent += len(piece)
        return sent

    before = house.gateway.rss_bytes()
    assert await asyncio.to_thread(send) < 64 * 1024 * 1024
    assert house.gateway.rss_bytes() - before < 16 * 1024 * 1024


async def test_what_is_served_without_a_key_is_what_is_meant_to_be(house: House) -> None:
    for path in ("/", "/health", "/v1/models", "/v1/realtime/capabilities", "/metrics"):
        assert house.get(path)[0] == 200
    for path in ("/openapi.json", "/docs", "/redoc", "/v1/realtime"):
        assert house.get(path)[0] == 404


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("trusted", ["127.0.0.1", ""])
async def test_an_address_may_show_so_many_bad_keys_and_then_nobody_from_there_is_let_in(
    make_house: MakeHouse, knock: Knock, trusted: str
) -> None:
    """Behind a proxy that is trusted it is the client's address, else that of whoever holds the connection, whatever is claimed."""
    env = {"PARLEY_API_KEYS": GOOD, "PARLEY_FAILED_AUTH_PER_MINUTE": str(FAILURES), "PARLEY_TRUSTED_PROXIES": trusted}
    house = make_house(services=("all",), gateway=env)
    for nth in range(FAILURES):
        claimed = "198.51.100.1" if trusted else f"198.51.100.{nth}"
        assert (await knock(house.realtime, **bearer(WRONG, **{"X-Forwarded-For": claimed}))).status == 401
    refused = await knock(house.realtime, **bearer(GOOD, **{"X-Forwarded-For": "198.51.100.1"}))
    assert refused.told == (429, "rate_limit_exceeded") and 1 <= int(refused.headers["Retry-After"]) <= 60
    another = await knock(house.realtime, **bearer(GOOD, **{"X-Forwarded-For": "198.51.100.9"}))
    assert isinstance(another, ClientConnection) if trusted else another.status == 429


async def test_listed_origins_and_a_port_for_operators(make_house: MakeHouse, knock: Knock, tmp_path: Path) -> None:
    """With a list the gateway's own host is not on it, unless it is listed, too."""
    (tmp_path / "keys").write_text(f"{GOOD}\n")
    env = {
        "PARLEY_ALLOWED_ORIGINS": "https://app.example",
        "PARLEY_METRICS_BIND": "127.0.0.1:0",
        "PARLEY_API_KEYS_FILE": str(tmp_path / "keys"),
    }
    house = make_house(services=("all",), gateway=env)
    assert isinstance(await knock(house.realtime, **bearer(GOOD, Origin="https://app.example")), ClientConnection)
    own = f"http://{house.gateway.ready['http']}"
    assert (await knock(house.realtime, **bearer(GOOD, Origin=own))).told == (403, "origin_not_allowed")
    assert house.get("/metrics")[0] == 404 and house.get("/health")[0] == 200
    house.gateway.ready["http"] = house.gateway.ready["metrics"]
    assert house.metric("parley_gateway_opens_total", outcome="accepted") == 1
    assert house.get("/health")[0] == 200 and house.get("/v1/models")[0] == 404
