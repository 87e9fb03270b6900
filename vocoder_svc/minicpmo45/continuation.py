"""Chunks of mel frames joined to one stretch of sound: what HiFT must see again of earlier chunks, and what of its output can leave
already."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from minicpmo45.config import HiftConfig
from vocoder_svc.minicpmo45.hift import F0_LOOKAHEAD, PRE_LOOKAHEAD, Hift
from vocoder_svc.minicpmo45.layers import within

OVERLAP_FRAMES = 8
"""First generation: frames decoded again, and sound held back, for the cross-fade; 3840 samples."""


class Place(msgspec.Struct, frozen=True):
    """Where a turn stands, in frames of its window: what is kept of earlier chunks lies at its front."""

    begin: int = 0
    """Frame of the turn at which the window begins."""
    mel: int = 0
    """Frames of mels kept."""
    source: int = 0
    """Frames whose excitation is kept."""
    spoken: int = 0
    """Frames of the window whose sound has left."""


class Cut(msgspec.Struct, frozen=True):
    """One row of a step: frames of its window that come in and go out, and where it stands afterwards."""

    total: int
    sourced: int
    decoded: int
    first: int
    last: int
    """The sound of frames [first, last) leaves now."""
    drop: int
    """Frames that leave the window at its front."""
    after: Place


class SoundContext(msgspec.Struct, frozen=True):
    """Tensors of a batch's rows, or of all slots."""

    mel: Tensor
    """fp32 [B, mels, K]."""
    source: Tensor
    """fp32 [B, K * hop]."""
    tail: Tensor
    """fp32 [B, 3840]: sound held back, already faded in; first generation."""
    phase: Tensor
    """fp64 [B, harmonics + 1], in cycles; causal generation."""


class Continuation:
    """The rule of one generation, and the slots' tensors. `run` changes nothing; `commit` keeps what it made.

    First generation: 8 frames are decoded again with their old excitation; the last 3840 samples of a chunk are held back, and faded over a
    Hamming window into the next chunk's first. Causal generation: as many frames again as its layers look back, exact; the last 8 wait for
    look-ahead.
    """

    def __init__(self, hift: Hift, noise: Tensor, slots: int) -> None:
        self._hift = hift
        self._causal = hift.config.causal
        self._history = lookback(hift.config) if self._causal else 0
        self.kept = self._history + F0_LOOKAHEAD + PRE_LOOKAHEAD + 1 if self._causal else OVERLAP_FRAMES
        device = noise.device
        self._noise = noise
        self._overlap = OVERLAP_FRAMES * hift.hop
        self._fade = torch.from_numpy(np.hamming(2 * self._overlap).astype(np.float32)).to(device)
        self._context = self.start(slots)
        self._places = [Place()] * slots

    def start(self, rows: int) -> SoundContext:
        """The context before anything was said."""
        hift, device = self._hift, self._noise.device
        return SoundContext(
            mel=torch.zeros(rows, hift.config.mels, self.kept, device=device),
            source=torch.zeros(rows, self.kept * hift.hop, device=device),
            tail=torch.zeros(rows, self._overlap, device=device),
            phase=torch.zeros(rows, hift.config.harmonics + 1, device=device, dtype=torch.float64),
        )

    def begin(self, slot: int) -> None:
        """A turn begins: nothing was said."""
        self._places[slot] = Place()
        self._context.phase[slot] = 0

    def cut(self, slot: int, frames: int, final: bool) -> Cut:
        """What the next `frames` mel frames of a slot let out."""
        place = self._places[slot]
        total = place.mel + frames
        sourced = total - (F0_LOOKAHEAD if self._causal and not final else 0)
        decoded = sourced - (PRE_LOOKAHEAD if self._causal and not final else 0)
        last = decoded - (0 if final else 1 if self._causal else OVERLAP_FRAMES)
        last = max(last, place.spoken)
        drop = max(0, last - self._history)
        after = Place(place.begin + drop, total - drop, max(0, sourced - drop), last - drop)
        return Cut(total, max(sourced, 0), max(decoded, 0), place.spoken, last, drop, after)

    def run(self, slots: Sequence[int], cuts: Sequence[Cut], mel: Tensor) -> tuple[Tensor, SoundContext]:
        """mel fp32 [B, M, mels], of which each row's new frames count, to (samples fp32 [B, W * hop], the context to commit).

        Row b's sound is samples [first * hop, last * hop) of its row.
        """
        return self.forward(torch.tensor(self.rows(slots, cuts)).to(mel.device), mel)

    def rows(self, slots: Sequence[int], cuts: Sequence[Cut]) -> list[tuple[int, ...]]:
        """What `forward` needs to know of each slot: itself, where it stands, what comes in and goes out."""
        places = [self._places[slot] for slot in slots]
        return [
            (slot, place.begin, place.mel, place.source, cut.total, cut.sourced, cut.decoded, cut.drop)
            for slot, place, cut in zip(slots, places, cuts, strict=True)
        ]

    def forward(self, rows: Tensor, mel: Tensor) -> tuple[Tensor, SoundContext]:
        """See `run`; `rows` int64 [B, 8]."""
        hop, held = self._hift.hop, self._context
        where, begin, kept, old, total, sourced, decoded, drop = rows.unbind(1)
        width = self.kept + mel.shape[1]
        window = _joined(held.mel[where], mel.transpose(1, 2), kept)
        f0 = self._hift.pitch(window, total)
        source, phase = self._hift.source(f0, sourced, old, held.phase[where], self._noise, begin * hop)
        again = within(old * hop, width * hop)
        source = torch.where(again, torch.nn.functional.pad(held.source[where], (0, (width - self.kept) * hop)), source)
        samples = self._hift.decode(window, source, sourced, decoded)
        if not self._causal:
            samples = self._faded(samples, held.tail[where], kept)
        return samples, SoundContext(
            mel=_from(window, drop, self.kept),
            source=_from(source[:, None], drop * hop, self.kept * hop)[:, 0],
            tail=_from(samples[:, None], (total * hop - self._overlap).clamp(min=0), self._overlap)[:, 0],
            phase=phase,
        )

    def commit(self, slots: Sequence[int], cuts: Sequence[Cut], rows: Sequence[int], after: SoundContext) -> None:
        """Keeps what `run` made of `rows` (indices into the batch): slots and cuts are those of these rows."""
        where = torch.tensor(list(slots), device=after.mel.device)
        source = torch.tensor(list(rows), device=after.mel.device)
        for name in SoundContext.__struct_fields__:
            getattr(self._context, name)[where] = getattr(after, name)[source]
        for slot, cut in zip(slots, cuts, strict=True):
            self._places[slot] = cut.after

    def _faded(self, samples: Tensor, tail: Tensor, kept: Tensor) -> Tensor:
        size = self._overlap
        faded = samples[:, :size] * self._fade[:size] + tail * self._fade[size:]
        front = torch.where((kept > 0)[:, None], faded, samples[:, :size])
        return torch.cat((front, samples[:, size:]), 1)


