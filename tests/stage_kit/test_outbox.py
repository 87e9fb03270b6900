"""What engines hand to the event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest

from stage_kit.outbox import Outbox


class Kept:
    """Whatever was posted."""


class Turns(asyncio.SelectorEventLoop):
    """Counts how often it is woken from outside."""

    woken = 0

    def call_soon_threadsafe(self, *args: object, **kwargs: object) -> asyncio.Handle:  # type: ignore[override]
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)  # type: ignore[arg-type]


async def _others_turn() -> None:
    """Whatever the loop was woken for is done."""
    await asyncio.sleep(0)


async def test_what_is_posted_together_leaves_at_the_end_in_order() -> None:
    outbox, came = Outbox(asyncio.get_running_loop()), list[int]()
    outbox.post(came.append, 0)
    await _others_turn()
    with outbox.together():
        for number in (1, 2, 3):
            outbox.post(came.append, number)
            await _others_turn()
        assert came == [0]
    await _others_turn()
    assert came == [0, 1, 2, 3]
    outbox.post(came.append, 4)
    await _others_turn()
    assert came == [0, 1, 2, 3, 4]


async def test_what_was_posted_leaves_where_the_rest_fails() -> None:
    outbox, came = Outbox(asyncio.get_running_loop()), list[int]()
    with pytest.raises(ZeroDivisionError), outbox.together():
        outbox.post(came.append, 1)
        raise ZeroDivisionError
    await _others_turn()
    assert came == [1]


async def test_a_call_that_raises_holds_no_other_back() -> None:
    loop, told, came = asyncio.get_running_loop(), list[object](), list[int]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    outbox, error = Outbox(loop), ZeroDivisionError()

    def fails(_: int) -> None:
        raise error

    for call, number in ((came.append, 1), (fails, 2), (came.append, 3), (fails, 4), (came.append, 5)):
        outbox.post(call, number)
    for _ in range(4):
        await _others_turn()
    assert came == [1, 3, 5] and told == [error, error]


def test_nothing_is_kept_for_a_loop_that_has_closed() -> None:
    loop = asyncio.new_event_loop()
    outbox, output = Outbox(loop), Kept()
    loop.close()
    for _ in range(2):
        outbox.post(print, output)
        with outbox.together():
            outbox.post(print, output)
    alive = weakref.ref(output)
    del output
    assert alive() is None


def test_the_loop_is_woken_once_and_not_for_nothing() -> None:
    loop = Turns()
    outbox, came = Outbox(loop), list[int]()
    with outbox.together():
        for number in range(100):
            outbox.post(came.append, number)
    assert loop.woken == 1
    loop.run_until_complete(_others_turn())
    assert came == list(range(100))
    woken = loop.woken
    with outbox.together():
        pass
    assert loop.woken == woken
    loop.close()


async def test_another_thread_loses_nothing_while_one_gathers() -> None:
    outbox, came = Outbox(asyncio.get_running_loop()), list[tuple[str, int]]()
    everything, count = asyncio.Event(), 2000

    def take(each: tuple[str, int]) -> None:
        came.append(each)
        if len(came) == 2 * count:
            everything.set()

    def gathers() -> None:
        for number in range(count):
            with outbox.together():
                outbox.post(take, ("gathered", number))

    def posts() -> None:
        for number in range(count):
            outbox.post(take, ("posted", number))

    threads = [threading.Thread(target=gathers), threading.Thread(target=posts)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(30):
        await everything.wait()
    for who in ("gathered", "posted"):
        assert [number for name, number in came if name == who] == list(range(count))
