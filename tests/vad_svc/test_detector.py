"""Turn taking over given probabilities: 32 ms a frame, written as one digit each (9 = 0.95, 4 = 0.45)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vad_svc.config import PATIENCE, TurnConfig
from vad_svc.detector import SAMPLES_PER_MS, Detector, Verdict
from vad_svc.settings import TurnSettings

FRAME = 512
FRAME_MS = 32


def _detector(**config: Any) -> Detector:
    return Detector(TurnSettings(), TurnConfig(**config))


class Feed:
    """Feeds digits as frames and writes down what was decided, in ms."""

    def __init__(self, detector: Detector, scores: list[float | None] | None = None) -> None:
        self.detector = detector
        self.scores = list(scores or [])
        self.asked: list[int] = []
        self.at = 0

    def __call__(self, frames: str) -> list[tuple[str, int, int, str]]:
        verdicts: list[Verdict] = []
        for digit in frames:
            probability = int(digit) / 10 + 0.05 * (digit != "0")
            verdicts += self.detector.frame(probability, self.at, self.at + FRAME)
            self.at += FRAME
            if self.detector.wants_score:
                self.asked.append(self.at // SAMPLES_PER_MS)
                self.detector.asked()
                if self.scores:
                    self.detector.scored(self.scores.pop(0))
        return [(v.kind, v.at // SAMPLES_PER_MS, v.decided_at // SAMPLES_PER_MS, v.reason) for v in verdicts]


def test_times_are_those_of_the_frames() -> None:
    feed = Feed(_detector(prefix_padding_ms=100, silence_duration_ms=300))
    assert feed("0" * 10 + "9" * 10 + "0" * 12) == [
        ("speech_started", 10 * 32 - 100, 13 * 32, ""),
        ("pause", 20 * 32, 24 * 32, ""),
        ("speech_stopped", 20 * 32, 30 * 32, "silence"),
    ]


def test_start_is_not_before_the_session() -> None:
    assert Feed(_detector())("99900")[0] == ("speech_started", 0, 96, "")


def test_click_does_not_start_a_turn() -> None:
    feed = Feed(_detector())
    assert feed("0990" * 20) == []


def test_weak_frames_neither_start_nor_break_a_start() -> None:
    assert Feed(_detector())("0" * 10 + "4" * 20) == []
    assert [kind for kind, *_ in Feed(_detector())("0" * 10 + "94949")] == ["speech_started"]


def test_hysteresis_holds_open_speech_and_not_a_pause() -> None:
    feed = Feed(_detector(silence_duration_ms=320))
    assert [kind for kind, *_ in feed("999" + "4" * 30)] == ["speech_started"]
    assert [kind for kind, *_ in feed("0" + "4" * 10)] == ["pause", "speech_stopped"]


def test_low_threshold_still_ends() -> None:
    feed = Feed(_detector(threshold=0.1))
    assert [kind for kind, *_ in feed("999" + "0" * 20)] == ["speech_started", "pause", "speech_stopped"]


def test_resumed_only_after_an_announced_pause() -> None:
    feed = Feed(_detector())
    assert feed("999" + "000" + "9")[1:] == []
    assert feed("0000" + "9") == [("pause", 7 * 32, 11 * 32, ""), ("speech_resumed", 11 * 32, 12 * 32, "")]


@pytest.mark.behaviour("U41")
def test_next_turn_does_not_start_before_the_last_one_ended() -> None:
    feed = Feed(_detector(silence_duration_ms=100))
    feed("99999" + "0000")
    assert feed("999")[0] == ("speech_started", 5 * 32, 12 * 32, "")


@pytest.mark.behaviour("U41")
def test_reset_moves_the_origin_and_ends_nothing() -> None:
    feed = Feed(_detector())
    feed("99999")
    feed.detector.reset(feed.at)
    assert feed("0" * 40) == []
    feed.detector.reset(feed.at)
    assert feed("999") == [("speech_started", 45 * 32, 48 * 32, "")]


def test_switched_off_ends_in_silence() -> None:
    feed = Feed(_detector())
    feed("99999")
    feed.detector.configure(TurnConfig(mode="none"))
    assert feed("0" * 40 + "9" * 10) == []


def test_time_out_closes_open_speech_once() -> None:
    feed = Feed(_detector())
    feed("99999")
    assert feed.detector.time_out(feed.at) == [Verdict("speech_stopped", 5 * FRAME, 5 * FRAME, 0.0, "timeout")]
    assert feed.detector.time_out(feed.at) == []


@pytest.mark.behaviour("U42")
@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
@pytest.mark.parametrize("sure", ["immediate", "confident", "unsure", "failed"])
def test_silence_that_each_score_needs(eagerness: Any, sure: str) -> None:
    patience = PATIENCE[eagerness]
    score, silence_ms, reason = {
        "immediate": (patience.immediate, patience.immediate_ms, "smart_turn"),
        "confident": (patience.confident, patience.confident_ms, "smart_turn"),
        "unsure": (patience.confident - 0.01, patience.max_pause_ms, "max_pause"),
        "failed": (None, patience.fallback_ms, "silence"),
    }[sure]
    feed = Feed(_detector(mode="semantic_vad", eagerness=eagerness), [score])
    stopped = feed("9" * 10 + "0" * 100)[-1]
    frames = -(-silence_ms // FRAME_MS)
    assert stopped == ("speech_stopped", 320, 320 + frames * FRAME_MS, reason)
    assert feed.asked == [320 + 160]


@pytest.mark.behaviour("U42")
def test_resumed_speech_discards_the_score_and_the_next_pause_is_scored_anew() -> None:
    feed = Feed(_detector(mode="semantic_vad"), [0.99, 0.1])
    assert [kind for kind, *_ in feed("9" * 10 + "0" * 7 + "9" * 5)] == ["speech_started", "pause", "speech_resumed"]
    assert feed("0" * 20)[0][0] == "pause"
    assert feed.detector.open
    assert feed.asked == [480, 22 * 32 + 160]


@pytest.mark.behaviour("U42")
def test_a_late_score_holds_only_the_frame_that_needs_it() -> None:
    feed = Feed(_detector(mode="semantic_vad", eagerness="medium"))
    feed("9" * 10 + "0" * 5)
    waits = []
    for _ in range(4):
        waits.append(feed.detector.must_wait(feed.at + FRAME))
        feed("0")
    assert waits == [False, False, True, True]
    feed.detector.scored(0.99)
    assert not feed.detector.must_wait(feed.at + FRAME)


@pytest.mark.behaviour("U42")
def test_failed_model_means_fallback_silence_for_the_session() -> None:
    feed = Feed(_detector(mode="semantic_vad"))
    feed.detector.fallback_only = True
    assert feed("9" * 10 + "0" * 30)[-1] == ("speech_stopped", 320, 960, "silence")
    assert feed.asked == []


@given(
    st.lists(st.sampled_from(["9", "99999", "4", "0", "0000", "0" * 20, "0" * 70]), max_size=60).map("".join),
    st.sampled_from(["server_vad", "semantic_vad"]),
    st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=10),
)
def test_decisions_alternate_and_time_never_runs_back(frames: str, mode: Any, scores: list[float | None]) -> None:
    allowed = {
        "speech_started": {"pause", "speech_stopped"},
        "pause": {"speech_resumed", "speech_stopped"},
        "speech_resumed": {"pause", "speech_stopped"},
        "speech_stopped": {"speech_started"},
    }
    decided = Feed(_detector(mode=mode), scores)(frames)
    if decided:
        assert decided[0][0] == "speech_started"
    for (kind, at, decided_at, _), (next_kind, next_at, next_decided_at, _) in pairwise(decided):
        assert next_kind in allowed[kind]
        assert at <= decided_at <= next_decided_at
        assert at <= next_at
