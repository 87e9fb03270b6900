"""Stage `turn` on recorded speech, driven as the kit drives it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stage_kit import Label
from tests.vad_svc.support.audio import recording, silence
from tests.vad_svc.support.harness import Caller, Clock, settle
from vad_svc.engine import TurnEngine
from vad_svc.smart_turn import Scorer, SmartTurn

pytestmark = pytest.mark.models

TURN = ["speech_started", "pause", "speech_stopped"]


def _spoken(*parts: str | int) -> NDArray[np.float32]:
    return np.concatenate([silence(part) if isinstance(part, int) else recording(part) for part in parts])


def test_a_question(engine: TurnEngine) -> None:
    caller = Caller(engine)
    decided = caller.hear(_spoken(500, "synth_q_sky_blue", 1000))
    assert [d.kind for d in decided] == TURN
    started, pause, stopped = decided
    assert 500 <= started.t_ms + 300 <= 1000
    assert pause.t_ms == stopped.t_ms
    assert 2000 <= stopped.t_ms <= 2400
    assert pause.decided_at_ms == pause.t_ms + 128
    assert stopped.decided_at_ms == stopped.t_ms + 512
    assert stopped.reason == "silence"


def test_appends_of_any_size_decide_the_same(engine: TurnEngine) -> None:
    audio = _spoken(500, "synth_incomplete_um_because", 300, "goforward", 2500)
    for mode in ("server_vad", "semantic_vad"):
        decided = {tuple(Caller(engine, mode=mode).hear(audio, size)) for size in (7, 20, 250, None)}
        assert len(decided) == 1


@pytest.mark.behaviour("U41")
def test_adjacent_turns_in_one_append(engine: TurnEngine) -> None:
    decided = Caller(engine).hear(_spoken(500, "cards_001", 900, "goforward", 900), None)
    assert [d.kind for d in decided] == TURN * 2
    assert [d.t_ms for d in decided] == sorted(d.t_ms for d in decided)
    assert decided[3].t_ms >= decided[2].t_ms


@pytest.mark.behaviour("U42")
def test_semantic_vad_ends_a_finished_turn_early_and_waits_for_an_unfinished_one(engine: TurnEngine) -> None:
    done = Caller(engine, mode="semantic_vad").hear(_spoken(500, "synth_q_capital_france", 2500))[-1]
    assert (done.kind, done.reason, done.decided_at_ms - done.t_ms) == ("speech_stopped", "smart_turn", 256)
    assert done.score > 0.97
    open_end = Caller(engine, mode="semantic_vad").hear(_spoken(500, "synth_incomplete_um_because", 2500))[-1]
    assert (open_end.kind, open_end.reason) == ("speech_stopped", "max_pause")
    assert open_end.decided_at_ms - open_end.t_ms == 2016
    assert 0 < open_end.score < 0.1


@pytest.mark.behaviour("U42")
def test_resumed_speech_is_one_turn(engine: TurnEngine) -> None:
    decided = Caller(engine, mode="semantic_vad").hear(_spoken(500, "synth_incomplete_um_because", 300, "goforward", 2500))
    kinds = [d.kind for d in decided]
    assert kinds.count("speech_started") == kinds.count("speech_stopped") == 1
    assert kinds.count("speech_resumed") == kinds.count("pause") - 1 >= 1


class _Broken(SmartTurn):
    """A model that cannot answer."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, audio: NDArray[np.float32]) -> float:
        self.asked += 1
        raise RuntimeError("no")


