"""Voices shared, counted and bounded: with a maker that says when it is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from vocoder_svc.minicpmo45.caches import NotFinite, Prompt
from vocoder_svc.minicpmo45.conformer import ConformerContext
from vocoder_svc.minicpmo45.flow import FlowContext
from vocoder_svc.minicpmo45.retention import Span
from vocoder_svc.minicpmo45.voice import BadVoice, Heard, Recording
from vocoder_svc.minicpmo45.voices import Voice, Voices, VoicesFull

ROOM = Span(10, 100)


class Maker:
    """Voices of as many codes as their recording has samples; counts its work."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.spans: list[Span] = []
        self.go = threading.Event()
        self.go.set()

    def hear(self, voice: Recording) -> Heard:
        self.go.wait()
        codes = len(voice.pcm) // 2
        self.heard.append(codes)
        if codes == 13:
            raise BadVoice("no luck")
        return Heard(np.zeros(codes, np.int64), np.zeros((2 * codes, 80), np.float32), np.zeros(192, np.float32))

    def set_up(self, heard: Heard, span: Span) -> Prompt:
        self.spans.append(span)
        if span.frames == 34:
            raise NotFinite("the voice's caches")
        nothing = torch.zeros(0)
        return Prompt(span, nothing, FlowContext(ConformerContext(nothing, nothing), nothing))


class Holder:
    """A session that waits for its voice."""

    def __init__(self, voices: Voices, codes: int) -> None:
        self._done = threading.Event()
        self._voices = voices
        self.voice = voices.hold(Recording(b"\0\0" * codes, 16_000), self.wake)

    def wake(self) -> None:
        self._done.set()

    def wait(self) -> Voice:
        while self.voice.prompt is None and self.voice.error is None:
            assert self._done.wait(10)
        return self.voice

    def release(self) -> None:
        self._voices.release(self.voice, self.wake)


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def voices(maker: Maker) -> Iterator[Voices]:
    made = Voices(maker, ROOM, wait_s=30)
    yield made
    maker.go.set()
    made.close()


@pytest.mark.behaviour("X11", "N46")
def test_a_voice_is_set_up_once_for_all_its_sessions(voices: Voices, maker: Maker) -> None:
    maker.go.clear()
    holders = [Holder(voices, 20) for _ in range(5)]
    maker.go.set()
    prompts = [holder.wait().prompt for holder in holders]
    assert all(prompt is prompts[0] for prompt in prompts) and maker.heard == [20]
    for holder in holders:
        holder.release()
    assert Holder(voices, 20).voice.prompt is prompts[0] and maker.heard == [20] and len(voices) == 1


def test_the_voice_released_longest_ago_goes_first(voices: Voices, maker: Maker) -> None:
    new, old = Holder(voices, 21), Holder(voices, 20)
    for holder in (new, old):
        holder.wait()
    old.release()
    new.release()
    # 82 of 100 frames are taken: the later one of 40 goes, and its place and the rest are joined
    third = Holder(voices, 25)
    assert third.wait().prompt is not None and len(voices) == 2
    assert Holder(voices, 21).voice.prompt is not None
    assert maker.heard == [21, 20, 25] and maker.spans[2] == Span(ROOM.start + 42, 50)


@pytest.mark.behaviour("N46")
def test_one_more_than_fits_waits_until_one_goes(voices: Voices) -> None:
    first, second = Holder(voices, 25), Holder(voices, 24)
    assert first.wait().prompt is not None and second.wait().prompt is not None
    third = Holder(voices, 5)
    fourth = Holder(voices, 1)
    assert fourth.wait().prompt is not None and third.voice.prompt is None and third.voice.error is None
    first.release()
    assert third.wait().prompt is not None


def test_one_more_than_fits_is_refused_by_type() -> None:
    voices = Voices(Maker(), ROOM, wait_s=0)
    Holder(voices, 40).wait()
    error = Holder(voices, 20).wait().error
    assert isinstance(error, VoicesFull) and "40 frames" in error.why
    assert isinstance(Holder(voices, 51).wait().error, VoicesFull)
    voices.close()


@pytest.mark.behaviour("N46")
@pytest.mark.parametrize(("codes", "why"), [(13, "no luck"), (17, "caches")])
def test_a_voice_that_fails_leaves_nothing_and_is_tried_again(voices: Voices, maker: Maker, codes: int, why: str) -> None:
    failed = Holder(voices, codes)
    error = failed.wait().error
    assert error is not None and why in error.why and len(voices) == 0
    assert Holder(voices, codes).wait().error is not None and maker.heard == [codes, codes]
    failed.release()
    assert Holder(voices, 50).wait().prompt is not None


def test_a_voice_that_nobody_waits_for_is_not_set_up(voices: Voices, maker: Maker) -> None:
    maker.go.clear()
    first, second, third = (Holder(voices, codes) for codes in (20, 21, 22))
    second.release()
    first.release()
    maker.go.set()
    assert third.wait().prompt is not None and 21 not in maker.heard and len(maker.spans) == 1
