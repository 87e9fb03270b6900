"""What the thinker hears and sees: samples and pictures of many sessions to embeddings of the language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from thinker_svc.minicpmo45.vision_encoder import PatchBatch, VisionEncoder

Samples = NDArray[np.float32]

MAX_REFERENCE_SECONDS = 60
SPAN_STEP = 250
"""Cache positions are read in multiples of this: 5 s of audio."""
IMAGES_AT_ONCE = 16
"""Images of one forward pass: what its activations may take."""


class BadAudio(ValueError):
    """Samples are refused, nothing was changed. `param` names the argument, `why` is one line."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param
        self.why = why


class Perception:
    """Both encoders, with the state of `slots` sessions. Not thread-safe: one engine thread.

    weights: the tensors `apm.*`, `audio_projection_layer.*`, `vpm.*` and `resampler.*`, all of one dtype on one device, which embeddings
    share; mel features are fp32. A slot is opened for a session and closed after it; what it held before is never read.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: Config, slots: int) -> None:
        self._limit = config.audio.max_positions
        self._pool = config.audio.pool
        self._device = tensor(weights, "apm.embed_positions.weight").device
        self._mel = LogMel(config.audio.mels, self._device)
        self._audio = AudioEncoder(weights, config.audio)
        longest = longest_side(config.vision)
        self._vision = VisionEncoder(weights, config.vision, longest)
        self._resampler = Resampler(weights, config.vision, longest)
        self.mel_state = MelState(slots, self._device)
        self.cache = self._audio.cache(slots)
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
        indices = torch.from_numpy(np.stack((rows, self._units[rows], cached))).to(self._device)
        features = self._mel.unit(
            self.mel_state, indices[0], indices[1], torch.from_numpy(self._fresh(slots, samples_list)).to(self._device)
        )
        span = min(self._limit, -(-(int(cached.max()) + UNIT_FRAMES) // SPAN_STEP) * SPAN_STEP)
        embeddings = self._audio.unit(self.cache, indices[0], indices[2], indices[1] == 0, features, span)
        self._units[rows] += 1
        self._cached[rows] = cached + UNIT_FRAMES
        self._filled[rows] = 0
        return embeddings

    @torch.no_grad()
    def see(self, pictures: Sequence[Picture]) -> list[Tensor]:
        """Embeddings of pictures of any sessions, [slices, 64, hidden] for each: the overview, then its slices."""
        slices = [each for picture in pictures for each in picture.slices]
        order = sorted(range(len(slices)), key=lambda index: len(slices[index].patches))
        seen: dict[int, Tensor] = {}
        for begin in range(0, len(order), IMAGES_AT_ONCE):
            chosen = order[begin : begin + IMAGES_AT_ONCE]
            batch = PatchBatch.of([slices[index] for index in chosen], self._device)
            seen.update(zip(chosen, self._resampler(batch, self._vision(batch)), strict=True))
        rows = iter(range(len(slices)))
        return [torch.stack([seen[next(rows)] for _ in picture.slices]) for picture in pictures]

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

    def _fresh(self, slots: Sequence[int], samples_list: Sequence[Samples]) -> Samples:
        """Each row's new samples at its end, silence before them: fp32 [rows, 16480]."""
        fresh = np.zeros((len(slots), FIRST_SAMPLES), np.float32)
        for row, slot, samples in zip(fresh, slots, samples_list, strict=True):
            filled = int(self._filled[slot])
            begin = FIRST_SAMPLES - filled - len(samples)
            row[begin : begin + filled] = self._gathered[slot, :filled]
            row[begin + filled :] = samples
        return fresh

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


def _check_samples(param: str, samples: Samples) -> None:
    if samples.dtype != np.float32 or samples.ndim != 1:
        raise BadAudio(param, "not a row of float32 samples")
    if not np.isfinite(samples).all():
        raise BadAudio(param, "holds NaN or infinity")
