"""Log-mel features: whole recordings, and live audio unit by unit for many sessions at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minicpmo45.config import SAMPLE_RATE_IN

FFT = 400
HOP = 160
UNIT_SAMPLES = 16_000
FIRST_SAMPLES = 16_480
"""The first unit hears 30 ms further, so that every unit can end with 20 ms of right context."""
FRAMES = 104
"""Frames of a unit: 2 of context, 100 of its own, 2 of context. The first unit has no left context: its frames 0 and 1 are padding."""
SEGMENT_SAMPLES = 30 * SAMPLE_RATE_IN
"""The longest whole recording of one pass."""

_TAIL = 1000
"""Samples that the next unit needs again: 520 before its first own sample, and the 480 heard ahead."""
_AHEAD = FIRST_SAMPLES - UNIT_SAMPLES
_RANGE = 8.0
_FIXED_FLOOR = -10.0
_DYNAMIC_FROM = 5 * SAMPLE_RATE_IN
_DECADE = 10
"""Units by which the window of the dynamic floor slides: 10 s."""
_WINDOW_UNITS = 29
"""Units that the window holds before it slides: the 30th would fill 30 s."""


def mel_filters(mels: int) -> Tensor:
    """Triangular filters on the Slaney mel scale from 0 Hz to 8000 Hz, each of unit area: fp32 [FFT / 2 + 1, mels].

    The scale is linear (200 / 3 Hz a mel) below 1000 Hz and logarithmic (ln 6.4 / 27 a mel) above.
    """
    step, break_hz, log_step = 200.0 / 3.0, 1000.0, math.log(6.4) / 27.0
    break_mel = break_hz / step
    top = break_mel + math.log(SAMPLE_RATE_IN / 2 / break_hz) / log_step
    points = torch.linspace(0.0, top, mels + 2, dtype=torch.float64)
    edges = torch.where(points < break_mel, points * step, break_hz * torch.exp(log_step * (points - break_mel)))
    bins = torch.linspace(0.0, SAMPLE_RATE_IN / 2, FFT // 2 + 1, dtype=torch.float64)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    triangles = torch.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)).clamp(min=0.0)
    return (triangles * (2.0 / (high - low))).float()


class MelState:
    """What live features remember of each slot.

    tail: fp32 [slots, 2, 1000], the newest samples behind the latest even unit and the latest odd one: a unit that is heard again, because
    what follows it failed, finds what it found. loudest: fp32 [slots, 3, 2], the highest log power of the newest three decades of units,
    each without and within the two frames at its beginning (which a pass over a window that begins there mirrors).
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.tail = torch.zeros(slots, 2, _TAIL, device=device)
        self.loudest = torch.zeros(slots, 3, 2, device=device)


