"""Judges what the clients of a soak run saw: whose sound and words these were, what was missed, what a failure did to whom."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.native.load import SKIPPED
from benchmarks.native.soak_client import Soaked
from benchmarks.native.soak_load import Fault, Kill, Memory, Phase
from benchmarks.native.soak_plan import Plan
from benchmarks.native.talk import FIRST_MS, PACKET_MS, RATE, UNIT_MS, units

Sound = NDArray[np.float32]
OWN_DB, OTHER_DB = 10.0, 3.0
"""A session's sound is above the first against its own reference, and below the second against any other.

Alone in its steps a session sounds as its reference does, up to the rounding of PCM16 (75 dB). Beside others its mels differ by what fp16
loses, which moves the pitch, and what is summed of it: mels that differ by 1e-3 of their spread lose down to 12.9 dB of a second with the
released sizes, 21 dB in the middle of 24 (on a CPU, in fp32).
"""
SETTLING_S = 90.0
"""Memory is not judged before: the store keeps what was said for a minute, so it fills until then."""
SHORTEST = RATE // 4
"""Samples of a stretch that are judged by themselves."""
NOTICED_S = 0.5
"""A response that begins so soon after a kill was begun by those who could not know of it: it counts as open."""
AGAIN_S = 2.0
"""What a session may need to notice a kill, or to begin again after it."""
FLAT = 0.05
"""What may be added from the first third of a run to its last, as a share."""
STILL_S = 6.0
"""A session that decided nothing for so long, up to its end, stands still."""


def snr_db(reference: Sound, received: Sound) -> float:
    """Over what both have: energy of the reference over that of the difference."""
    count = min(len(reference), len(received))
    wanted, error = reference[:count].astype(np.float64), received[:count].astype(np.float64) - reference[:count]
    power, noise = float(wanted @ wanted), float(error @ error)
    if not power or not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(power / noise) if noise else math.inf


def worst_second(reference: Sound, received: Sound) -> float:
    """The lowest SNR of any second, so that no short stretch hides in a long turn; a short rest belongs to the second before it."""
    count = min(len(reference), len(received))
    cuts = [*range(0, max(1, count - SHORTEST), RATE), count]
    return min(snr_db(reference[first:last], received[first:last]) for first, last in itertools.pairwise(cuts))


class Match(msgspec.Struct):
    """One response's sound. `own_db`: its worst second against its own reference; `other_db`: against the likest of the others."""

    name: str
    response: str
    turn: int
    """Of the model, as which it was recognised."""
    seconds: float
    longer: bool
    """There is more of it than was planned."""
    own_db: float
    other_db: float = -math.inf

    @property
    def fits(self) -> bool:
        """It is its own, and nobody else's."""
        return self.own_db > OWN_DB and self.other_db < OTHER_DB and not self.longer


def mixing(
    talks: Sequence[Soaked], heard: Callable[[str], Sound], reference: Callable[[str, int, int, bool], Sound], every: int = 1
) -> list[Match]:
    """Every `every`-th response, if it has sound. `heard`: of a file; `reference`: of (session, turn, units, whether it ends with them)."""
    matches: list[Match] = []
    rounds: dict[int, list[tuple[int, Sound, Sound]]] = {}
    for talk in talks:
        turn = 0
        for nth, (name, response) in enumerate(talk.responses.items()):
            count = len(_spoken(talk, name))
            if nth % every or not response.pcm or not count:
                continue
            received, ended = heard(response.pcm), any(kind == "turn_end" and whose == name for _, kind, _, whose, _ in talk.decisions)
            if len(received) < SHORTEST and not received.any():
                # stopped within the silence in front of a turn, which is nobody's
                continue

            def own_of(each: int, talk: Soaked = talk, count: int = count, ended: bool = ended) -> Sound:
                return reference(talk.session, each, count, ended)

            def begins(each: int, talk: Soaked = talk, alone: bool = ended and count == 1, received: Sound = received) -> bool:
                return snr_db(reference(talk.session, each, 1, alone), received) > OWN_DB

            # turns without a response are counted, too, and a model that is placed anew begins with 1
            guesses = (nth + 1, turn + 1, *range(1, _latest(talk, name) + 2))
            turn = next((each for each in guesses if begins(each)), turn + 1)
            own = own_of(turn)
            rounds.setdefault(nth, []).append((len(matches), own, received))
            longer = len(received) > len(own)
            matches.append(Match(talk.name, name, turn, len(received) / RATE, longer, worst_second(own, received)))
    for together in rounds.values():
        for index, _, received in together:
            others = [snr_db(sound, received) for other, sound, _ in together if other != index]
            matches[index].other_db = max(others, default=-math.inf)
    return matches


