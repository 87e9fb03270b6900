"""What the thinker hears and sees: samples and pictures of many sessions to embeddings of the language model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minicpmo45.config import SAMPLE_RATE_IN, Config
from thinker_svc.minicpmo45.audio_encoder import UNIT_FRAMES, AudioEncoder, place
from thinker_svc.minicpmo45.encoder_block import tensor
from thinker_svc.minicpmo45.frames import Picture, longest_side
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, HOP, SEGMENT_SAMPLES, UNIT_SAMPLES, LogMel, MelState
from thinker_svc.minicpmo45.resampler import Resampler
from thinker_svc.minicpmo45.sight import AT_ONCE, Sight
from thinker_svc.minicpmo45.upload import staging
from thinker_svc.minicpmo45.vision_encoder import VisionEncoder
from torch_kit.graphs import Graphs
from torch_kit.ragged import BUCKETS, bucket

Samples = NDArray[np.float32]

MAX_REFERENCE_SECONDS = 60
SPAN_STEP, GRAPH_SPAN_STEP = 250, 500
"""The plain encoder reads cache positions in multiples of this: 5 s of audio, 10 s where each number has graphs of its own."""
PLAIN_ROWS = 32
"""Most rows of the plain encoder that have a graph: its copies of the cache, 6 MB a row, would stay with the graphs."""
_NUMBERS = 3
"""Of a row: slot, units before, frames in the cache."""
_Graph = tuple[Hashable, Callable[[Tensor], Tensor], Callable[[], tuple[Tensor, ...]]]
"""Key, function and blank inputs of a graph."""


class BadAudio(ValueError):
    """Samples are refused, nothing was changed. `param` names the argument, `why` is one line."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param
        self.why = why


