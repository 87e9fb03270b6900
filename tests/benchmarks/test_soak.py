"""What a soak run plans for its sessions, and how it judges what came of it: computed here by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.native import soak_judge, soak_plan
from benchmarks.native.soak_client import Response, Soaked
from benchmarks.native.soak_faults import Faults, Inbox, Order
from benchmarks.native.soak_judge import Sound
from benchmarks.native.soak_load import Fault, Kill, Memory
from benchmarks.native.talk import RATE
from stage_kit import SessionOver, Slot, StepFailed
from torch_kit.draws import session_seed

SCRIPT: list[soak_plan.Unit] = [["speak", 872, 873, "chunk_eos"], ["speak", 874, "turn_eos", "chunk_eos"], ["listen"]]
CODES = 6561


def sound(seed: int, seconds: float = 3.0) -> Sound:
    return np.random.default_rng(seed).standard_normal(round(seconds * RATE)).astype(np.float32)


def text(words: list[int]) -> str:
    return " ".join(map(str, words))


def plan(session: str) -> soak_plan.Plan:
    return soak_plan.Plan(session, SCRIPT, CODES)


def place(session: str) -> int:
    return int(soak_plan.places(torch.tensor([session_seed(session)]), len(SCRIPT)))


def spoken(session: str, first: int) -> Soaked:
    """One turn of two units, complete, all that was planned; every unit up to `first` listens."""
    talk = Soaked(name="0", session=session)
    talk.decisions = [(n, "listen", 1030 + 1000 * n, "", n + 1.2) for n in range(first)]
    talk.decisions += [(n, "speak", 1030 + 1000 * n, "r", n + 1.2) for n in (first, first + 1)]
    talk.decisions += [(first + 1, "turn_end", 1030 + 1000 * (first + 1), "r", first + 2.3)]
    words = [word for n in (first, first + 1) for word in plan(session).words(n)]
    talk.responses = {"r": Response(first + 1.2, text(words), "completed")}
    talk.done = {"r": first + 3.0}
    return talk


def test_a_plan_is_the_sessions_own_and_the_same_every_time() -> None:
    own, again, other = plan("a").messages(3, 4, ended=True), plan("a").messages(3, 4, ended=True), plan("b").messages(3, 4, ended=True)
    assert own == again != other
    assert [len(each) for each in own[:3]] == [25, 25, 25] and 8 <= len(own[3]) <= 25
    assert own[0] != own[1] and own[0] != plan("a").messages(4, 1, ended=False)[0]
    assert all(0 <= code < CODES for each in own for code in each)
    assert [len(each) for each in plan("a").messages(3, 4, ended=False)] == [25] * 4
    assert np.mean(np.array(own[:3]) == np.array(other[:3])) < 0.1


def test_rows_of_a_batch_get_what_their_session_gets_alone() -> None:
    names = ["a", "b", "c"]
    seeds = torch.tensor([session_seed(name) for name in names])
    units, made = torch.tensor([(2 << 32) + 1, (7 << 32), (2 << 32) + 1]), torch.tensor([4, 0, 24])
    drawn = soak_plan.codes(seeds, units, made, CODES).tolist()
    assert drawn == [
        plan("a").messages(2, 2, ended=False)[1][4],
        plan("b").messages(7, 1, ended=False)[0][0],
        plan("c").messages(2, 2, ended=False)[1][24],
    ]


def test_words_stand_where_the_script_has_some() -> None:
    for name in "abc":
        told = plan(name)
        for number in range(soak_plan.LISTENS, 12):
            unit = SCRIPT[(number + place(name)) % 3]
            assert told.unit(number) == unit
            assert len(told.words(number)) == sum(isinstance(token, int) for token in unit)
        assert told.unit(0) == told.unit(2) == ["listen"] and not told.words(1)


def test_a_script_keeps_its_units_short() -> None:
    script = soak_plan.script(0.5)
    assert max(len(unit) for unit in script) == soak_plan.MOST_WORDS + 3
    for unit in script:
        assert unit == ["listen"] or (unit[0], unit[-1]) == ("speak", "chunk_eos")
    assert any("turn_eos" in unit for unit in script)


def test_snr_is_energy_over_the_energy_of_the_difference() -> None:
    wave = sound(1)
    assert soak_judge.snr_db(wave, wave * 1.1) == pytest.approx(20, abs=0.01)
    assert soak_judge.snr_db(wave, wave[:5000]) == math.inf
    assert soak_judge.snr_db(wave, sound(2)) == pytest.approx(-3.01, abs=0.1)
    assert soak_judge.snr_db(wave[:0], wave) == soak_judge.snr_db(wave, np.full_like(wave, np.nan)) == -math.inf


def test_a_stretch_of_another_session_does_not_hide_in_a_long_turn() -> None:
    wave = sound(1, 20.1)
    mixed = wave.copy()
    mixed[5 * RATE : 5 * RATE + 600] = sound(2)[:600]
    assert soak_judge.snr_db(wave, mixed) > 20 > soak_judge.worst_second(wave, mixed)
    mixed = wave.copy()
    mixed[-1000:] = 0
    assert soak_judge.worst_second(wave, mixed) < 20


@pytest.mark.parametrize("crossed", [False, True])
def test_sound_of_another_session_is_found(crossed: bool) -> None:
    talks = [spoken(name, 3) for name in "ab"]
    for talk in talks:
        talk.responses["r"].pcm = talk.session
    waves = {("a", 1): sound(1), ("b", 1): sound(2)}

    def reference(session: str, turn: int, units: int, ended: bool) -> Sound:
        assert (units, ended) in {(2, True), (1, False)}
        return waves.get((session, turn), sound(100 + turn))

    def heard(file: str) -> Sound:
        wave = waves["ab"["ba".index(file) if crossed else "ab".index(file)], 1]
        return (wave + 0.01 * sound(9)).astype(np.float32)

    matches = soak_judge.mixing(talks, heard, reference)
    assert [match.fits for match in matches] == [not crossed] * 2
    assert [match.other_db > 30 for match in matches] == [crossed] * 2
    if not crossed:
        assert [match.turn for match in matches] == [1, 1]


def test_a_turn_is_known_however_many_were_begun_and_lost_before_it() -> None:
    talk = spoken("a", 9)
    talk.responses["r"].pcm = "a"

    def match(turn: int) -> soak_judge.Match:
        waves = {turn: sound(1)}
        (found,) = soak_judge.mixing([talk], lambda _: sound(1), lambda _, each, __, ___: waves.get(each, sound(100 + each)))
        return found

    assert match(7).turn == 7 and match(7).fits
    assert not match(40).fits, "no more turns than units"


def test_a_turn_that_was_stopped_within_the_silence_in_front_of_it_is_nobody_s() -> None:
    talk = spoken("a", 9)
    talk.responses["r"].pcm = "a"
    begins = np.concatenate([np.zeros(RATE // 5, np.float32), sound(1)])

    def matches(received: Sound) -> list[soak_judge.Match]:
        return soak_judge.mixing([talk], lambda _: received, lambda *_: begins)

    assert not matches(begins[: RATE // 10])
    assert [match.fits for match in matches(begins[: RATE // 2])] == [True]
    assert [match.fits for match in matches(np.zeros(RATE, np.float32))] == [False], "a turn does not stay silent"


def test_words_and_decisions_are_compared_as_they_are() -> None:
    name = next(name for name in "abcdefgh" if place(name) == 0)
    talk = spoken(name, 3)
    assert not soak_judge.misread(talk, plan(name), text) and not soak_judge.misdecided(talk, plan(name))
    talk.responses["r"].text = talk.responses["r"].text[:5]
    assert len(soak_judge.misread(talk, plan(name), text)) == 1, "a complete response says everything"
    talk.responses["r"].status = "failed"
    assert not soak_judge.misread(talk, plan(name), text), "one that failed may say less"
    talk.responses["r"].text = "another's"
    assert len(soak_judge.misread(talk, plan(name), text)) == 1
    talk.decisions[3] = (3, "listen", 4030, "", 4.2)
    assert soak_judge.misdecided(talk, plan(name)) == [3]


def test_units_are_numbered_by_where_they_end() -> None:
    talk = Soaked()
    talk.decisions = [(0, "listen", 1030, "", 1.2), (1, "listen", 4030, "", 4.2), (2, "listen", 4100, "", 5.4)]
    assert [unit.number for unit in soak_judge.decided(talk)] == [0, 3, 4], "two were not told of; silence closed the last"


def test_a_failure_is_known_by_what_it_did() -> None:
    fault = Fault("talker", "nan", "a", 3.0, 4.0)
    talk = spoken("a", 3)
    assert soak_judge.outcome(talk, fault, 6.0) == "goes on, speaks no more"
    assert soak_judge.outcome(talk, fault, 30.0) == "stands still"
    talk.responses["r"].status, talk.responses["r"].reason = "failed", "engine_failed"
    talk.troubles = [(1.0, "before"), (4.5, "after")]
    assert soak_judge.outcome(talk, fault, 6.0) == "response failed (engine_failed), goes on, speaks no more, told: after"
    talk.closed, talk.why = 5.0, "1011 stage_lost"
    assert "closed 1.0 s later: 1011 stage_lost" in soak_judge.outcome(talk, fault, 6.0)
    assert soak_judge.outcome(talk, Fault("talker", "nan", "a", 3.0), 6.0) == "did not happen"


def test_a_kill_may_take_the_open_response_and_nothing_else() -> None:
    name = next(name for name in "abcdefgh" if place(name) == 0)
    # units 3 and 4 speak, 5 listens, 6 would speak again
    talk, kill = spoken(name, 3), Kill("vocoder", 4.5, 1.0)
    talk.sent = [0.1 + packet / 10 for packet in range(200)]
    talk.decisions.append((5, "listen", 6030, "", 6.2))
    talk.responses["r"].status, talk.done["r"] = "failed", 4.6
    fine = soak_judge.recovery(talk, kill, plan(name), 6)
    assert (fine.lost, fine.untold, fine.others) == (1, [], [])
    assert fine.decides_s == pytest.approx(0.7) and math.isnan(fine.sounds_s)
    assert soak_judge.recovery(talk, kill, plan(name), 7).untold == [6], "no response begins that nobody can voice"
    assert soak_judge.recovery(talk, kill, plan(name), 9).others == ["2 units not decided: [7, 8]"]
    talk.decisions[-1] = (5, "speak", 6030, "s", 6.2)
    talk.responses["s"] = Response(6.2)
    talk.sound["s"] = [(100, 6.5), (200, 7.0)]
    assert soak_judge.recovery(talk, kill, plan(name), 6).sounds_s == pytest.approx(2.0)
    assert not soak_judge.recovery(talk, kill, plan(name), 6).others, "the turn was broken, so it may begin anew"
    talk.responses["s"].status, talk.done["s"] = "failed", 6.5
    assert len(soak_judge.recovery(talk, kill, plan(name), 6).others) == 1
    talk.responses["s"].begun = 4.9
    assert not soak_judge.recovery(talk, kill, plan(name), 6).others, "nobody could know of the kill yet"


def test_memory_is_flat_or_not() -> None:
    looks = [Memory(float(at), {"thinker": 1000.0 + grown}, 500.0) for at, grown in ((1, 0), (4, 10), (7, 60), (8, 62))]
    card, thinker = sorted(soak_judge.memory_rows(looks, 0, 9))
    assert thinker == ["thinker", 1000, 1010, 1061, 61, "+6.1 %"] and card[4] == 0
    assert not soak_judge.flat(thinker, 32) and soak_judge.flat(thinker, 64) and soak_judge.flat(card, 0)


def test_a_failure_happens_to_the_session_that_it_is_ordered_for(tmp_path: Path) -> None:
    inbox, faults = Inbox(tmp_path, "talker"), Faults(tmp_path)
    a, b = (Slot(name, None, lambda output: None, lambda: None, 1, None) for name in "ab")
    spoilt: list[Slot] = []

    def poison(slot: Slot) -> bool:
        spoilt.append(slot)
        return len(spoilt) > 1

    faults.order("talker", Order("a", "step"))
    inbox.meet([b], poison)
    assert faults.done("talker") is None
    with pytest.raises(StepFailed) as failed:
        inbox.meet([b, a], poison)
    assert failed.value.slot is a and faults.done("talker") is not None
    inbox.meet([b, a], poison)
    faults.order("talker", Order("b", "over"))
    with pytest.raises(SessionOver):
        inbox.meet([a, b], poison)
    faults.order("talker", Order("a", "nan"))
    inbox.meet([a], poison)
    assert faults.done("talker") is None, "there was nothing to spoil yet"
    inbox.meet([a], poison)
    assert spoilt == [a, a] and faults.done("talker") is not None
    faults.order("talker", Order("a", "error"))
    with pytest.raises(RuntimeError):
        inbox.meet([a, b], poison)
    assert faults.done("talker") is None, "it goes on until the session is alone"
    with pytest.raises(RuntimeError):
        inbox.meet([a], poison)
    inbox.meet([a], poison)