class Decided(msgspec.Struct, frozen=True):
    """A unit. `number` as the session's plan has it."""

    number: int
    speaks: bool
    response: str
    came: float


def decided(talk: Soaked) -> list[Decided]:
    """By where units end, for a model that is placed anew does not tell of those that it only hears again. Silence that closes a unit does
    not move the end."""
    found: list[Decided] = []
    for _, kind, end_ms, response, came in talk.decisions:
        if kind != "turn_end":
            number = max(found[-1].number + 1 if found else 0, round((end_ms - FIRST_MS) / UNIT_MS))
            found.append(Decided(number, kind == "speak", response, came))
    return found


def _spoken(talk: Soaked, response: str) -> list[int]:
    """Numbers of the units that the response has."""
    return [unit.number for unit in decided(talk) if unit.speaks and unit.response == response]


def _latest(talk: Soaked, response: str) -> int:
    """Number of its last unit: no more turns can have begun before it."""
    return max(_spoken(talk, response), default=0)


def misread(talk: Soaked, plan: Plan, text: Callable[[list[int]], str]) -> list[str]:
    """Responses whose words are not the session's own. One that is not complete may have said less."""
    wrong = []
    for name, response in talk.responses.items():
        wanted = text([word for number in _spoken(talk, name) for word in plan.words(number)])
        fine = response.text == wanted if response.status == "completed" else wanted.startswith(response.text)
        if not fine:
            wrong.append(f"{name} ({response.status or 'open'}): {response.text!r}, not {wanted!r}")
    return wrong


def misdecided(talk: Soaked, plan: Plan) -> list[int]:
    """Units that did not do what the session's plan says."""
    return [unit.number for unit in decided(talk) if unit.speaks != (plan.unit(unit.number)[0] == "speak")]


def missed(talk: Soaked, seconds: int) -> list[int]:
    """Units that lagged for longer than a unit, or were never answered."""
    numbers = iter(decided(talk))
    own = [each if each[1] == "turn_end" else (next(numbers).number, *each[1:]) for each in talk.decisions]
    lags = {unit.number: unit.lag_ms for unit in units(msgspec.structs.replace(talk, decisions=own))}
    return [number for number in range(SKIPPED, seconds) if not lags.get(number, math.inf) <= UNIT_MS]


def complaints(talk: Soaked, plan: Plan, text: Callable[[list[int]], str], seconds: int) -> list[str]:
    """What is wrong with a session that nothing was done to."""
    found = [f"closed: {talk.why}"] if talk.closed is not None else []
    found += [f"error: {message}" for message in talk.errors]
    found += [f"{name} {each.status} {each.reason}" for name, each in talk.responses.items() if each.status not in ("", "completed")]
    late = missed(talk, seconds)
    found += [f"{len(late)} units missed: {late[:10]}"] if late else []
    strange = misdecided(talk, plan)
    found += [f"decided otherwise than planned: {strange[:10]}"] if strange else []
    return found + [f"words of another: {each}" for each in misread(talk, plan, text)]


def broken(talk: Soaked, since: float) -> list[str]:
    """Responses that ended otherwise than complete."""
    return [name for name, each in talk.responses.items() if each.status not in ("", "completed") and talk.done[name] >= since]


def outcome(talk: Soaked, fault: Fault, ends: float) -> str:
    """What a failure did to the session that it was meant for. `ends`: when its last unit was complete."""
    if fault.at is None:
        return "did not happen"
    found = [f"response {talk.responses[name].status} ({talk.responses[name].reason})" for name in broken(talk, fault.at)[:1]]
    last = max((came for *_, came in talk.decisions), default=0.0)
    again = [moment - fault.at for moment in _new_sounds(talk, fault.at)]
    if talk.closed is not None and talk.closed >= fault.at:
        found.append(f"closed {talk.closed - fault.at:.1f} s later: {talk.why}")
    elif last < ends - STILL_S:
        found.append("stands still")
    else:
        found.append(f"goes on, its next response {min(again):.1f} s later" if again else "goes on, speaks no more")
    told = [message for at, message in talk.troubles if at >= fault.at]
    return ", ".join([*found, *([f"told: {told[0]}"] if told else [])])


def _new_sounds(talk: Soaked, since: float) -> list[float]:
    """When each response that began later was first heard."""
    return [talk.sound[name][0][1] for name, each in talk.responses.items() if each.begun > since and talk.sound.get(name)]


