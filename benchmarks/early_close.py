"""How much earlier a native model's unit is closed when the user stops, by recorded speech, and whether any of a voice was passed over.

The real detector (Silero), a real gateway, a scripted model that only listens, through their processes and in real time; the speech begins
in each phase of the grid of units. `python -m benchmarks.early_close`; `--early-close-ms N` (200), `--phases N` (10), `--together N` (6).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
import numpy as np
import websockets
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.house import RATE, ROOT, Talker, house, speech

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDERS = (ROOT / "benchmarks" / "audio", ROOT.parent / "shared" / "audio", ROOT / "parley" / "assets")
UNIT_MS, WINDOW_MS, LEAD_MS, TAIL_MS = 1000, 10, 300, 2600
LOUD, LEAST_MS = 0.01, 30
"""Root mean square, of 1, above which a window of the clean recording is sound; so much of it in a row is voice, less a click."""
SNR_DB = 20
PAUSES_MS = (250, 350, 450, 650, 900)
PROFILE = """
model: early-close
session: {{turn_detection: {{type: server_vad}}}}
native: {{unit_ms: {unit_ms}, early_close_ms: {early_close_ms}}}
configure:
  thinker:
    session: {{instructions: instructions, previous: history, listen_until_ms: heard_until_ms, unit_log: unit_log}}
    options: [script]
nodes:
  turn: {{stages: [turn], inputs: ["input:audio", "input:control"]}}
  thinker: {{stages: [thinker], inputs: [input]}}
  talker: {{stages: [talker], inputs: ["thinker:thought"]}}
  vocoder: {{stages: [vocoder], inputs: [talker]}}
publish: {{turn: [decision], thinker: [text, decision], vocoder: [audio]}}
"""


class Case(msgspec.Struct, frozen=True):
    """What one conversation says."""

    clip: str
    kind: str
    """asks; asks in noise; goes on (the same again behind a pause)."""
    lead_ms: int
    pause_ms: int = 0


class Found(msgspec.Struct):
    """One conversation, in milliseconds of its input."""

    case: Case
    voice_end_ms: int
    units: list[tuple[int, int]]
    saved_ms: int
    """The unit with the end of the voice, against whole seconds."""
    cut_ms: int
    """By so much the unit that the end of the voice closed is shorter; 0: none was."""
    after_ms: int
    """Where that unit ended, behind the voice; 0: none was."""
    lag_ms: float
    """From the last sample of the first unit that ended behind the voice to its decision at the client."""
    passed_over_ms: int
    sound_passed_over_ms: int
    voice_passed_over_ms: int
    within: int
    """Units that were closed early before the voice had ended."""


def clips() -> dict[str, NDArray[np.float32]]:
    """By name, at the wire's rate; the same recording may lie in several folders, also under two names."""
    paths = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.wav"))}
    once = {path.read_bytes(): (name, path) for name, path in sorted(paths.items(), reverse=True)}
    return {name: np.asarray(speech(path) / np.float32(32768), np.float32) for name, path in sorted(once.values())}


