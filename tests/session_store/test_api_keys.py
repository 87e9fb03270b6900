"""API keys in the store, client secrets, rates, and how many sessions one key may have."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from session_store import ApiKey, AtCapacity, ClientSecret, KeyTaken, Store, TenantLimit
from session_store.errors import StoreError, StoreUrlError
from session_store.keys import API_KEYS, rate_key, secret_key
from session_store.tokens import digest
from tests.session_store.helpers import beat, until

FAR = "2100-01-01T00:00:00Z"


def _key(key_id: str = "k1", text: str = "a key", **fields: object) -> ApiKey:
    return ApiKey(id=key_id, tenant="t1", sha256=digest(text), **fields)  # type: ignore[arg-type]


async def test_a_key_is_found_by_its_digest_and_by_its_id(store: Store) -> None:
    key = _key(not_after=FAR, max_sessions=3, opens_per_minute=7, tenant_max_sessions=9)
    await store.api_keys.put(key)
    assert await store.api_keys.find(digest("a key")) == key == await store.api_keys.get("k1")
    assert await store.api_keys.find(digest("another")) is None and await store.api_keys.get("k2") is None


async def test_a_revoked_key_stays_known_with_all_that_it_was(store: Store) -> None:
    key = _key(max_sessions=3)
    await store.api_keys.put(key)
    assert await store.api_keys.revoke("k1") and not await store.api_keys.revoke("k2")
    assert await store.api_keys.find(digest("a key")) == msgspec.structs.replace(key, revoked=True)


async def test_a_key_that_is_put_again_is_replaced_and_no_two_have_one_text(store: Store) -> None:
    await store.api_keys.put(_key())
    await store.api_keys.put(_key(text="its new text"))
    assert await store.api_keys.find(digest("a key")) is None
    with pytest.raises(KeyTaken) as taken:
        await store.api_keys.put(_key("k2", text="its new text"))
    assert taken.value.key_id == "k1"
    await store.api_keys.put(_key("k2"))
    assert [key.id for key in await store.api_keys.list()] == ["k1", "k2"]


@pytest.mark.behaviour("R1")
async def test_the_store_has_no_text_of_a_key_or_a_secret(store: Store, valkey_url: str) -> None:
    await store.api_keys.put(_key())
    await store.client_secrets.put(digest("ek_secret"), ClientSecret(key_id="k1", tenant="t1", session=b"x"), 60)
    async with Redis.from_url(valkey_url) as admin:
        kept = b""
        async for name in admin.scan_iter():
            held = await (admin.hgetall(name) if await admin.type(name) == b"hash" else admin.get(name))
            kept += name + repr(held).encode()
    assert b"a key" not in kept and b"ek_secret" not in kept and digest("a key").encode() in kept


async def test_what_another_program_wrote_in_its_own_way_is_an_error_of_the_store(store: Store, valkey_url: str) -> None:
    await store.api_keys.put(_key())
    await store.client_secrets.put(digest("ek_1"), ClientSecret(key_id="k1", tenant="t1"), 60)
    async with Redis.from_url(valkey_url) as admin:
        for text in (b'{"id": "k1", "note": "a text that is not said"}', b"\xff", b"[" * 100_000):
            await admin.hset(f"{API_KEYS}:by_id", "k1", text)
            for ask in (store.api_keys.find(digest("a key")), store.api_keys.get("k1"), store.api_keys.list()):
                with pytest.raises(StoreError, match="cannot be read") as failure:
                    await ask
                assert "not said" not in str(failure.value)
        await admin.set(secret_key(digest("ek_1")), b"\xc1")
        with pytest.raises(StoreError, match="cannot be read"):
            await store.client_secrets.find(digest("ek_1"))


@pytest.mark.parametrize(
    "url", ["redis://:pass/word@store:6379", "redis://me:pass#word@store", "rediss+cluster://:pass?word@store", "pass"]
)
async def test_a_url_that_is_none_is_not_quoted(url: str) -> None:
    with pytest.raises(StoreUrlError) as failure:
        await Store.open(url)
    assert "pass" not in str(failure.value).replace("password", "") and failure.value.__suppress_context__


async def test_a_secret_lives_as_long_as_it_may(store: Store, valkey_url: str) -> None:
    stands_for = ClientSecret(key_id="k1", tenant="t1", session=b"said")
    expires_s = await store.client_secrets.put(digest("ek_1"), stands_for, 1)
    async with Redis.from_url(valkey_url) as admin:
        assert 0 <= expires_s - (await admin.time())[0] <= 1
    assert await store.client_secrets.find(digest("ek_1")) == stands_for
    assert await store.client_secrets.find(digest("ek_2")) is None
    assert "said" not in repr(stands_for)

    async def forgotten() -> bool:
        return await store.client_secrets.find(digest("ek_1")) is None

    await until(forgotten)


@pytest.mark.behaviour("X14")
async def test_so_many_in_any_window_and_not_one_more(store: Store) -> None:
    """However they come: the count is exact, and the wait that is told is one after which there is room."""
    window_ms = 1_000
    taken = await asyncio.gather(*(store.rates.take("k1", "opens", 3, window_ms) for _ in range(5)))
    assert sorted(taken)[:3] == [0, 0, 0] and all(0 < wait <= window_ms for wait in sorted(taken)[3:])
    assert await store.rates.take("k2", "opens", 3, window_ms) == 0, "another's count is its own"
    await asyncio.sleep(max(taken) / 1000)
    assert await store.rates.take("k1", "opens", 3, window_ms) == 0


async def test_a_clock_that_was_set_back_shuts_nobody_out(store: Store, valkey_url: str) -> None:
    assert await store.rates.take("k1", "opens", 1) == 0
    async with Redis.from_url(valkey_url) as admin:
        await admin.zincrby(rate_key("k1", "opens"), 3600e6, (await admin.zrange(rate_key("k1", "opens"), 0, 0))[0])
    assert await store.rates.take("k1", "opens", 1) == 0
    assert 0 < await store.rates.take("k1", "opens", 1) <= 60_000


async def test_a_count_leaves_nothing_behind(store: Store, valkey_url: str) -> None:
    await store.rates.take("k1", "opens", 3, 50)

    async def gone() -> bool:
        async with Redis.from_url(valkey_url) as admin:
            return not await admin.keys("*k1*")

    await until(gone)


async def _open(store: Store, session: str, tenant: str, key: str, wait_ms: int = 0) -> None:
    await store.admission.reserve(session, tenant, ("asr",), 4, api_key=key, api_key_limit=2, wait_ms=wait_ms)


@pytest.mark.behaviour("X7", "X14")
async def test_a_key_has_as_many_sessions_as_it_may_and_its_tenant_as_many_as_it(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", slots=20))
    for session in ("a1", "a2"):
        await _open(store, session, "t1", "ka")
    with pytest.raises(TenantLimit):
        await _open(store, "a3", "t1", "ka")
    await _open(store, "a1", "t1", "ka")  # a repeat takes nothing
    for session in ("b1", "b2"):
        await _open(store, session, "t1", "kb")
    with pytest.raises(TenantLimit):
        await _open(store, "c1", "t1", "kc")
    await store.admission.release("a1")
    await _open(store, "a3", "t1", "ka")
    await _open(store, "d1", "t2", "")
    await _open(store, "d2", "t2", "")
    await _open(store, "d3", "t2", "")


@pytest.mark.behaviour("X7")
async def test_who_waits_with_a_key_that_has_enough_holds_nobody_up(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", slots=3))
    for session in ("a1", "a2"):
        await _open(store, session, "t1", "ka")
    await _open(store, "x", "t2", "kx")
    waits = asyncio.create_task(_open(store, "a3", "t1", "ka", wait_ms=3_000))
    later = asyncio.create_task(_open(store, "y", "t2", "kx", wait_ms=3_000))
    with pytest.raises(AtCapacity):
        await store.admission.reserve("z", "t3", ("asr",))
    await store.admission.release("x")
    await later
    assert not waits.done()
    await store.admission.release("a1")
    await waits
