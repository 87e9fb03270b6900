"""The invariants: what must be true of every conversation, whatever was killed while it went on."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stage_kit.scripted import ramp, reply
from tests.chaos.client import ChaosClient, Event
from tests.chaos.speaker import RATE, SAID, Speaker
from tests.support.account import heard
from tests.support.checks import SAMPLES_PER_WORD

HEARS = ("turn", "asr")
SLACK_MS = 40
"""Two windows of the detector: how near it tells the edges of an utterance."""
ACCOUNT_WAIT_S = 5.0


class Tally(msgspec.Struct):
    """Counts over many conversations; the second half must be zero."""

    sessions: int = 0
    resumes: int = 0
    events: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    input_samples: int = 0
    rehearings: int = 0

    lost: int = 0
    twice: int = 0
    disorder: int = 0
    terminals: int = 0
    """Responses without exactly one beginning and one end."""
    unlike: int = 0
    """Responses whose sound or words are not what they must be."""
    input_lost: int = 0
    input_doubled: int = 0
    input_wrong: int = 0
    disobeyed: int = 0
    """Commands obeyed not at all, or twice."""
    utterances: int = 0
    """Utterances not heard whole, exactly once."""
    forgotten: int = 0
    """Conversations of which the model knows less than was said."""
    leaked: int = 0
    stuck: int = 0
    problems: list[str] = []
    resume_seconds: list[float] = []

    def add(self, other: Tally) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def clean(self) -> bool:
        return not self.problems and not any(getattr(self, name) for name in _ZEROS)

    def line(self) -> str:
        took = sorted(self.resume_seconds)
        resumed = f" (p50 {took[len(took) // 2] * 1000:.0f} ms, most {took[-1] * 1000:.0f})" if took else ""
        return (
            f"sessions {self.sessions}, resumes {self.resumes}{resumed}; events {self.events}: lost {self.lost}, twice {self.twice}, "
            f"out of order {self.disorder}; responses completed {self.completed}, cancelled {self.cancelled}, failed {self.failed}: "
            f"not one terminal {self.terminals}, not the signal {self.unlike}; input {self.input_samples} samples: lost {self.input_lost}, "
            f"doubled {self.input_doubled}, wrong {self.input_wrong}; commands not obeyed once {self.disobeyed}, utterances not whole "
            f"{self.utterances}, contexts not whole {self.forgotten}; slots leaked {self.leaked}, sessions stuck {self.stuck}"
        )


_ZEROS = (
    *("lost", "twice", "disorder", "terminals", "unlike", "input_lost", "input_doubled", "input_wrong", "disobeyed", "utterances"),
    *("forgotten", "leaked", "stuck"),
)


class Allowed(msgspec.Struct, frozen=True):
    """What a scenario may do to a conversation besides resuming it."""

    failures: tuple[str, ...] = ()
    """Codes with which a response may fail."""
    refusals: tuple[str, ...] = ()
    """Codes with which a response.create may be refused."""
    resyncs: bool = False


NOTHING = Allowed()


async def judge(speaker: Speaker, folder: Path, allowed: Allowed = NOTHING) -> Tally:
    """All invariants of one conversation whose last turn has ended and whose session still lives."""
    client = speaker.client
    tally = Tally(sessions=1, resumes=client.resumes, events=len(client.events), input_samples=client.samples)
    tally.lost, tally.twice, tally.disorder = client.lost, client.twice, client.disorder
    tally.resume_seconds += client.resume_seconds
    tally.problems += [f"{client.name}: {problem}" for problem in client.problems if not (allowed.resyncs and problem.startswith("resync"))]
    _Judge(speaker, tally, allowed).judge()
    await _input(client, folder, tally)
    return tally


class _Judge:
    def __init__(self, speaker: Speaker, tally: Tally, allowed: Allowed) -> None:
        self.speaker, self.client, self.tally, self.allowed = speaker, speaker.client, tally, allowed

    def judge(self) -> None:
        self._responses()
        self._commands()
        self._utterances()
        self._errors()

    def note(self, field: str, problem: str) -> None:
        setattr(self.tally, field, getattr(self.tally, field) + 1)
        self.tally.problems.append(f"{self.client.name}: {problem}")

    # responses

    def _responses(self) -> None:
        begun = Counter(event["response"]["id"] for event in self.client.of("response.created"))
        done = Counter(event["response"]["id"] for event in self.client.of("response.done"))
        for response_id in set(begun | done) - self.client.doubtful:
            if begun[response_id] != 1 or done[response_id] != 1:
                self.note("terminals", f"{response_id} began {begun[response_id]} times and ended {done[response_id]} times")
        for event in self.client.of("response.done"):
            if event["response"]["id"] not in self.client.doubtful:
                self._response(event["response"])

    def _response(self, response: Event) -> None:
        status, number = response["status"], (response["metadata"] or {}).get("number", "")
        if number == self.speaker.recital and status == "completed":
            self.tally.completed += 1
            self._recital(response)
            return
        words = self.speaker.words.get(number, self.speaker.default_words)
        sound = np.frombuffer(self._sound(response["id"]), "<i2")
        text = "".join(e["delta"] for e in self._deltas("response.output_audio_transcript.delta", response["id"]))
        whole = "".join(reply(response["id"], words))
        if not np.array_equal(sound, ramp(self.client.session_id, 0, len(sound))):
            self.note("unlike", f"{response['id']} ({status}) does not sound like the signal")
        if status == "completed":
            self.tally.completed += 1
            told = response["output"][0]["content"][0]["transcript"] if response["output"] else ""
            if len(sound) != words * SAMPLES_PER_WORD or text != whole or told != whole:
                self.note(
                    "unlike", f"{response['id']} has {len(sound)} of {words * SAMPLES_PER_WORD} samples, {len(text)} of {len(whole)} chars"
                )
            return
        setattr(self.tally, status, getattr(self.tally, status) + 1)
        if not whole.startswith(text):
            self.note("unlike", f"{response['id']} ({status}) has other words")
        code = (response["status_details"] or {}).get("error", {}).get("code") if status == "failed" else None
        if code is not None and code not in self.allowed.failures:
            self.note("unlike", f"{response['id']} failed: {code}")

    def _recital(self, response: Event) -> None:
        """What the model knows: every user item as it was said, in order, and between them what was heard of the replies."""
        text = response["output"][0]["content"][0]["text"]
        if "".join(e["delta"] for e in self._deltas("response.output_text.delta", response["id"])) != text:
            self.note("unlike", f"{response['id']} was told in other pieces")
        known, at = self._items(), 0
        for role, content in json.loads(text):
            while at < len(known) and known[at][0] == "assistant" and not _is_heard_of(known[at], role, content):
                at += 1  # cut before its first sentence's end
            if at == len(known) or not _is_heard_of(known[at], role, content):
                break
            at += 1
        if any(role == "user" for role, _ in known[at:]) and not self.client.doubtful:
            self.note("forgotten", f"the model knows {at} of {len(known)} items as they were")

    def _items(self) -> list[tuple[str, str]]:
        """(role, text) of the conversation as the client knows it, in order."""
        words = {event["item_id"]: event["transcript"] for event in self.client.of("conversation.item.input_audio_transcription.completed")}
        for event in self.client.of("response.done"):
            for item in event["response"]["output"]:
                words[item["id"]] = item["content"][0].get("transcript", "") if item["content"] else ""
        return [
            (item["role"], words.get(item["id"], SAID).strip())
            for item in (event["item"] for event in self.client.of("conversation.item.added"))
            if item["type"] == "message"
        ]

    def _deltas(self, kind: str, response_id: str) -> list[Event]:
        return [event for event in self.client.of(kind) if event["response_id"] == response_id]

    def _sound(self, response_id: str) -> bytes:
        return b"".join(base64.b64decode(event["delta"]) for event in self._deltas("response.output_audio.delta", response_id))

    # commands

    def _commands(self) -> None:
        for kind in ("conversation.item.added", "conversation.item.done"):
            told = [event["item"]["id"] for event in self.client.of(kind) if event["item"]["id"].startswith(self.client.name)]
            if told != self.speaker.items:
                self.note("disobeyed", f"{kind}: {len(told)} of {len(self.speaker.items)} items, or in another order")
        numbers = [(event["response"]["metadata"] or {}).get("number") for event in self.client.of("response.created")]
        wanted = [number for number in self.speaker.creates if number in numbers or not self._refused(number)]
        if [number for number in numbers if number is not None] != wanted:
            self.note("disobeyed", f"response.create {self.speaker.creates} made {numbers}")
        if len(self.client.of("session.updated")) != 1:
            self.note("disobeyed", f"one session.update made {len(self.client.of('session.updated'))} updates")

    def _refused(self, number: str) -> bool:
        codes = [event["error"]["code"] for event in self.client.of("error") if event["error"]["event_id"] == self.speaker.asked[number]]
        return len(codes) == 1 and codes[0] in self.allowed.refusals

    def _errors(self) -> None:
        for event in self.client.of("error"):
            error = event["error"]
            refused = error["code"] in self.allowed.refusals and error["event_id"] in self.speaker.asked.values()
            cancelled = error["code"] == "response_cancel_not_active" and error["event_id"] in self.speaker.cancels
            if not refused and not cancelled:
                self.note("disobeyed", f"error {error['code']} of {error['event_id']}")

    # utterances

    def _utterances(self) -> None:
        started = self.client.of("input_audio_buffer.speech_started")
        stopped = self.client.of("input_audio_buffer.speech_stopped")
        committed = self.client.of("input_audio_buffer.committed")
        heard = {e["item_id"]: e["transcript"] for e in self.client.of("conversation.item.input_audio_transcription.completed")}
        counts = len(started), len(stopped), len(committed), len(heard)
        if counts != (len(self.speaker.utterances),) * 4:
            self.note("utterances", f"{len(self.speaker.utterances)} utterances were told as started, stopped, committed, heard: {counts}")
            return
        for said, start, stop in zip(self.speaker.utterances, started, stopped, strict=True):
            first_ms, end_ms = said.start * 1000 / RATE, said.end * 1000 / RATE
            length = stop["audio_end_ms"] - start["audio_start_ms"]
            near = abs(start["audio_start_ms"] - first_ms) <= SLACK_MS and abs(stop["audio_end_ms"] - end_ms) <= SLACK_MS
            told = heard.get(start["item_id"], "")
            if not near or told != f"heard {length} ms":
                span = f"{start['audio_start_ms']} to {stop['audio_end_ms']}"
                self.note("utterances", f"said {first_ms:.0f} to {end_ms:.0f} ms, told {span}, {told!r}")


def _is_heard_of(item: tuple[str, str], role: str, content: str) -> bool:
    """What the model knows of an item: all of the user's, the heard beginning of its own."""
    return item[0] == role and (item[1] == content if role == "user" else item[1].startswith(content))


