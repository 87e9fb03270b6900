"""From accepted appends to what the engine receives: staged configurations, decoded and resampled audio."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.audio import Format
from stage_kit.audio_in import AudioIn
from stage_kit.engine import Append, Card, Label
from stage_kit.pending import Waiting
from stage_kit.slot import Slot

WITHIN_STEP_MS = 500
"""Longest sound that is received within a step: it takes about a millisecond per second, and all sessions of the step wait for that."""
_ENDS = (stage_pb2.Control.KIND_COMMIT, stage_pb2.Control.KIND_END)


class Staged(msgspec.Struct, frozen=True):
    """A validated configuration that waits for the first append stamped with its generation. None: the format stays."""

    generation: int
    config: Any
    input_format: Format | None
    output_format: Format | None


class Intake:
    """One session's way in. `staged` is filled by the event loop; all else happens where the engine runs."""

    def __init__(self, slot: Slot, card: Card, source: Format | None) -> None:
        self.staged: deque[Staged] = deque()
        self._slot = slot
        self._rate = card.input_rate
        self._source = source
        self._edges: dict[str, AudioIn] = {}
        self._input_generation = 0

    def configure(self, stamp: int) -> bool:
        """Makes what is staged up to this generation effective. True when `slot.config` was replaced."""
        changed = False
        while self.staged and self.staged[0].generation <= stamp:
            staged = self.staged.popleft()
            self._slot.config, changed = staged.config, True
            if staged.input_format is not None and staged.input_format != self._source:
                self._source = staged.input_format
                for audio_in in self._edges.values():
                    audio_in.change(staged.input_format)
            if staged.output_format is not None and self._slot.audio_out is not None:
                self._slot.audio_out.change(staged.output_format)
        return changed

    def is_plain(self, item: Waiting) -> bool:
        """Short sound of the client, before which nothing else is to be made known."""
        append = item.append
        if append.lane != stage_pb2.LANE_INPUT or append.payload.WhichOneof("value") != "audio":
            return False
        audio = append.payload.audio
        if audio.samples * 1000 > audio.format.sample_rate_hz * WITHIN_STEP_MS:
            return False
        staged = bool(self.staged) and self.staged[0].generation <= append.config_generation
        return append.input_generation <= self._input_generation and not staged

    def take(self, item: Waiting) -> Iterator[Append]:
        """What the engine receives for one append: itself, and before a commit whatever audio the filter still holds back of its span."""
        message = item.append
        payload = message.payload if message.HasField("payload") else None
        append = Append(message.edge, message.position, item.label, message.last, payload, arrived=item.arrived)
        kind = payload.WhichOneof("value") if payload is not None else None
        if payload is not None and kind == "audio" and self._source is not None:
            audio_in = self._edges.get(message.edge)
            if audio_in is None:
                audio_in = self._edges[message.edge] = AudioIn(self._source, self._rate)
            append.samples, append.start_ms, append.end_ms = audio_in.take(payload.audio, message.position)
        elif payload is not None and kind == "control" and payload.control.kind in _ENDS:
            yield from self._tails(payload.control, item.label)
        yield append

    def enters(self, input_generation: int) -> bool:
        """True with the first append after a clear, in its order: nothing older may come out of a filter later."""
        if input_generation <= self._input_generation:
            return False
        self._input_generation = input_generation
        for audio_in in self._edges.values():
            audio_in.clear()
        return True

    def _tails(self, control: stage_pb2.Control, label: Label) -> Iterator[Append]:
        ends = control.kind == stage_pb2.Control.KIND_END
        for edge, audio_in in self._edges.items():
            if not ends and control.end_ms <= audio_in.delivered_ms:
                continue
            tail = audio_in.tail()
            if len(tail):
                empty = stage_pb2.Payload(audio=stage_pb2.Audio(format=audio_in.format.proto()))
                yield Append(edge, audio_in.position, label, False, empty, tail, audio_in.end_ms, audio_in.end_ms)
