"""Sentinels that say what no sentinel of ours can be made to say, and what happens to those who wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from session_store import Store, StoreSettings, StoreUnavailable
from session_store.connection import Connection
from session_store.sentinels import Address
from tests.session_store.helpers import create, until
from tests.support.sentinels import Node

NOWHERE = ("127.0.0.1", 1)
LONG_MS = 20_000


def array(*words: object) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(text := str(word).encode()), text) for word in words)


class Scripted:
    """Answers questions with what it was told to: `master` and `address` are bytes of the protocol; empty: no answer."""

    def __init__(self) -> None:
        self.master = self.address = b""
        self.hello = b"+OK\r\n"
        self.questions = 0
        self.ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def host(self) -> str:
        assert self._server is not None
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    def says(self, primary: Address, epoch: int | None) -> None:
        """epoch None: it may not be told."""
        self.address = array(*primary)
        self.master = array("config-epoch", epoch) if epoch is not None else b"-NOPERM this user has no permissions\r\n"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in self.ends:
            end.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ends.add(writer)
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                words = [await _word(reader) for _ in range(int((await reader.readline())[1:]))]
                if words[0] != b"SENTINEL":
                    writer.write(self.hello if words[0] == b"HELLO" else b"+OK\r\n")
                elif words[1] == b"MASTER":
                    self.questions += 1
                    writer.write(self.master)
                else:
                    writer.write(self.address)
        self.ends.discard(writer)
        writer.close()


async def _word(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readexactly(int((await reader.readline())[1:]) + 2))[:-2]


Make = Callable[[], Awaitable[Scripted]]


@pytest.fixture
async def scripted() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def make() -> Scripted:
            made = Scripted()
            await made.start()
            stack.callback(made.stop)
            return made

        yield make


@pytest.fixture
def node() -> Iterator[Node]:
    server = Node()
    with server:
        yield server


def url(*sentinels: Scripted) -> str:
    return f"redis+sentinel://{','.join(each.host for each in sentinels)}/p"


def settings(redis_timeout_ms: int = LONG_MS, sentinel_poll_ms: int = 3_600_000) -> StoreSettings:
    return StoreSettings(redis_timeout_ms=redis_timeout_ms, sentinel_poll_ms=sentinel_poll_ms)


ODD = {
    "a number": b":1\r\n",
    "a word": b"+OK\r\n",
    "one word": array("127.0.0.1"),
    "three": array("127.0.0.1", 1, 2),
    "numbers": b"*2\r\n:1\r\n:2\r\n",
    "lists": b"*2\r\n*0\r\n*0\r\n",
    "no host": array("", 6379),
    "no port": array("127.0.0.1", "x"),
    "a port that there is not": array("127.0.0.1", 65_536),
    "letters that are none": b"*2\r\n$1\r\n\xff\r\n$1\r\n1\r\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
async def test_an_odd_answer_is_none_and_what_was_said_before_is_no_word_of_today(scripted: Make, answer: bytes) -> None:
    sentinel = await scripted()
    sentinel.says(NOWHERE, 5)
    connection = Connection(url(sentinel), settings())
    sentinels = connection._sentinels
    assert sentinels is not None and await sentinels.primary() == NOWHERE
    (asked,) = sentinels._all
    sentinel.address = answer
    await asked.ask()
    assert asked.word is None and asked.failure is not None
    sentinel.says(NOWHERE, 5)
    sentinel.master = answer
    await asked.ask()
    assert asked.word is None or asked.word.primary == NOWHERE, "names and values of something else"
    await connection.close()


async def test_most_are_believed_where_the_latest_differ_and_nobody_moves_to_and_fro(scripted: Make) -> None:
    """They differ where some may not tell which failover was the latest, or call the primary by its name and by its address."""
    first, second, third = [await scripted() for _ in range(3)]
    behind, primary = NOWHERE, ("127.0.0.1", 2)
    first.says(behind, None)
    for sentinel in (second, third):
        sentinel.says(primary, None)
    connection = Connection(url(first, second, third), settings())
    sentinels = connection._sentinels
    assert sentinels is not None
    await asyncio.gather(*(asked.ask() for asked in sentinels._all))
    assert await sentinels.primary() == primary

    third.says(behind, 0)
    third.address = b"*-1\r\n"
    for _ in range(3):
        await sentinels._all[2].ask()
        assert await sentinels.primary() == primary and connection.moves == 0, "one says this, one that: it is who it was"
    await connection.close()


async def test_a_store_that_closes_while_sentinels_are_asked_fails_its_callers_and_cancels_nobody(scripted: Make, node: Node) -> None:
    sentinel = await scripted()
    sentinel.says(node.address, 1)
    store = await Store.open(url(sentinel), settings())
    sentinel.address = sentinel.master = b""
    node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    asked = sentinel.questions
    calls = [asyncio.create_task(store.registry.replicas()) for _ in range(3)]

    async def waiting() -> bool:
        return sentinel.questions > asked

    await until(waiting)
    await store.close()
    assert [type(outcome) for outcome in await asyncio.gather(*calls, return_exceptions=True)] == [StoreUnavailable] * 3


async def test_a_closed_store_leaves_no_connection_and_no_task(scripted: Make, node: Node) -> None:
    sentinel = await scripted()
    sentinel.says(node.address, 1)
    before = asyncio.all_tasks()
    store = await Store.open(url(sentinel), settings(sentinel_poll_ms=20))
    await create(store, "s1")
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.registry.replicas()

    async def gone() -> bool:
        return not sentinel.ends and b"cmd=evalsha" not in node.ask("CLIENT", "LIST", "TYPE", "normal")

    await until(gone)
    assert asyncio.all_tasks() == before


async def test_sentinels_are_not_flooded_while_the_primary_is_dead(scripted: Make, node: Node) -> None:
    """Calls that fail at once come by the hundred, just when the sentinels have a failover to make."""
    sentinel = await scripted()
    sentinel.says(node.address, 1)
    async with await Store.open(url(sentinel), settings(redis_timeout_ms=5_000)) as store:
        node.kill()
        sentinel.says(NOWHERE, 2)
        began, asked, failed = asyncio.get_running_loop().time(), sentinel.questions, 0
        while sentinel.questions < asked + 6:
            with pytest.raises(StoreUnavailable):
                await store.registry.replicas()
            failed += 1
        lasted = asyncio.get_running_loop().time() - began
    assert lasted >= 5 * 0.05, f"six questions within {lasted:.3f} s"


@pytest.mark.parametrize("hello", [b"+OK\r\n", b":1\r\n", b"*1\r\n+role\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_server_that_does_not_say_what_it_is_is_not_used(scripted: Make, hello: bytes) -> None:
    """As some proxies. Nor is a connection that it was asked over, which would be open and proved."""
    sentinel, proxy = await scripted(), await scripted()
    host, _, port = proxy.host.rpartition(":")
    sentinel.says((host, int(port)), 1)
    proxy.hello = hello
    connection = Connection(f"{url(sentinel)}?protocol=2", settings())
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"InvalidResponse|NotPrimary"):
            await connection.load()
    await connection.close()