async def _input(client: ChaosClient, folder: Path, tally: Tally) -> None:
    """Every sample of the client reached each stage that hears, exactly once, in order; after a loss from an earlier sample on."""
    if not client.samples:
        return
    for stage in HEARS:
        placements = await _whole(folder, client, stage)
        tally.rehearings += len(placements) - 1
        for nth, placement in enumerate(placements):
            tally.input_lost += placement.lost
            tally.input_doubled += placement.doubled
            tally.input_wrong += placement.wrong
            before = placements[nth - 1].end if nth else 0
            if placement.first > before:
                tally.input_lost += placement.first - before
            if placement.first > before or placement.lost or placement.doubled or placement.wrong:
                tally.problems.append(f"{client.name}: {stage} heard {placement}, before it up to {before}")
        end = placements[-1].end if placements else 0
        if end < client.samples:
            tally.input_lost += client.samples - end
            tally.problems.append(f"{client.name}: {stage} heard {end} of {client.samples} samples")


async def _whole(folder: Path, client: ChaosClient, stage: str) -> list[Any]:
    """The accounts of a stage, when the newest tells of the last sample, or after a while."""
    deadline = time.monotonic() + ACCOUNT_WAIT_S
    while True:
        placements = heard(folder, client.session_id, stage)
        if (placements and placements[-1].end >= client.samples) or time.monotonic() > deadline:
            return placements
        await asyncio.sleep(0.05)