def lookback(config: HiftConfig) -> int:
    """Frames before a sample that the causal generation's decoder looks at: 31 in the released sizes. Two more for the grids of its
    rates."""

    def reach(kernel: int) -> int:
        return sum((kernel - 1) * (dilation + 1) for dilation in config.resblock_dilations)

    rate = math.prod(config.upsample_rates)
    transform = config.n_fft / (rate * config.istft_hop)
    total, scale = 0.0, 1
    for stage, upsample in enumerate(config.upsample_rates):
        scale *= upsample
        lower = math.prod(config.upsample_rates[stage + 1 :])
        source = transform + (2 * lower - 1 if lower > 1 else 0) / rate + reach(config.source_kernels[stage]) / scale
        total = max(total + (config.upsample_kernels[stage] - 1) / scale, source) + max(map(reach, config.resblock_kernels)) / scale
    return math.ceil(total + 7 / rate + transform) + 2


def _joined(held: Tensor, fresh: Tensor, kept: Tensor) -> Tensor:
    """[B, C, K] of which `kept` count, then [B, C, M], without a gap: [B, C, K + M]."""
    size = held.shape[2]
    column = torch.arange(size + fresh.shape[2], device=held.device)
    index = torch.where(column < kept[:, None], column, size + column - kept[:, None]).clamp(max=size + fresh.shape[2] - 1)
    return torch.cat((held, fresh), 2).gather(2, index[:, None].expand(-1, held.shape[1], -1))


def _from(x: Tensor, start: Tensor, count: int) -> Tensor:
    """[B, C, T] to [B, C, count]: from each row's `start` on; what would lie beyond the end repeats the end."""
    index = (start[:, None] + torch.arange(count, device=x.device)).clamp(max=x.shape[2] - 1)
    return x.gather(2, index[:, None].expand(-1, x.shape[1], -1))