class Perception:
    """Both encoders, with the state of `slots` sessions. Not thread-safe: one engine thread.

    weights: the tensors `apm.*`, `audio_projection_layer.*`, `vpm.*` and `resampler.*`, all of one dtype on one device, which embeddings
    share; mel features are fp32. A slot is opened for a session and closed after it; what it held before is never read. `plain`: no graphs.
    `kernels`: fused ones are our own, for CUDA. Raises CheckpointError, and ValueError: sizes or a device that those do not serve.

    The cache and the state of the features have one slot more, for padding rows: nobody reads it.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: Config,
        slots: int,
        *,
        plain: bool = False,
        kernels: Literal["plain", "fused"] = "plain",
    ) -> None:
        self._limit = config.audio.max_positions
        self._pool = config.audio.pool
        self._device = tensor(weights, "apm.embed_positions.weight").device
        self._fused = kernels == "fused"
        self._mel = LogMel(config.audio.mels, self._device)
        longest = longest_side(config.vision)
        self._audio, self._vision = _encoders(weights, config, longest, fused=self._fused)
        self._resampler = Resampler(weights, config.vision, longest)
        self._sight = Sight(self._vision, self._resampler, config.vision, self._device)
        self.graphs = Graphs(self._device, plain=plain)
        self.mel_state = MelState(slots + 1, self._device)
        self.cache = self._audio.cache(slots + 1)
        self._open = np.zeros(slots, bool)
        self._units = np.zeros(slots, np.int64)
        self._cached = np.zeros(slots, np.int64)
        self._gathered = np.zeros((slots, FIRST_SAMPLES), np.float32)
        self._filled = np.zeros(slots, np.int64)

    def open(self, slot: int) -> None:
        """Begins a session in a slot that is closed."""
        if not 0 <= slot < len(self._open) or self._open[slot]:
            raise ValueError(f"slot {slot} is not closed")
        self._open[slot] = True
        self._units[slot] = self._cached[slot] = self._filled[slot] = 0

    def close(self, slot: int) -> None:
        """Ends the session in an open slot."""
        self._check_slot(slot)
        self._open[slot] = False

    def gather(self, slot: int, samples: Samples) -> None:
        """Keeps samples of the unit that is being heard, fp32 at 16 kHz; `hear` takes them first. Raises BadAudio."""
        self._check_slot(slot)
        filled = int(self._filled[slot])
        _check_samples("samples", samples)
        if filled + len(samples) > self._wanted(slot):
            raise BadAudio("samples", f"{filled + len(samples)} samples gathered, a unit has {self._wanted(slot)}")
        self._gathered[slot, filled : filled + len(samples)] = samples
        self._filled[slot] = filled + len(samples)

    def forget(self, slot: int) -> None:
        """Drops what was gathered of the unit that is being heard."""
        self._check_slot(slot)
        self._filled[slot] = 0

    @torch.no_grad()
    def hear(self, slots: Sequence[int], samples_list: Sequence[Samples], first_flags: Sequence[bool]) -> Tensor:
        """Embeddings of one unit of each slot: [rows, 10, hidden].

        slots: open ones, each once. samples_list: fp32 at 16 kHz, what completes the unit after `gather`: 16,480 samples in a session's
        first unit (fewer are preceded by silence), 16,000 later. first_flags: whether it is the session's first. Raises BadAudio.
        """
        if not slots or not len(slots) == len(set(slots)) == len(samples_list) == len(first_flags):
            raise ValueError("slots, samples_list and first_flags: one row for each slot, each slot once, at least one")
        for slot, samples, first in zip(slots, samples_list, first_flags, strict=True):
            self._check_unit(slot, samples, first)
        rows = np.asarray(slots, np.int64)
        cached = np.array([place(int(self._cached[slot]), self._limit) for slot in slots], np.int64)
        span = self._span(int(cached.max()) + UNIT_FRAMES)
        numbers = np.stack((rows, self._units[rows], cached))
        if self._replays(len(rows)):
            key, run, blank = self._hearing(bucket(len(rows)), span)
            upload = self._upload(bucket(len(rows)), numbers, slots, samples_list)
            embeddings = self.graphs(key, run, (upload,), blank)[: len(rows)].clone()
        else:
            embeddings = self._heard(self._upload(len(rows), numbers, slots, samples_list), len(rows), span)
        self._units[rows] += 1
        self._cached[rows] = cached + UNIT_FRAMES
        self._filled[rows] = 0
        return embeddings

    def warm_up(self) -> None:
        """Captures what up to as many sessions as there are slots hear at once, and pictures of the usual sizes; others are when first
        met."""
        if not self.graphs.on:
            return
        for size in (size for size in reversed(BUCKETS) if size <= bucket(len(self._open)) and self._replays(size)):
            for span in sorted({self._span(most) for most in range(1, self._limit + 1)}):
                self.graphs.prepare(*self._hearing(size, span))
        self._sight.warm_up(min(len(self._open), AT_ONCE[0]), self.graphs)

    @torch.no_grad()
    def see(self, pictures: Sequence[Picture]) -> list[Tensor]:
        """Embeddings of pictures of any sessions, [slices, queries, hidden] for each: the overview, then its slices."""
        seen = iter(self._sight([each for picture in pictures for each in picture.slices], self.graphs))
        return [torch.stack([next(seen) for _ in picture.slices]) for picture in pictures]

    @torch.no_grad()
    def reference(self, samples: Samples) -> Tensor:
        """Embeddings of a voice sample, fp32 at 16 kHz: [10 a second, hidden]. Segments of 30 s stand for themselves. Raises BadAudio."""
        _check_samples("reference_voice", samples)
        shortest = (2 * self._pool - 2) * HOP + 1
        if len(samples) < shortest:
            raise BadAudio("reference_voice", f"{len(samples)} samples, at least {shortest} are needed")
        if len(samples) > MAX_REFERENCE_SECONDS * SAMPLE_RATE_IN:
            raise BadAudio("reference_voice", f"longer than {MAX_REFERENCE_SECONDS} s")
        segments = [samples[begin : begin + SEGMENT_SAMPLES] for begin in range(0, len(samples), SEGMENT_SAMPLES)]
        if len(segments[-1]) < shortest:
            segments.pop()
        features = (self._mel.whole(torch.tensor(segment, device=self._device)) for segment in segments)
        return torch.cat([self._audio.whole(each) for each in features])

    def _wanted(self, slot: int) -> int:
        return FIRST_SAMPLES if self._units[slot] == 0 else UNIT_SAMPLES

    def _replays(self, rows: int) -> bool:
        return self.graphs.on and rows <= (BUCKETS[-1] if self._fused else PLAIN_ROWS)

    def _span(self, most: int) -> int:
        """Cache positions that are read where rows have at most so many."""
        step = self._limit if self._fused else GRAPH_SPAN_STEP if self.graphs.on else SPAN_STEP
        return min(self._limit, -(-most // step) * step)

    def _hearing(self, size: int, span: int) -> _Graph:
        def run(upload: Tensor) -> Tensor:
            return self._heard(upload, size, span)

        return ("hear", size, span), run, lambda: (self._upload(size, np.zeros((_NUMBERS, 0), np.int64), (), ()),)

    def _heard(self, upload: Tensor, size: int, span: int) -> Tensor:
        """[size, 10, hidden] of what `_upload` made."""
        numbers, fresh = upload[: _NUMBERS * size], upload[_NUMBERS * size :].view(size, FIRST_SAMPLES)
        slots, units, cached = numbers.view(torch.int32).view(_NUMBERS, size).long()
        features = self._mel.unit(self.mel_state, slots, units, fresh)
        return self._audio.unit(self.cache, slots, cached, units == 0, features, span)

    def _upload(self, size: int, numbers: NDArray[np.int64], slots: Sequence[int], samples_list: Sequence[Samples]) -> Tensor:
        """The rows, padded to `size` with first units of silence in the spare slot: one upload, fp32, `numbers` [3, rows] as int32."""
        staged = staging((size * (_NUMBERS + FIRST_SAMPLES),), torch.float32, self._device)
        head = staged[: _NUMBERS * size].view(torch.int32).view(_NUMBERS, size).numpy()
        head[:, : len(slots)] = numbers
        head[:, len(slots) :] = np.array([[len(self._open)], [0], [0]])
        rows = staged[_NUMBERS * size :].view(size, FIRST_SAMPLES).numpy()
        rows[len(slots) :] = 0
        self._fill(rows[: len(slots)], slots, samples_list)
        return staged.to(self._device, non_blocking=True)

    def _fill(self, rows: Samples, slots: Sequence[int], samples_list: Sequence[Samples]) -> None:
        """Each row's new samples at its end, silence before them: fp32 [rows, 16480]."""
        for row, slot, samples in zip(rows, slots, samples_list, strict=True):
            filled = int(self._filled[slot])
            begin = FIRST_SAMPLES - filled - len(samples)
            row[:begin] = 0
            row[begin : begin + filled] = self._gathered[slot, :filled]
            row[begin + filled :] = samples

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._open) or not self._open[slot]:
            raise ValueError(f"slot {slot} is not open")

    def _check_unit(self, slot: int, samples: Samples, first: bool) -> None:
        self._check_slot(slot)
        _check_samples("samples", samples)
        if first != (self._units[slot] == 0):
            raise BadAudio("first", f"{int(self._units[slot])} units of the session were heard before")
        count, wanted = int(self._filled[slot]) + len(samples), self._wanted(slot)
        if count > wanted or (count < wanted and not first) or count == 0:
            raise BadAudio("samples", f"{count} samples in a unit of {wanted}")


def _encoders(weights: Mapping[str, Tensor], config: Config, longest: int, *, fused: bool) -> tuple[AudioEncoder, VisionEncoder]:
    if not fused:
        return AudioEncoder(weights, config.audio), VisionEncoder(weights, config.vision, longest)
    # its kernels are of Triton, which the plain path does without
    from thinker_svc.minicpmo45.fused_encoders import FusedAudioEncoder, FusedVisionEncoder

    return FusedAudioEncoder(weights, config.audio), FusedVisionEncoder(weights, config.vision, longest)


def _check_samples(param: str, samples: Samples) -> None:
    if samples.dtype != np.float32 or samples.ndim != 1:
        raise BadAudio(param, "not a row of float32 samples")
    if not np.isfinite(samples).all():
        raise BadAudio(param, "holds NaN or infinity")
