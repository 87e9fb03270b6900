"""Stage `asr` on recorded speech, driven as the kit drives it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jiwer
import numpy as np
import pytest
from numpy.typing import NDArray

from stage_kit import InvalidConfig, Label
from tests.thinker_svc.support.hearing import TRANSCRIPTS, Caller, Clock, recording, settle, silence, words
from thinker_svc.embedded.asr import AsrEngine
from thinker_svc.embedded.asr_recognizer import Recognizer
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.models import models_root

pytestmark = pytest.mark.models

FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def engine(clock: Clock) -> AsrEngine:
    if not (models_root() / "moonshine-tiny").exists():
        pytest.skip("the models are not here")
    engine = AsrEngine(AsrSettings(), clock)
    engine.load()
    return engine


def _spoken(*parts: str | int) -> NDArray[np.float32]:
    return np.concatenate([silence(part) if isinstance(part, int) else recording(part) for part in parts])


def test_commit_without_turns(engine: AsrEngine) -> None:
    """Push to talk."""
    caller = Caller(engine)
    caller.speak(_spoken("synth_q_capital_france"))
    caller.commit("item_1", 0, caller.now_ms, Label(turn=3))
    settle(engine, caller)
    (final,) = caller.slot.transcripts
    assert (final.item_id, final.text, final.final, final.language) == ("item_1", FRANCE, True, "en")
    assert (final.audio_start_ms, final.audio_end_ms) == (0, caller.now_ms)
    assert final.compute_ms > 0
    assert caller.slot.labels == [Label(turn=3)]


def test_partials_grow_every_half_second_and_stop_in_a_pause(engine: AsrEngine, clock: Clock) -> None:
    caller = Caller(engine)
    audio = _spoken("librivox_sense_0890")
    for start in range(0, audio.size, 1600):
        caller.speak(audio[start : start + 1600])
        if start == 0:
            caller.decide("speech_started", 0)
        clock.now += 0.5
        settle(engine, caller)
    ends = [partial.audio_end_ms for partial in caller.partials]
    assert all(later - earlier >= 500 for earlier, later in pairwise(ends))
    assert 4 <= len(ends) <= 10
    assert not any(partial.item_id or not partial.text for partial in caller.partials)
    caller.decide("pause", caller.now_ms)
    settle(engine, caller)
    told = len(caller.partials)
    caller.speak(silence(2000))
    assert settle(engine, caller) == []
    assert len(caller.partials) == told


def test_no_partials_when_not_wanted(engine: AsrEngine) -> None:
    caller = Caller(engine, partials=False)
    caller.decide("speech_started", 0)
    caller.speak(_spoken("goforward"))
    assert settle(engine, caller) == []


def test_a_pause_is_recognised_before_the_commit_which_costs_nothing_then(engine: AsrEngine) -> None:
    caller = Caller(engine, partials=False)
    caller.decide("speech_started", 0)
    caller.speak(_spoken("synth_q_capital_france", 160))
    caller.decide("pause", 2400)
    assert len(settle(engine, caller)) == 1
    caller.speak(silence(400))
    caller.decide("speech_stopped", 2400)
    caller.commit("item_1", 0, 2400)
    engine.step([caller.slot])
    (final,) = caller.finals
    assert final.text == FRANCE
    assert engine.ready(caller.slot) is None


def test_a_pause_that_is_known_before_its_audio_is_recognised_when_that_comes(engine: AsrEngine) -> None:
    """The edges are independent: the turn stage may be ahead."""
    caller = Caller(engine, partials=False)
    audio = _spoken("synth_q_capital_france", 160)
    caller.speak(audio[:16_000])
    caller.decide("speech_started", 0)
    caller.decide("pause", 2400)
    assert settle(engine, caller) == []
    caller.speak(audio[16_000:])
    assert len(settle(engine, caller)) == 1
    assert [partial.text for partial in caller.partials] == []
    caller.commit("item_1", 0, 2400)
    settle(engine, caller)
    assert caller.finals[0].text == FRANCE


def test_manual_commit_in_a_pause_uses_the_early_result_and_one_with_more_speech_does_not(engine: AsrEngine) -> None:
    quiet, louder = Caller(engine, partials=False), Caller(engine, partials=False)
    for caller in (quiet, louder):
        caller.decide("speech_started", 0)
        caller.speak(_spoken("cards_001", 200))
        caller.decide("pause", 1095)
        settle(engine, caller)
    quiet.speak(silence(300))
    louder.speak(_spoken("goforward"))
    for caller in (quiet, louder):
        caller.commit("item_1", 0, caller.now_ms)
        settle(engine, caller)
    assert words(quiet.finals[0].text) == "ten of clubs"
    assert words(louder.finals[0].text) == "ten of clubs go forward ten meters"


def test_a_commit_in_mid_turn_ends_the_turn_here_too(engine: AsrEngine, clock: Clock) -> None:
    clock.now += 1.0
    caller = Caller(engine)
    caller.decide("speech_started", 0)
    caller.speak(_spoken("cards_001"))
    caller.commit("item_1", 0, caller.now_ms)
    settle(engine, caller)
    told = len(caller.partials)
    caller.speak(_spoken("goforward"))
    assert settle(engine, caller) == []
    assert len(caller.partials) == told
    caller.commit("item_2", 1095, caller.now_ms)
    settle(engine, caller)
    assert [words(final.text) for final in caller.finals] == ["ten of clubs", "go forward ten meters"]


def test_resumed_speech_discards_the_early_result(engine: AsrEngine) -> None:
    """The speaker hesitates and goes on: one item holds both halves."""
    caller = Caller(engine, partials=False)
    caller.decide("speech_started", 0)
    caller.speak(_spoken("synth_incomplete_um_because", 300))
    caller.decide("pause", 2300)
    settle(engine, caller)
    caller.decide("speech_resumed", caller.now_ms)
    caller.speak(_spoken("goforward", 160))
    end_ms = caller.now_ms - 160
    caller.decide("pause", end_ms)
    caller.decide("speech_stopped", end_ms)
    caller.commit("item_1", 0, end_ms)
    settle(engine, caller)
    (final,) = caller.finals
    assert words(final.text).startswith("i think we should go there because")
    assert words(final.text).endswith("ten meters")


def test_adjacent_turns_are_answered_in_order(engine: AsrEngine) -> None:
    caller = Caller(engine, partials=False)
    caller.speak(_spoken("cards_001", 600, "goforward", 600))
    for kind, t_ms in [("speech_started", 0), ("pause", 1095), ("speech_stopped", 1095), ("speech_started", 1400), ("pause", 4480)]:
        caller.decide(kind, t_ms)
    caller.decide("speech_stopped", 4480)
    caller.commit("item_1", 0, 1095)
    caller.commit("item_2", 1400, 4480)
    settle(engine, caller)
    assert [(final.item_id, words(final.text)) for final in caller.finals] == [
        ("item_1", "ten of clubs"),
        ("item_2", "go forward ten meters"),
    ]


def test_commit_waits_for_its_audio(engine: AsrEngine, clock: Clock) -> None:
    caller = Caller(engine)
    audio = recording("cards_001")
    caller.commit("item_1", 0, audio.size // 16)
    caller.speak(audio[:8000])
    assert settle(engine, caller) == []
    assert engine.due(caller.slot) == clock() + 1.0
    caller.speak(audio[8000:])
    settle(engine, caller)
    assert words(caller.finals[0].text) == "ten of clubs"


def test_commit_whose_audio_never_comes_is_answered_with_what_is_there(engine: AsrEngine, clock: Clock) -> None:
    waiting, ended = Caller(engine), Caller(engine)
    for caller in (waiting, ended):
        caller.speak(recording("cards_001"))
        caller.commit("item_1", 0, 5000)
        assert settle(engine, caller) == []
    clock.now += 1.0
    ended.end()
    for caller in (waiting, ended):
        settle(engine, caller)
        assert words(caller.finals[0].text) == "ten of clubs"


@pytest.mark.parametrize("audio", [silence(2000), silence(50), np.zeros(0, np.float32), np.full(32_000, 0.0005, np.float32)])
def test_nothing_to_hear_is_answered_with_empty_text(engine: AsrEngine, audio: NDArray[np.float32]) -> None:
    caller = Caller(engine)
    caller.speak(audio)
    caller.commit("item_1", 0, caller.now_ms)
    settle(engine, caller)
    (final,) = caller.finals
    assert (final.item_id, final.text) == ("item_1", "")


def test_clear_drops_the_open_turn_and_keeps_commits(engine: AsrEngine) -> None:
    caller = Caller(engine)
    caller.decide("speech_started", 0)
    caller.speak(_spoken("cards_001"))
    caller.commit("item_1", 0, caller.now_ms)
    caller.speak(_spoken("synth_stop_interrupt"))
    engine.cleared(caller.slot)
    start_ms = caller.now_ms
    caller.speak(_spoken("goforward"))
    caller.commit("item_2", 0, caller.now_ms)
    settle(engine, caller)
    assert [(final.item_id, words(final.text)) for final in caller.finals] == [
        ("item_1", "ten of clubs"),
        ("item_2", "go forward ten meters"),
    ]
    assert start_ms > 0


@pytest.mark.behaviour("X16")
def test_a_barge_in_leaves_the_interrupting_words_whole(engine: AsrEngine) -> None:
    """The cancel comes while the user speaks: the item holds all from its start on, its first 200 ms included."""
    caller = Caller(engine)
    audio = _spoken("synth_stop_interrupt")
    caller.speak(audio[:6400])
    caller.decide("speech_started", 0, Label(epoch=1, turn=2))
    caller.slot.epoch = 2
    engine.cancelled(caller.slot)
    caller.speak(audio[6400:])
    caller.commit("item_1", 0, caller.now_ms, Label(epoch=2, turn=2))
    settle(engine, caller)
    alone = Caller(engine)
    alone.speak(audio)
    alone.commit("item_1", 0, alone.now_ms)
    settle(engine, alone)
    assert caller.finals[0].text == alone.finals[0].text
    assert "stop" in words(caller.finals[0].text)


def test_partials_leave_the_recognizer_half_its_time(engine: AsrEngine, clock: Clock) -> None:
    clock.now += 1.0
    callers = [Caller(engine, name) for name in ("one", "two")]
    for caller in callers:
        caller.decide("speech_started", 0)
        caller.speak(_spoken("goforward"))
    assert settle(engine, *callers) == ["one"]
    due = engine.due(callers[1].slot)
    assert due is not None
    assert due - clock() == pytest.approx(callers[0].partials[0].compute_ms / 1000, abs=0.001)
    clock.now = due
    assert settle(engine, *callers) == ["two"]


class _Failing(Recognizer):
    """A recognizer whose next decodes fail."""

    def __init__(self, failures: int) -> None:
        super().__init__(AsrSettings())
        self.failures = failures

    def text(self, samples: NDArray[np.float32]) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("no")
        return super().text(samples)


def test_a_failed_early_decode_is_made_good_by_the_commit(engine: AsrEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_recognizer", _Failing(1))
    caller = Caller(engine, partials=False)
    caller.decide("speech_started", 0)
    caller.speak(_spoken("cards_001", 200))
    caller.decide("pause", 1095)
    assert len(settle(engine, caller)) == 1
    caller.speak(silence(200))
    assert settle(engine, caller) == []
    caller.commit("item_1", 0, 1095)
    settle(engine, caller)
    assert words(caller.finals[0].text) == "ten of clubs"
    assert caller.slot.failures == []


def test_a_failed_commit_fails_its_label_and_the_next_works(engine: AsrEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_recognizer", _Failing(1))
    caller = Caller(engine)
    caller.speak(_spoken("cards_001", "goforward"))
    caller.commit("item_1", 0, 1095, Label(turn=1))
    caller.commit("item_2", 1095, caller.now_ms, Label(turn=2))
    settle(engine, caller)
    assert caller.slot.failures == [Label(turn=1)]
    assert [(final.item_id, words(final.text)) for final in caller.finals] == [("item_2", "go forward ten meters")]


def test_sessions_do_not_mix_and_commits_go_before_partials(engine: AsrEngine, clock: Clock) -> None:
    clock.now += 1.0
    texts = {"cards_001": "ten of clubs", "goforward": "go forward ten meters"}
    talking, *done = Caller(engine, "talking"), *(Caller(engine, name) for name in texts)
    talking.decide("speech_started", 0)
    talking.speak(_spoken("librivox_sense_0890"))
    for caller in done:
        caller.speak(recording(caller.slot.session_id))
        caller.commit("item_1", 0, caller.now_ms)
    order = settle(engine, talking, *done)
    assert order[:2] == list(texts)
    assert {caller.slot.session_id: words(caller.finals[0].text) for caller in done} == texts
    assert "cold" in words(talking.partials[0].text)
    assert not talking.finals


@pytest.mark.parametrize("turns", [True, False])
def test_a_long_utterance_is_settled_piece_by_piece(engine: AsrEngine, clock: Clock, turns: bool) -> None:
    names = ["librivox_sense_0870", "librivox_sense_0880", "librivox_sense_0890"] * 2
    audio = _spoken(*(part for name in names for part in (name, 250)))
    caller = Caller(engine, partials=False)
    if turns:
        caller.decide("speech_started", 0)
    for start in range(0, audio.size, 16_000):
        caller.speak(audio[start : start + 16_000])
        clock.now += 1.0
        settle(engine, caller)
    held_s = caller.slot.state._audio.end_ms / 1000 - caller.slot.state._audio.start_ms / 1000
    assert held_s < 22
    caller.commit("item_1", 0, caller.now_ms)
    assert len(settle(engine, caller)) <= 2
    expected = " ".join(TRANSCRIPTS[name] for name in names)
    assert jiwer.wer(expected, words(caller.finals[0].text)) < 0.12


def test_long_audio_at_once_is_cut_at_its_quietest_points(engine: AsrEngine) -> None:
    names = ["librivox_sense_0870", "librivox_sense_0890", "librivox_sense_0880"] * 2
    caller = Caller(engine)
    caller.speak(_spoken(*(part for name in names for part in (name, 250))))
    caller.commit("item_1", 0, caller.now_ms)
    assert 2 <= len(settle(engine, caller)) <= 5
    assert jiwer.wer(" ".join(TRANSCRIPTS[name] for name in names), words(caller.finals[0].text)) < 0.12


def test_idle_audio_is_let_go(engine: AsrEngine, clock: Clock) -> None:
    caller = Caller(engine)
    caller.decide("speech_started", 0)
    caller.decide("speech_stopped", 100)
    for _ in range(60):
        caller.speak(silence(1000), 1000)
        clock.now += 1.0
        assert settle(engine, caller) == []
    assert caller.slot.state._audio.end_ms - caller.slot.state._audio.start_ms <= 31_000


def test_lost_audio_is_silence_on_the_timeline(engine: AsrEngine) -> None:
    """Field report 52: after a gap the spans are still those of the client's samples."""
    caller = Caller(engine)
    caller.speak(recording("cards_001"))
    caller.sent += 5 * 16_000
    start_ms = caller.now_ms
    caller.speak(recording("goforward"))
    caller.commit("item_1", 0, 1095)
    caller.commit("item_2", start_ms, caller.now_ms)
    settle(engine, caller)
    assert [words(final.text) for final in caller.finals] == ["ten of clubs", "go forward ten meters"]


@pytest.mark.parametrize(
    ("config", "param"),
    [({"language": "de"}, "language"), ({"beam": 4}, "beam"), ({"partials": "yes"}, "partials"), ({"language": 1}, "language")],
)
def test_refused_configurations(engine: AsrEngine, config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        engine.validate(config)
    assert refused.value.param == param
    assert engine.validate({"language": "en-GB", "prompt": "cards"}).partials