class Recovery(msgspec.Struct):
    """What a kill did to one session. Seconds from the kill; NaN: not any more."""

    name: str
    lost: int
    """Responses that were open and did not become complete."""
    untold: list[int]
    """Units at that moment that were heard and not told of, and the first of turns that were stopped since nobody could voice them."""
    others: list[str]
    """What else it lost."""
    late: int
    """Units missed once it went on."""
    decides_s: float
    sounds_s: float
    """To the first sound of a response that began after the kill."""


def recovery(talk: Soaked, kill: Kill, plan: Plan, seconds: int) -> Recovery:
    """Nothing may be lost but the response that was open: all else is decided as planned, once, and the session goes on."""
    others = [f"closed: {talk.why}"] if talk.closed is not None else []
    gone = broken(talk, kill.at)
    after = [name for name in gone if talk.responses[name].begun > kill.at + NOTICED_S]
    others += [
        f"{name}, begun {talk.responses[name].begun - kill.at:.1f} s after the kill, {talk.responses[name].status}" for name in after
    ]

    def since(number: int) -> float:
        """From the kill to the end of the unit."""
        return talk.sent[0] + (FIRST_MS + UNIT_MS * number - PACKET_MS) / 1000 - kill.at

    def excused(number: int) -> bool:
        voiceless = kill.stage != "thinker" and since(number) < kill.ready_s + AGAIN_S and plan.unit(number)[0] == "speak"
        return since(number) > -AGAIN_S and (since(number) < AGAIN_S or voiceless)

    absent = sorted(set(range(seconds)) - {unit.number for unit in decided(talk)})
    unheard = [number for number in absent if not excused(number)]
    others += [f"{len(unheard)} units not decided: {unheard[:10]}"] if unheard else []
    strange = [number for number in misdecided(talk, plan) if not -2 * AGAIN_S < since(number) < kill.ready_s + 3 * AGAIN_S]
    others += [f"decided otherwise than planned: {strange[:10]}"] if strange else []
    return Recovery(
        name=talk.name,
        lost=len(gone) - len(after),
        untold=[number for number in absent if excused(number)],
        others=others,
        late=sum(since(number) > kill.ready_s + 3 * AGAIN_S for number in missed(talk, seconds)),
        decides_s=min((came - kill.at for *_, came in talk.decisions if came > kill.at), default=math.nan),
        sounds_s=min((moment - kill.at for moment in _new_sounds(talk, kill.at)), default=math.nan),
    )


def thirds(values: Iterable[tuple[float, float]], begins: float, ends: float) -> list[list[float]]:
    """Values by the third of the time in which they lie."""
    found: list[list[float]] = [[], [], []]
    for at, value in values:
        if begins <= at < ends and math.isfinite(value):
            found[int((at - begins) / (ends - begins) * 3)].append(value)
    return found


def memory_rows(memory: Sequence[Memory], begins: float, ends: float) -> list[list[object]]:
    """Name, medians of the three thirds in MB, and growth from the first to the last: MB and per cent."""
    names = sorted({name for look in memory for name in look.resident})
    series = {name: [(look.at, look.resident.get(name, math.nan)) for look in memory] for name in names}
    card = [(look.at, look.card) for look in memory if look.card is not None]
    return [
        [name, *(middle := [report.percentile(part, 50) for part in thirds(each, begins, ends)]), *growth(middle)]
        for name, each in {**series, **({"card": card} if card else {})}.items()
    ]


def flat(row: Sequence[object], spare: float) -> bool:
    """Of a row of thirds: it grew by less than `spare`, or by less than FLAT of what it was."""
    first, grown = float(str(row[1])), float(str(row[4]))
    return not grown > max(spare, FLAT * first)


def growth(middle: Sequence[float]) -> list[object]:
    """From the first to the last: absolute and per cent."""
    return [middle[-1] - middle[0], f"{(middle[-1] / middle[0] - 1) * 100:+.1f} %" if middle[0] else ""]


def lag_rows(talks: Sequence[Soaked], phase: Phase) -> list[list[object]]:
    """Of units that speak: p50 and p95 of the three thirds in ms, and growth from the first to the last."""
    lags = [(unit.number + 1.0, unit.lag_ms) for talk in talks for unit in units(talk) if unit.speaks and unit.number >= SKIPPED]
    parts = thirds(lags, SKIPPED, phase.seconds + 1)
    rows: list[list[object]] = []
    for q in (50, 95):
        middle = [report.percentile(part, q) for part in parts]
        rows.append([f"lag p{q}", *middle, *growth(middle)])
    return rows