def cases(names: Sequence[str], phases: int) -> list[Case]:
    leads = [LEAD_MS + UNIT_MS * phase // phases for phase in range(phases)]
    asks = [Case(name, kind, lead) for kind in ("asks", "asks in noise") for name in names for lead in leads]
    step = max(1, -(-phases // 3))
    return asks + [Case(name, "goes on", lead, pause) for name in names for pause in PAUSES_MS for lead in leads[::step]]


def spoken(case: Case, clip: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """What is said, and which of its windows of 10 ms are sound, from the recording without noise."""
    window = RATE * WINDOW_MS // 1000
    parts = [np.zeros(case.lead_ms * RATE // 1000, np.float32), clip]
    if case.kind == "goes on":
        voiced = np.flatnonzero(voice_in(sound_in(clip, window)))
        begin, end = voiced[0] * window, (voiced[-1] + 1) * window
        parts = [parts[0], clip[:end], np.zeros(case.pause_ms * RATE // 1000, np.float32), clip[begin:]]
    said = np.concatenate([*parts, np.zeros(TAIL_MS * RATE // 1000, np.float32)])
    sound = sound_in(said, window)
    if case.kind == "asks in noise":
        loud = said[: len(sound) * window][np.repeat(sound, window)]
        level = float(np.sqrt(np.mean(loud * loud))) * 10 ** (-SNR_DB / 20)
        said = said + level * np.random.default_rng(case.lead_ms).standard_normal(len(said)).astype(np.float32)
    return (np.clip(said, -1, 1) * 32767).astype(np.int16), sound


def sound_in(samples: NDArray[np.float32], window: int) -> NDArray[np.bool_]:
    windows = samples[: len(samples) // window * window].reshape(-1, window)
    return np.asarray(np.sqrt(np.mean(windows * windows, axis=1)) > LOUD)


def voice_in(sound: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Sound that lasts."""
    least, voice = LEAST_MS // WINDOW_MS, np.zeros(len(sound), bool)
    for start in range(len(sound) - least + 1):
        if sound[start : start + least].all():
            voice[start : start + least] = True
    return voice


async def converse(address: str, case: Case, clip: NDArray[np.float32], early_close_ms: int) -> Found:
    said, sound = spoken(case, clip)
    async with websockets.connect(f"ws://{address}/v1/realtime?parley=1", max_size=None) as socket:
        update = {"type": "realtime", "model_options": {"script": "l" * 60}}
        talker = Talker(socket)
        await socket.send(msgspec.json.encode({"type": "session.update", "session": update}).decode())
        await talker.until("session.updated")
        begins = talker.say(said)
        while talker.said < begins + len(said):  # noqa: ASYNC110  (a microphone has no event)
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.3)
        decided = [(at, event) for at, event in talker.events if event["type"] == "session.decision"]
        await talker.close()
    return judge(case, sound, begins * 1000 // RATE, decided, talker)


def judge(case: Case, sound: NDArray[np.bool_], begins_ms: int, decided: list[tuple[float, dict[str, Any]]], talker: Talker) -> Found:
    units = [(event["t_ms"], event["end_ms"]) for _, event in decided]
    voiced, loud = (np.flatnonzero(windows) * WINDOW_MS + begins_ms for windows in (voice_in(sound), sound))
    voice_end_ms = int(voiced[-1]) + WINDOW_MS
    at, closed = next((at, event["end_ms"]) for at, event in decided if event["end_ms"] >= voice_end_ms)
    cut = next(((start, end) for start, end in units if end >= voice_end_ms and end - start < UNIT_MS), None)
    gaps = [(end, start) for (_, end), (start, _) in pairwise(units) if start > end]
    inside = [sum(int(np.sum((at < start) & (at + WINDOW_MS > end))) * WINDOW_MS for end, start in gaps) for at in (loud, voiced)]
    return Found(
        case=case,
        voice_end_ms=voice_end_ms,
        units=units,
        saved_ms=-(-voice_end_ms // UNIT_MS) * UNIT_MS - closed,
        cut_ms=UNIT_MS - cut[1] + cut[0] if cut else 0,
        after_ms=cut[1] - voice_end_ms if cut else 0,
        lag_ms=(at - talker.sent_at(closed * RATE // 1000)) * 1000,
        passed_over_ms=sum(start - end for end, start in gaps),
        sound_passed_over_ms=inside[0],
        voice_passed_over_ms=inside[1],
        within=sum(end < voice_end_ms and end - start < UNIT_MS for start, end in units),
    )


async def measure(arguments: argparse.Namespace) -> list[Found]:
    sounds, found = clips(), []
    with tempfile.TemporaryDirectory(prefix="parley-early-") as folder:
        profile = Path(folder) / "early-close.yaml"
        profile.write_text(PROFILE.format(unit_ms=UNIT_MS, early_close_ms=arguments.early_close_ms))
        env = {"PARLEY_PROFILE": str(profile), "PARLEY_TURN_SLOTS": "64", "PARLEY_TURN_SEMANTIC": "0"}
        async with house("native", **env) as address:
            todo = sorted(cases(list(sounds), arguments.phases), key=lambda case: len(sounds[case.clip]))
            for begin in range(0, len(todo), arguments.together):
                batch = todo[begin : begin + arguments.together]
                talks = (converse(address, case, sounds[case.clip], arguments.early_close_ms) for case in batch)
                found += await asyncio.gather(*talks)
                print(f"{len(found)} of {len(todo)}", flush=True)
    return found


def row(name: str, found: list[Found]) -> list[object]:
    saved, cut = [each.saved_ms for each in found], [each.cut_ms for each in found]
    seconds = sum(each.units[-1][1] for each in found) / 1000
    return [
        name,
        len(found),
        *(report.percentile(saved, q) for q in (50, 95)),
        *(report.percentile(cut, q) for q in (50, 95)),
        *(report.percentile([each.after_ms for each in found if each.cut_ms], q) for q in (50, 95)),
        sum(each.cut_ms == 0 for each in found),
        report.percentile([each.lag_ms for each in found], 95),
        sum(each.within for each in found),
        sum(each.passed_over_ms for each in found) / len(found),
        sum(each.sound_passed_over_ms for each in found),
        sum(each.voice_passed_over_ms for each in found),
        f"{(sum(len(each.units) for each in found) / seconds - 1) * 100:.1f}",
    ]


def plot(found: list[Found], early_close_ms: int) -> None:
    figure, axis = plt.subplots(figsize=(9, 3.6))
    for kind in ("asks", "asks in noise"):
        some = [each for each in found if each.case.kind == kind]
        axis.scatter([each.voice_end_ms % UNIT_MS for each in some], [each.cut_ms for each in some], s=9, label=kind)
    at = np.arange(UNIT_MS)
    axis.plot(
        at, (UNIT_MS - early_close_ms - at) % UNIT_MS, color="grey", linewidth=0.8, label=f"{early_close_ms} ms after the voice, exactly"
    )
    axis.set_xlabel("where in its second the voice ends, ms")
    axis.set_ylabel("ms that the model decides earlier")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(report.RESULTS / "early_close.png", dpi=120)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--early-close-ms", type=int, default=200)
    parser.add_argument("--phases", type=int, default=10)
    parser.add_argument("--together", type=int, default=6)
    arguments = parser.parse_args()
    found = await measure(arguments)
    header = (
        *(
            "what",
            "conversations",
            "saved p50 ms",
            "saved p95",
            "closed unit shorter by p50 ms",
            "p95",
            "ends behind the voice p50 ms",
            "p95",
        ),
        *(
            "none closed",
            "lag p95 ms",
            "closed in mid-speech",
            "passed over, ms each",
            "of all that sound, ms",
            "voice, ms",
            "more units %",
        ),
    )
    kinds = list(dict.fromkeys(each.case.kind for each in found))
    body = [row(kind, [each for each in found if each.case.kind == kind]) for kind in kinds]
    clip_rows = [row(name, [each for each in found if each.case.clip == name]) for name in dict.fromkeys(each.case.clip for each in found)]
    pauses = [row(f"{ms} ms", [each for each in found if each.case.pause_ms == ms]) for ms in PAUSES_MS]
    sections = [
        (f"A unit is closed {arguments.early_close_ms} ms after the voice; model listens; {arguments.phases} phases", notes(arguments)),
        ("By what is said", report.table(header, body)),
        ("By recording", report.table(header, clip_rows)),
        ("Goes on, by the pause before", report.table(header, pauses)),
    ]
    path = report.write("early_close", "Early unit close", sections, [msgspec.to_builtins(each) for each in found])
    plot(found, arguments.early_close_ms)
    print(path.read_text())


def notes(arguments: argparse.Namespace) -> str:
    early, pauses = arguments.early_close_ms, ", ".join(map(str, PAUSES_MS))
    return f"""\
- saved: when the unit with the end of the voice is closed, against seconds that are all whole. A voice that ends in the last {early} ms
  of a second saves nothing there: that unit is whole, and the next one is closed.
- closed unit: the one that the end of the voice closed, whichever it is: so much earlier the model decides about what it would have decided
  with silence to the end of that unit.
- none closed: a unit is cut short once within what would have been its time, or the detector took the last sound for no voice.
- voice: at least {LEAST_MS} ms in a row above {LOUD} (root mean square of 10 ms) in the recording without noise; no detector's word.
  Sound: any such 10 ms, clicks too.
- lag: from the last sample of that unit, as it was sent, to its decision at the client.
- more units: against one a second.
- noise: white, {SNR_DB} dB below the voice. Goes on: the recording again behind a pause of {pauses} ms of silence."""


if __name__ == "__main__":
    asyncio.run(main())
