"""What a client says sample by sample, and what a stage that hears has heard of it: the proof that no sample is lost, doubled or moved."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append
from stage_kit.slot import Slot

_STEP, _LOUD, _QUIET = 13, 20011, 401


def voice(session_id: str, start: int, count: int) -> NDArray[np.int16]:
    """Samples start to start + count of what a client says, loud enough for every detector: each value tells its own place."""
    return _signal(session_id, start, count, _LOUD)


def hush(session_id: str, start: int, count: int) -> NDArray[np.int16]:
    """The same for silence: values up to 200."""
    return _signal(session_id, start, count, _QUIET)


def _signal(session_id: str, start: int, count: int, period: int) -> NDArray[np.int16]:
    index = np.arange(start, start + count, dtype=np.int64)
    return ((index * _STEP + crc32(session_id.encode())) % period - period // 2).astype(np.int16)


class Account:
    """A stage's own record of the client audio of one placement: a file with a line for every append, whole also after a SIGKILL."""

    def __init__(self, folder: Path, session_id: str, stage: str) -> None:
        self._session_id = session_id
        self._file = (folder / f"{session_id}.{stage}.{time.time_ns()}.{os.getpid()}").open("ab", buffering=0)

    def hear(self, append: Append) -> None:
        """Note an append of PCM from the client: [first sample, samples, samples that are not what they should be there]."""
        payload = append.payload
        if payload is None or payload.WhichOneof("value") != "audio" or append.edge != "client":
            return
        audio = payload.audio
        if audio.samples and audio.format.encoding == stage_pb2.AUDIO_ENCODING_PCM_S16LE:
            self._file.write(json.dumps(self._judge(audio)).encode() + b"\n")

    def _judge(self, audio: stage_pb2.Audio) -> list[int]:
        came, start = np.frombuffer(audio.data, "<i2"), audio.start_sample
        known = (came == voice(self._session_id, start, len(came))) | (came == hush(self._session_id, start, len(came)))
        return [start, audio.samples, int(np.count_nonzero(~known))]

    def close(self) -> None:
        self._file.close()


class Accounts:
    """The accounts of one stage's sessions. With an empty folder name nothing is noted."""

    def __init__(self, stage: str) -> None:
        self._stage, self._folder = stage, os.environ.get("PARLEY_TEST_ACCOUNTS", "")
        self._open: dict[int, Account] = {}

    def hear(self, slot: Slot, append: Append) -> None:
        if not self._folder:
            return
        account = self._open.get(id(slot))
        if account is None:
            account = self._open[id(slot)] = Account(Path(self._folder), slot.session_id, self._stage)
        account.hear(append)

    def close(self, slot: Slot) -> None:
        if (account := self._open.pop(id(slot), None)) is not None:
            account.close()


class Heard(msgspec.Struct, frozen=True):
    """What one placement of a stage heard: samples first to end, and what was wrong with them."""

    first: int
    end: int
    lost: int
    doubled: int
    wrong: int


def heard(folder: Path, session_id: str, stage: str) -> list[Heard]:
    """By placement, oldest first; placements that heard nothing are left out."""
    files = sorted(folder.glob(f"{session_id}.{stage}.*"), key=lambda path: int(path.name.split(".")[2]))
    return [_total(list(_lines(path))) for path in files if path.stat().st_size]


def _lines(path: Path) -> Iterator[list[int]]:
    for line in path.read_bytes().splitlines():
        yield json.loads(line)


def _total(lines: list[list[int]]) -> Heard:
    first = at = lines[0][0]
    lost = doubled = wrong = 0
    for start, count, bad in lines:
        lost += max(0, start - at)
        doubled += max(0, at - start)
        wrong += bad
        at = start + count
    return Heard(first, at, lost, doubled, wrong)
