"""Pictures of several sessions on few threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from thinker_svc.minicpmo45.frames import BadFrame, Picture
from thinker_svc.minicpmo45.line import Line


@pytest.mark.behaviour("S1")
def test_a_crowd_of_pictures_of_one_session_lets_those_of_others_in_between() -> None:
    begun, gate, read = Event(), Event(), list[str]()

    def picture(name: str) -> Callable[[], Picture]:
        def made() -> Picture:
            begun.set()
            gate.wait(10)
            read.append(name)
            return Picture((), None)

        return made

    with ThreadPoolExecutor(1) as threads:
        many, few = Line(), Line()
        crowd = [many.submit(threads, picture(f"many {number}")) for number in range(4)]
        begun.wait(10)
        others = [few.submit(threads, picture(f"few {number}")) for number in range(2)]
        assert crowd[2].cancel()
        gate.set()
        assert all(each.result(10) == Picture((), None) for each in (*crowd[:2], crowd[3], *others))
    assert read == ["many 0", "few 0", "many 1", "few 1", "many 3"]


def test_one_that_cannot_be_read_keeps_nobody_waiting() -> None:
    def bad() -> Picture:
        raise BadFrame("undecodable", "data", "no picture")

    with ThreadPoolExecutor(1) as threads:
        line = Line()
        for _ in range(2):
            broken, whole = line.submit(threads, bad), line.submit(threads, lambda: Picture((), None))
            assert isinstance(broken.exception(10), BadFrame) and whole.result(10) == Picture((), None)
