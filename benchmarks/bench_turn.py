"""Last voiced sample to first reply audio, through every process, beside the same models called one after the other in one process.

Also the gateway's own share with 20 conversations on stub engines. `make bench-turn`; `--turns N` (20), `--conversations N` (20).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import soxr
import websockets

from benchmarks import report
from benchmarks.house import RATE, Talker, house, speech
from benchmarks.sequential import Sequential
from benchmarks.session import histograms

matplotlib.use("Agg")
import matplotlib.pyplot as plt

AUDIO = Path(__file__).parent / "audio"
VOICED = 0.01
"""Amplitude (of 1) above which a sample counts as voiced."""
SHARE = ("parley_gateway_append_to_stage_seconds", "parley_gateway_chunk_to_client_seconds")
STEPS = ("hangover", "asr", "llm", "speech", "total")


def voiced_span(samples: np.ndarray) -> tuple[int, int]:
    loud = np.flatnonzero(np.abs(samples.astype(np.float32)) > VOICED * 32768)
    return int(loud[0]), int(loud[-1]) + 1


async def served_turn(talker: Talker, samples: np.ndarray) -> dict[str, float]:
    """Milliseconds by step of one spoken turn."""
    mark = len(talker.events)
    start = talker.say(samples)
    last_voiced = talker.sent_at(start + voiced_span(samples)[1])
    done = await talker.until("response.done", mark)
    times = {kind: at for at, kind in reversed([(at, event["type"]) for at, event in talker.events[mark : done + 1]])}
    stopped = times["input_audio_buffer.speech_stopped"]
    transcript = times["conversation.item.input_audio_transcription.completed"]
    text = times["response.output_audio_transcript.delta"]
    audio = times["response.output_audio.delta"]
    steps = {"hangover": stopped - last_voiced, "asr": transcript - stopped, "llm": text - transcript, "speech": audio - text}
    return {name: seconds * 1000 for name, seconds in steps.items()} | {
        "total": (audio - stopped) * 1000,
        "with_hangover": (audio - last_voiced) * 1000,
    }


async def measure_served(turns: int, detection: dict[str, Any]) -> list[dict[str, Any]]:
    files = sorted(AUDIO.glob("*.wav"))
    rows: list[dict[str, Any]] = []
    async with house("embedded") as address:
        for number in range(turns):
            path = files[number % len(files)]
            async with websockets.connect(f"ws://{address}/v1/realtime", max_size=None) as socket:
                talker = Talker(socket)
                update = {"type": "realtime", "audio": {"input": {"turn_detection": detection, "transcription": {"model": "any"}}}}
                await socket.send(report.msgspec.json.encode({"type": "session.update", "session": update}).decode())
                await talker.until("session.updated")
                talker.say(np.zeros(RATE // 2, np.int16))
                try:
                    rows.append({"input": path.stem, **await served_turn(talker, speech(path))})
                finally:
                    await talker.close()
    return rows


def measure_sequential(turns: int) -> list[dict[str, Any]]:
    files = sorted(AUDIO.glob("*.wav"))
    peer = Sequential()
    rows = []
    for number in range(turns):
        path = files[number % len(files)]
        samples = speech(path)
        first, last = voiced_span(samples)
        heard = soxr.resample(samples[max(0, first - RATE // 10) : last].astype(np.float32) / 32768, RATE, 16_000)
        rows.append({"input": path.stem, **peer.turn(heard.astype(np.float32), number)})
    return rows


async def measure_gateway(conversations: int, seconds: float) -> dict[str, tuple[float, float, float]]:
    """The gateway's own share, from its histograms: p50, p99 in ms and the share within 10 ms."""
    voice = speech(AUDIO / "goforward.wav")
    async with house("scripted") as address:
        talkers = [Talker(await websockets.connect(f"ws://{address}/v1/realtime", max_size=None), RATE // 10) for _ in range(conversations)]
        for index, talker in enumerate(talkers):
            talker.say(np.zeros(3 * RATE * index // conversations, np.int16))  # people do not speak in step
        before = histograms.read(address)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for talker in talkers:
                talker.say(voice)
                talker.say(np.zeros(3 * RATE, np.int16))
            await asyncio.sleep(len(voice) / RATE + 3)
        after = histograms.read(address)
        await asyncio.gather(*(talker.close() for talker in talkers))
    counts = {name: histograms.since(before[name], after[name]) for name in SHARE}
    return {
        name: (*(histograms.quantile_ms(c, q) for q in (0.5, 0.99)), histograms.share_within(c, 0.01) * 100) for name, c in counts.items()
    }


def plot(served: dict[str, list[dict[str, Any]]], peer: list[dict[str, Any]]) -> None:
    figure, axis = plt.subplots(figsize=(9, 3.6))
    labels, left = [*served, "one process"], np.zeros(len(served) + 1)
    parts = {
        "recognizer": [np.median([row["asr"] for row in rows]) for rows in served.values()] + [np.median([row["asr"] for row in peer])],
        "first clause": [np.median([row["llm"] for row in rows]) for rows in served.values()] + [np.median([row["llm"] for row in peer])],
        "speech": [np.median([row["speech"] for row in rows]) for rows in served.values()]
        + [np.median([row["talker"] + row["vocoder"] for row in peer])],
    }
    for name, widths in parts.items():
        axis.barh(labels, widths, left=left, label=name)
        left = left + np.array(widths)
    axis.set_xlabel("ms from the end of the turn (hangover excluded) to the first reply audio, medians")
    axis.legend()
    figure.tight_layout()
    figure.savefig(report.RESULTS / "turn.png", dpi=120)


def _row(name: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> list[object]:
    return [name, *(float(np.median([row[key] for row in rows])) if key in rows[0] else "" for key in keys)]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    peer = await asyncio.to_thread(measure_sequential, arguments.turns)
    served = {
        "server_vad": await measure_served(arguments.turns, {"type": "server_vad"}),
        "semantic_vad": await measure_served(arguments.turns, {"type": "semantic_vad", "eagerness": "high"}),
    }
    share = await measure_gateway(arguments.conversations, arguments.seconds)
    base = float(np.median([row["total"] for row in peer]))
    keys = ("hangover", "asr", "llm", "speech", "total", "with_hangover")
    body = [_row(f"five processes, {name}", rows, keys) for name, rows in served.items()]
    peer_rows = [{**row, "speech": row["talker"] + row["vocoder"]} for row in peer]
    body.append(_row("one process, one after the other", peer_rows, keys))
    ratios = [
        [name, float(np.median([r["total"] for r in rows])) / base, report.percentile([r["with_hangover"] for r in rows], 95)]
        for name, rows in served.items()
    ]
    sections = [
        (f"Medians over {arguments.turns} turns and five inputs, ms", report.table(("path", *keys), body)),
        (
            "Ratio of medians to one process (hangover excluded on both sides; aim 1.15), and p95 with hangover, ms",
            report.table(("turn detection", "ratio", "p95 ms"), [[n, f"{r:.2f}", p] for n, r, p in ratios]),
        ),
        (
            f"The gateway's own share, {arguments.conversations} conversations of 100 ms audio on stub engines (aim: p99 under 10 ms)",
            report.table(
                ("path", "p50 ms", "p99 ms", "within 10 ms, %"),
                [[name, f"{a:.2f}", f"{b:.2f}", f"{c:.2f}"] for name, (a, b, c) in share.items()],
            ),
        ),
    ]
    path = report.write("turn", "A spoken turn", sections, {"served": served, "one_process": peer, "gateway": share})
    plot(served, peer)
    print(path.read_text())


if __name__ == "__main__":
    asyncio.run(main())