@pytest.mark.behaviour("U42")
def test_failing_model_falls_back_for_that_session_only(engine: TurnEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = _spoken(500, "cards_001", 1500)
    caller, other, broken = Caller(engine, mode="semantic_vad"), Caller(engine, mode="semantic_vad"), _Broken()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_scorer", Scorer(broken))
        stopped = [caller.hear(audio)[-1] for _ in range(2)]
    assert [(d.kind, d.reason, d.decided_at_ms - d.t_ms) for d in stopped] == [("speech_stopped", "silence", 640)] * 2
    assert broken.asked == 1
    assert other.hear(audio)[-1].reason == "smart_turn"


@pytest.mark.behaviour("U42")
def test_a_score_that_never_comes_ends_by_the_fallback(engine: TurnEngine, clock: Clock) -> None:
    caller = Caller(engine, mode="semantic_vad")
    session = caller.slot.state
    caller.send(_spoken(500, "cards_001", 1500))
    while engine.ready(caller.slot) is not None:
        engine.step([caller.slot])
        if session.score is not None:
            session.score = type(session.score)()
    assert session.stalled
    due = engine.due(caller.slot)
    assert due is not None
    assert due - clock() < 0.1
    clock.now += 2.0
    settle(engine, [caller])
    stopped = caller.slot.decided[-1]
    assert (stopped.kind, stopped.reason, stopped.decided_at_ms - stopped.t_ms) == ("speech_stopped", "silence", 640)


def test_sessions_do_not_mix_and_one_does_not_wait_for_the_score_of_another(engine: TurnEngine) -> None:
    names = ["synth_q_sky_blue", "cards_001", "librivox_sense_0880", "goforward"]
    audio = {name: _spoken(500, name, 2500) for name in names}
    alone = {name: Caller(engine, mode="semantic_vad").hear(audio[name]) for name in names}
    together = {name: Caller(engine, name, mode="semantic_vad") for name in names}
    for start in range(0, max(a.size for a in audio.values()), 1600):
        for name, caller in together.items():
            caller.send(audio[name][start : start + 1600])
        settle(engine, list(together.values()))
    assert {name: caller.slot.decided for name, caller in together.items()} == alone


@pytest.mark.behaviour("U41", "T4")
def test_clear_forgets_the_turn_and_keeps_the_clock(engine: TurnEngine) -> None:
    caller = Caller(engine)
    assert [d.kind for d in caller.hear(_spoken(500, "cards_001"))] == ["speech_started"]
    engine.cleared(caller.slot)
    cleared_at = caller.sent // 16
    assert caller.hear(silence(1500)) == []
    started, *_, stopped = caller.hear(_spoken("goforward", 900))
    assert started.t_ms >= cleared_at + 1500 - 300
    assert stopped.t_ms > started.t_ms
    engine.cleared(caller.slot)
    again = caller.hear(recording("cards_001"))[0]
    assert again.t_ms >= stopped.decided_at_ms


def test_mode_none_hears_nothing_and_a_change_takes_effect_with_the_next_append(engine: TurnEngine) -> None:
    caller = Caller(engine, mode="none")
    assert caller.hear(_spoken(500, "cards_001", 900)) == []
    caller.configure(mode="server_vad")
    switched_at = caller.sent // 16
    decided = caller.hear(_spoken("cards_001", 900))
    assert [d.kind for d in decided] == TURN
    assert decided[0].t_ms >= switched_at


def test_change_waits_behind_audio_that_came_before_it(engine: TurnEngine) -> None:
    caller = Caller(engine, silence_duration_ms=300)
    caller.send(_spoken(500, "cards_001", 400), None)
    caller.configure(silence_duration_ms=1000)
    caller.send(_spoken("goforward", 1100), None)
    settle(engine, [caller])
    stops = [d.decided_at_ms - d.t_ms for d in caller.slot.decided if d.kind == "speech_stopped"]
    assert stops == [320, 1024]


def test_switching_off_in_mid_speech_ends_silently(engine: TurnEngine, clock: Clock) -> None:
    caller = Caller(engine)
    assert [d.kind for d in caller.hear(_spoken(500, "goforward")[:32_000])] == ["speech_started"]
    caller.configure(mode="none")
    assert caller.hear(silence(2000)) == []
    clock.now += 60
    assert settle(engine, [caller]) == 0
    assert engine.due(caller.slot) is None


def test_no_packets_end_the_turn_by_the_wall_clock(engine: TurnEngine, clock: Clock) -> None:
    """Field report 31: half a minute of speech, and then nothing arrives any more."""
    caller = Caller(engine)
    assert caller.hear(_spoken(500, *["librivox_sense_0890"] * 6))[0].kind == "speech_started"
    due = engine.due(caller.slot)
    assert due is not None
    assert due == pytest.approx(clock() + 1.5 * 0.5 + 1.0)
    clock.now = due - 0.01
    assert engine.ready(caller.slot) is None
    clock.now = due
    settle(engine, [caller])
    stopped = caller.slot.decided[-1]
    assert (stopped.kind, stopped.reason) == ("speech_stopped", "timeout")
    assert stopped.t_ms <= stopped.decided_at_ms <= caller.sent // 16
    assert engine.due(caller.slot) is None
    assert [d.kind for d in caller.hear(_spoken("cards_001", 900))] == TURN


def test_digital_silence_ends_long_speech_by_audio_time(engine: TurnEngine) -> None:
    """Field report 31, its other half."""
    decided = Caller(engine).hear(_spoken(500, *["librivox_sense_0890"] * 6, 1000))
    assert [d.kind for d in decided].count("speech_started") == [d.kind for d in decided].count("speech_stopped")
    assert decided[-1].kind == "speech_stopped"


def test_timeline_counts_samples_and_follows_the_client_over_a_gap(engine: TurnEngine) -> None:
    """Field report 52: ten minutes in, and after lost audio, times are those of the client's samples."""
    caller = Caller(engine)
    caller.hear(_spoken(500, "cards_001", 900))
    first = caller.slot.decided[0].t_ms
    caller.sent += 600 * 16_000
    gap_end = caller.sent // 16
    caller.hear(_spoken(500, "cards_001", 900))
    assert abs((caller.slot.decided[3].t_ms - gap_end) - first) <= 64


def test_decisions_carry_the_label_of_the_audio(engine: TurnEngine) -> None:
    caller = Caller(engine)
    caller.label = Label(epoch=3, turn=2)
    assert {d.label for d in caller.hear(_spoken(500, "cards_001", 900))} == {caller.label}


def test_a_burst_is_taken_in_pieces(engine: TurnEngine) -> None:
    burst, live = Caller(engine, "burst"), Caller(engine, "live")
    burst.send(_spoken(*["librivox_sense_0870"] * 4), None)
    live.send(silence(32), None)
    engine.step([burst.slot, live.slot])
    assert not live.slot.state.has_frame
    assert burst.slot.state.next == 8 * 512
