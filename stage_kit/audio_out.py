"""Speech on its way out: resampled, coded, cut into pieces that credit can pace."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.audio import CLIENT_FORMATS, WIDTH, Format, Resampler, encode
from stage_kit.engine import Label, Samples

LEAST_PIECE_MS = 100
PIECES_A_WINDOW = 6
"""What may be unheard is cut in so many pieces at least, so that sound follows in time where little may be."""
UNTOLD_MS = 100
"""So much of a window need not have been granted when nothing is unheard: a gateway tells of less than that later, or never."""
MOST_BYTES_A_MS = max(WIDTH[encoding] * rate for encoding, rate in CLIENT_FORMATS) // 1000


class AudioOut:
    """Speech of one session, response by response. The filter starts fresh with each response and is flushed at its end."""

    def __init__(self, target: Format, rate: int, piece_ms: int, most_ms: int = 0) -> None:
        """piece_ms: longest piece; up to most_ms, or shorter, once it is known how much may be on its way."""
        self._next_format = target
        self._format = target
        self._rate = rate
        self._piece_ms, self._most_ms = piece_ms, most_ms
        self._label: Label | None = None
        self._resampler = Resampler(rate, target.rate)
        self._made = 0
        self._marks: list[stage_pb2.Mark] = []

    def change(self, target: Format) -> None:
        """The next response speaks in this format; one that began is finished in its own."""
        self._next_format = target

    def paced(self, window_ms: int) -> None:
        """So much sound may be on its way and unheard. From any thread."""
        # a longer one would wait for ever
        leaves_ms = max(1, window_ms // 2, window_ms - UNTOLD_MS)
        self._piece_ms = min(leaves_ms, max(self._piece_ms, min(self._most_ms, window_ms // PIECES_A_WINDOW)))

    def push(self, samples: Samples, label: Label, marks: Iterable[stage_pb2.Mark], *, last: bool) -> list[stage_pb2.Payload]:
        """Audio payloads for float32 [n] at the engine's rate, each at most piece_ms long. May be empty while the filter fills."""
        if label != self._label:
            self._begin(label)
        self._marks.extend(marks)
        ready = self._resampler.push(np.ascontiguousarray(samples, np.float32))
        if last:
            ready = np.concatenate([ready, self._resampler.flush()])
            self._label = None
        return self._cut(ready, last=last)

    def speaks(self, label: Label) -> bool:
        """True between the first samples of a response and its last."""
        return self._label == label

    def abort(self) -> None:
        """Drops what the filter holds; whatever comes next begins anew."""
        self._label = None

    def _begin(self, label: Label) -> None:
        self._label, self._made, self._marks = label, 0, []
        self._format = self._next_format
        self._resampler = Resampler(self._rate, self._format.rate)

    def _cut(self, samples: Samples, *, last: bool) -> list[stage_pb2.Payload]:
        size = max(1, self._piece_ms * self._format.rate // 1000)
        data, width, encoding = encode(samples, self._format.encoding), WIDTH[self._format.encoding], self._format.proto()
        pieces: list[stage_pb2.Payload] = []
        for start in range(0, len(samples), size):
            count = min(size, len(samples) - start)
            payload = stage_pb2.Payload()
            # filled where it lies: a message that is given to another's constructor is copied, with its sound
            audio = payload.audio
            audio.format.CopyFrom(encoding)
            audio.data, audio.samples, audio.start_sample = data[start * width : (start + count) * width], count, self._made
            self._made += count
            if self._marks:
                audio.marks.extend(self._due(everything=last and start + count == len(samples)))
            pieces.append(payload)
        if last and self._marks:
            ending = stage_pb2.Audio(format=encoding, start_sample=self._made, marks=self._due(everything=True))
            pieces.append(stage_pb2.Payload(audio=ending))
        return pieces

    def _due(self, *, everything: bool) -> list[stage_pb2.Mark]:
        end_ms = self._made * 1000 / self._format.rate
        due = [mark for mark in self._marks if everything or mark.audio_ms <= end_ms]
        self._marks = [] if everything else [mark for mark in self._marks if mark.audio_ms > end_ms]
        return due
