"""Sentinels name the primary: the store follows a failover by its own rules, and what the replica had not heard is a store's lost write."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from session_store import Committed, LeaseForgotten, SessionMissing, StaleGeneration, Store, StoreSettings, StoreUnavailable
from session_store.errors import StoreUrlError
from session_store.keys import session_keys
from session_store.tokens import digest, new_token
from tests.session_store.helpers import beat, commit, create, forget_silence, resume, until
from tests.support.sentinels import SERVICE, Node, Sentinel, Watched, wait

TOKEN = new_token()
# Test machines stall, and who is dead refuses at once.
TIMEOUT_MS = 5_000
HANGS_MS = 1_500
SECRET = "s3/c#r?e@t:"
QUOTED = "s3%2Fc%23r%3Fe%40t%3A"


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as servers:
        yield servers


async def _opened(url: str, **settings: int) -> Store:
    return await Store.open(url, StoreSettings(**{"redis_timeout_ms": TIMEOUT_MS, **settings}))


async def _available(store: Store) -> bool:
    try:
        await store.registry.replicas()
    except StoreUnavailable:
        return False
    return True


async def _cut_off(node: Node, store: Store) -> None:
    """The server closes every connection of the store: it needs new ones."""
    node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await until(lambda: _available(store))


def _said(error: BaseException | None) -> str:
    """All that an error says of itself and of what caused it."""
    return f"{error!r} {error} {_said(error.__cause__ or error.__context__)}" if error is not None else ""


def _has(node: Node, session: str) -> bool:
    return bool(node.ask("EXISTS", session_keys(session)[0]))


# failover


@pytest.mark.behaviour("X4", "X15")
async def test_a_promoted_replica_goes_on_with_all_that_it_heard(watched: Watched) -> None:
    """The new primary has no script, the old one is back as an empty primary: nothing is lost, and nothing is written there."""
    old, new = watched.nodes
    async with await _opened(watched.url) as store:
        await store.registry.beat(beat("r1"))
        await forget_silence(old.url)
        lease = await create(store, "s1", token=TOKEN)
        assert await store.records.commit(commit(lease, 1, b"one", items=b"i")) == Committed(1, 1)
        assert await store.registry.mute_ms() == 0
        assert old.ask("WAIT", 1, 5_000) == 1
        old.kill()
        with pytest.raises(StoreUnavailable):
            await store.records.commit(commit(lease, 2, b"two"))
        await until(lambda: _available(store))
        watched.steady()
        old.start()
        assert await store.registry.mute_ms() > 0, "nobody is reaped now"
        assert await store.records.commit(commit(lease, 2, b"two")) == Committed(1, 2)
        taken, _ = await resume(store, "s1", TOKEN)
        assert [entry.payload for entry in taken.stored.journal] == [b"one", b"two"] and taken.lease.attachment > lease.attachment
        await asyncio.gather(*(create(store, f"more{n}") for n in range(40)))
        assert watched.primary() is new and not any(_has(old, f"more{n}") for n in range(40))


@pytest.mark.behaviour("X15")
async def test_what_the_replica_had_not_heard_is_forgotten_and_told_again(watched: Watched) -> None:
    old, new = watched.nodes
    async with await _opened(watched.url) as store:
        first = await create(store, "s1", token=TOKEN)
        assert old.ask("WAIT", 1, 5_000) == 1
        new.deafen()
        taken, token = await resume(store, "s1", TOKEN)
        await store.records.commit(commit(taken.lease, 1, b"one"))
        late = await create(store, "s2")
        old.kill()
        await until(lambda: _available(store))
        with pytest.raises(LeaseForgotten):
            await store.records.commit(commit(taken.lease, 2, b"two"))
        with pytest.raises(SessionMissing):
            await store.records.commit(commit(late, 1, b"x"))
        assert set((await store.records.renew("g2", [taken.lease, late])).forgotten) == {"s1", "s2"}
        assert await store.records.restore(taken.lease, "g2", "t1", "profile", {}, token_digest=digest(token))
        assert await store.records.restore(late, "g1", "t1", "profile", {})
        with pytest.raises(StaleGeneration):
            await store.records.commit(commit(first, 1, b"zombie"))
        await store.records.commit(msgspec.structs.replace(commit(taken.lease, 2, b"two"), replace=True))
        again, _ = await resume(store, "s1", token, "h3", after_seq=1)
        assert [entry.payload for entry in again.stored.journal] == [b"two"] and again.lease.attachment > taken.lease.attachment


@pytest.mark.behaviour("X15")
async def test_a_primary_that_was_given_up_and_still_answers_is_left(watched: Watched) -> None:
    """It was frozen, and takes writes as before for the seconds until a sentinel tells it. Its connections are not used again, though no
    call of theirs failed: neither one that was idle nor one that waited for an answer all the while."""
    old, new = watched.nodes
    store = await _opened(watched.url, redis_timeout_ms=20_000, sentinel_poll_ms=20)
    async with store:
        await asyncio.gather(*(store.registry.replicas() for _ in range(4)))
        await store.registry.beat(beat("r1"))
        await forget_silence(old.url)
        assert await store.registry.mute_ms() == 0 and old.ask("WAIT", 1, 5_000) == 1
        old.pause()
        waiting = asyncio.create_task(create(store, "waited"))
        try:
            await asyncio.to_thread(wait, lambda: watched.sentinels[0].named() == watched.sentinels[1].named() == new.address)
            await asyncio.to_thread(wait, lambda: store._connection.moves == 1)
        finally:
            old.resume()
        lease = await waiting
        assert old.role() == "master" and _has(old, "waited"), "it took what nobody will ever find"
        with pytest.raises(SessionMissing):
            await store.records.commit(commit(lease, 1, b"x"))
        await asyncio.gather(*(create(store, f"s{n}") for n in range(20)))
        assert await store.registry.mute_ms() > 0, "the writes that it took last may be lost, so nobody is reaped"
        assert old.role() == "master" and [_has(node, "s7") for node in watched.nodes] == [False, True]


async def test_a_demoted_primary_is_not_written_and_its_connection_is_dropped() -> None:
    """Also where a URL names the server itself."""
    with Node() as demoted:
        async with await _opened(f"redis://127.0.0.1:{demoted.port}") as store:
            await create(store, "s1")
            demoted.ask("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(StoreUnavailable):
                await create(store, "s2")
            await asyncio.to_thread(wait, lambda: b"cmd=evalsha" not in demoted.ask("CLIENT", "LIST", "TYPE", "normal"))
            demoted.ask("REPLICAOF", "NO", "ONE")
            await create(store, "s2")


# sentinels


async def test_some_sentinels_may_hang_or_be_dead(watched: Watched) -> None:
    """Whichever is asked first."""
    first, second, third = watched.sentinels
    first.pause()
    try:
        async with await _opened(watched.url, redis_timeout_ms=HANGS_MS) as store:
            await create(store, "s1")
        second.kill()
        async with await _opened(watched.url, redis_timeout_ms=HANGS_MS) as store:
            await create(store, "s2")
            third.kill()
            await _cut_off(watched.nodes[0], store)
            await create(store, "s3")  # nobody says that the primary is another one
        with pytest.raises(StoreUnavailable, match="NoPrimary"):
            await _opened(watched.url, redis_timeout_ms=HANGS_MS)
    finally:
        first.resume()


@pytest.mark.behaviour("X15")
async def test_a_sentinel_that_missed_the_failover_is_not_believed(watched: Watched) -> None:
    """It still names the old primary, which is back, empty, and says itself that it is the primary."""
    (old, new), (behind, *others) = watched.nodes, watched.sentinels
    async with await _opened(watched.url, sentinel_poll_ms=20) as store:
        behind.kill()
        old.kill()
        await until(lambda: _available(store))
        for sentinel in others:
            sentinel.kill()
        old.start()
        behind.start()
        wait(lambda: behind.named() == old.address and old.role() == "master")
        for n in range(5):
            await _cut_off(new, store)
            await create(store, f"s{n}")
        assert _has(new, "s4") and not old.ask("DBSIZE")


async def test_sentinels_that_name_a_dead_primary_or_a_replica() -> None:
    """One sentinel of two that it needs: nobody is promoted."""
    with Watched(sentinels=1) as watched:
        primary, replica = watched.nodes
        async with await _opened(watched.url) as store:
            primary.kill()
            with pytest.raises(StoreUnavailable):
                await create(store, "s1")
            primary.start().ask("REPLICAOF", *replica.address)
            with pytest.raises(StoreUnavailable, match="NotPrimary"):
                await _opened(watched.url)
            with pytest.raises(StoreUnavailable):
                await create(store, "s1")
            primary.ask("REPLICAOF", "NO", "ONE")
            await create(store, "s1")


async def test_passwords_of_servers_and_of_sentinels() -> None:
    with Watched(sentinels=1, replica=False, sentinel_password=SECRET) as watched:
        watched.nodes[0].ask("CONFIG", "SET", "requirepass", "of-server")
        hosts, service = watched.url.removeprefix("redis+sentinel://").split("/")
        for query in ("", "?sentinel_password=wr0ng"):
            with pytest.raises(StoreUnavailable, match="SentinelsRefused") as refused:
                await _opened(f"redis+sentinel://:of-server@{hosts}/{service}{query}")
            assert "SentinelsRefused" in (said := _said(refused.value)) and "of-server" not in said and "wr0ng" not in said
        with pytest.raises(StoreUnavailable, match="AuthenticationError"):
            await _opened(f"redis+sentinel://:wr0ng@{hosts}/{service}?sentinel_password={QUOTED}")
        async with await _opened(f"redis+sentinel://:of-server@{hosts}/{service}/3?sentinel_password={QUOTED}") as store:
            await create(store, "s1")
            assert SECRET not in (shown := repr(store._connection._client)) and "of-server" not in shown


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    """Of a server whose certificate, which is its own authority, lies in crt.pem."""
    of_server = ("-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "crt.pem")
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *of_server)
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt.pem", tmp_path / "key.pem")
    return context


async def test_servers_and_sentinels_over_tls(tmp_path: Path, context: ssl.SSLContext) -> None:
    """With an authority of one's own; the sentinel names the address where TLS is spoken."""
    sentinel = Sentinel()
    try:
        with Node() as node:
            async with _ends_tls(context, node.port) as of_node, _ends_tls(context, sentinel.port) as of_sentinel:
                sentinel.configure(("127.0.0.1", of_node), [], [])
                sentinel.start()
                url = f"rediss+sentinel://127.0.0.1:{of_sentinel}/{SERVICE}"
                async with await _opened(f"{url}?ssl_ca_certs={tmp_path / 'crt.pem'}") as store:
                    await create(store, "s1")
                assert _has(node, "s1")
                for stranger in (url, url.replace("rediss", "redis")):
                    with pytest.raises(StoreUnavailable):
                        await _opened(stranger, redis_timeout_ms=HANGS_MS)
    finally:
        sentinel.stop()


@contextlib.asynccontextmanager
async def _ends_tls(context: ssl.SSLContext, port: int) -> AsyncIterator[int]:
    """Speaks TLS at the port that it gives, for a server that does not."""

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pass(reader, before), _pass(behind, writer))

    server = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


async def test_a_service_that_the_sentinels_do_not_know() -> None:
    """Typed at once. A store that was open waits until they know it again."""
    with Watched(sentinels=1, replica=False) as watched:
        (sentinel,), (primary,) = watched.sentinels, watched.nodes
        with pytest.raises(StoreUrlError, match="PARLEY_REDIS_URL"):
            await _opened(watched.url + "s")
        async with await _opened(watched.url) as store:
            sentinel.ask("SENTINEL", "REMOVE", SERVICE)
            primary.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await create(store, "s1")
            sentinel.ask("SENTINEL", "MONITOR", SERVICE, *primary.address, 2)
            await create(store, "s1")
