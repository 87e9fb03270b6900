"""Tokens: random, digested, and nowhere to be read."""

from __future__ import annotations

import base64
import contextlib
import logging
import traceback

import pytest
from redis.asyncio import Redis

from session_store import InvalidToken, ReplayGap, SessionClosed, SessionMissing, Store, StoreError, StoreSettings
from session_store.tokens import check_digest, digest, new_token
from tests.session_store.helpers import commit, create, resume
from tests.support.valkey import ValkeyProcess


@pytest.mark.behaviour("R1")
def test_a_token_has_256_bits_and_is_url_safe() -> None:
    tokens = {new_token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    assert {len(base64.urlsafe_b64decode(token + "=")) for token in tokens} == {32}


def test_any_text_has_a_digest() -> None:
    for text in ("", "ü", "\ud800", "x" * 100_000):
        assert check_digest(digest(text)) == digest(text)


def test_a_token_is_not_taken_for_its_digest() -> None:
    token = new_token()
    with pytest.raises(ValueError) as refused:
        check_digest(token)
    assert token not in str(refused.value)


async def _dump(url: str) -> str:
    async with Redis.from_url(url) as admin:
        return "".join([str(await admin.dump(key)) for key in await admin.keys()])


@pytest.mark.behaviour("R1", "R9")
async def test_no_token_is_in_a_repr_an_error_a_log_or_redis(store: Store, valkey_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    first, wrong = new_token(), new_token()
    lease = await create(store, "s1", token=first)
    await store.records.commit(commit(lease, 1, b"one"))
    seen: list[object] = [lease, await store.records.load("s1"), vars(store), vars(store.records), await _dump(valkey_url)]
    taken, second = await resume(store, "s1", first)
    seen += [taken, taken.stored.record, await _dump(valkey_url)]

    async def refused(kind: type[StoreError], session: str, token: str, after_seq: int = 0) -> None:
        with pytest.raises(kind) as error:
            await resume(store, session, token, after_seq=after_seq)
        seen.extend((error.value, vars(error.value), "".join(traceback.format_exception(error.value))))

    await refused(InvalidToken, "s1", wrong)
    await refused(ReplayGap, "s1", second, after_seq=5)
    await refused(SessionMissing, "s9", first)
    await refused(SessionMissing, "no such}id", first)
    seen.append(await store.records.settle_token(taken.lease))
    await refused(InvalidToken, "s1", first)
    await store.records.close(taken.lease, "done")
    await refused(SessionClosed, "s1", second)
    seen += [await _dump(valkey_url), caplog.text]
    text = "\n".join(f"{one!r} {one!s}" for one in seen)
    assert not [token for token in (first, second, wrong) if token in text]
    assert digest(second) not in "\n".join(repr(one) for one in seen if not isinstance(one, str))


async def test_no_token_is_in_the_error_of_an_outage() -> None:
    with ValkeyProcess() as server:
        store = await Store.open(server.url, StoreSettings())
        token = new_token()
        server.kill()
        with pytest.raises(StoreError) as error:
            await resume(store, "s1", token)
        with contextlib.suppress(StoreError):
            await store.close()
    assert token not in "".join(traceback.format_exception(error.value)) + repr(vars(error.value))