class LogMel:
    """Hann window of 25 ms every 10 ms, power spectrum, mel filters, log10 floored at 1e-10 and at the dynamic floor, then (x + 4) / 4.
    fp32.

    The dynamic floor of live audio is what a pass over the buffered audio would use: none (-10) until 5 s are buffered, then 8 below the
    loudest frame of the buffer, the mirrored frames at both its ends included. The buffer drops its oldest 10 s whenever it would reach 30
    s.
    """

    def __init__(self, mels: int, device: torch.device) -> None:
        self._filters = mel_filters(mels).to(device)
        self._window = torch.hann_window(FFT, device=device)

    def whole(self, samples: Tensor) -> Tensor:
        """Features of one recording: fp32 [n], n at most SEGMENT_SAMPLES, to fp32 [ceil(n / 160), mels].

        The recording is followed by silence up to 30 s; the floor is dynamic from the start.
        """
        length = samples.shape[0]
        # Silence behind the last frame that touches the recording changes nothing.
        padded = min(SEGMENT_SAMPLES, math.ceil((length + 2 * FFT) / HOP) * HOP)
        wave = F.pad(samples[None], (0, padded - length))
        mirrored = F.pad(wave, (FFT // 2, FFT // 2), mode="reflect")[0]
        power = self._log_power(mirrored.unfold(0, FFT, HOP)[:-1])
        return _scaled(power, power.amax() - _RANGE)[: math.ceil(length / HOP)]

    def unit(self, state: MelState, slots: Tensor, units: Tensor, fresh: Tensor) -> Tensor:
        """Features of one unit of each row, and the state that follows.

        slots, units: int64 [rows], units counted from 0 since the slot was opened. fresh: fp32 [rows, 16480], the unit's new samples at the
        end of the row: all of it in unit 0, the last 16,000 later. Returns fp32 [rows, 104, mels]; frames 0 and 1 of a unit 0 are 0.
        """
        first = units == 0
        wave = self._wave(state.tail[slots, (units + 1) % 2], first, fresh)
        mirrored_end = wave[:, -1 - (FFT // 2 - HOP) : -1].flip(1)
        frames = torch.cat((wave, mirrored_end), 1).unfold(1, FFT, HOP)
        begin = _TAIL - _AHEAD
        mirrored_begin = wave[:, begin + 1 : begin + FFT // 2 + 1].flip(1)
        edge_frames = torch.cat((mirrored_begin, wave[:, begin : begin + FFT // 2 + HOP]), 1).unfold(1, FFT, HOP)
        power = self._log_power(torch.cat((frames, edge_frames), 1))
        body, last, edge = power[:, :FRAMES], power[:, FRAMES], power[:, FRAMES + 1 :]
        body = torch.cat((body[:, :2], torch.where(first[:, None, None], edge, body[:, 2:4]), body[:, 4:]), 1)
        floor = self._floor(state, slots, units, body[:, 4:].amax((1, 2)), edge.amax((1, 2)), last.amax(1))
        state.tail[slots, units % 2] = wave[:, UNIT_SAMPLES:]
        features = _scaled(body, floor[:, None, None])
        features[:, :2] = torch.where(first[:, None, None], 0.0, features[:, :2])
        return features

    def _wave(self, tail: Tensor, first: Tensor, fresh: Tensor) -> Tensor:
        """The samples under the unit's frames: fp32 [rows, 17000]; a unit 0 begins at 520. `tail` [rows, 1000] of the unit before."""
        silence = fresh.new_zeros(fresh.shape[0], _TAIL - _AHEAD)
        head = torch.where(first[:, None], torch.cat((silence, fresh[:, :_AHEAD]), 1), tail)
        return torch.cat((head, fresh[:, _AHEAD:]), 1)

    def _floor(self, state: MelState, slots: Tensor, units: Tensor, inner: Tensor, edge: Tensor, last: Tensor) -> Tensor:
        """The floor of each row, fp32 [rows], from the loudest frames of this unit (`last` is the mirrored one) and those remembered."""
        decade = units // _DECADE
        begins = units % _DECADE == 0
        place = (decade % 3)[:, None]
        known = state.loudest[slots]
        old_inner, old_edge = known[:, :, 0].gather(1, place)[:, 0], known[:, :, 1].gather(1, place)[:, 0]
        newest = torch.stack((torch.where(begins, inner, torch.maximum(old_inner, inner)), torch.where(begins, edge, old_edge)), 1)
        known = known.scatter(1, place[:, :, None].expand(-1, 1, 2), newest[:, None])
        state.loudest[slots] = known
        oldest = ((units - _WINDOW_UNITS) // _DECADE + 1).clamp(min=0)
        ring = torch.arange(3, device=units.device)
        held = decade[:, None] - (decade[:, None] - ring) % 3
        counted = torch.stack((held >= oldest[:, None], held == oldest[:, None]), 2)
        peak = torch.where(counted, known, -torch.inf).amax((1, 2))
        buffered = FIRST_SAMPLES + UNIT_SAMPLES * (units - _DECADE * oldest)
        return torch.where(buffered < _DYNAMIC_FROM, _FIXED_FLOOR, torch.maximum(peak, last) - _RANGE)

    def _log_power(self, frames: Tensor) -> Tensor:
        """fp32 [..., FFT] samples to fp32 [..., mels] log10 of mel power."""
        spectrum = torch.view_as_real(torch.fft.rfft(frames * self._window))
        return (spectrum.square().sum(-1) @ self._filters).clamp(min=1e-10).log10()


def _scaled(power: Tensor, floor: Tensor) -> Tensor:
    return (torch.maximum(power, floor) + 4.0) / 4.0
