"""The networks, the arena and the slots of one replica: one step for many sessions, nothing kept before it is known to be sound."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minicpmo45.config import CODE_RATE, FlowConfig, HiftConfig
from torch_kit.graphs import Graphs
from torch_kit.ragged import BUCKETS, bucket
from vocoder_svc.minicpmo45.arena import SCRATCH, Arena, frame_bytes
from vocoder_svc.minicpmo45.caches import FlowCaches, Piece, Prompt
from vocoder_svc.minicpmo45.continuation import Continuation, Cut
from vocoder_svc.minicpmo45.flow import NOISE_FRAMES, Flow, context_bytes, noise
from vocoder_svc.minicpmo45.hift import Hift
from vocoder_svc.minicpmo45.layers import Weights, within
from vocoder_svc.minicpmo45.retention import RING_FRAMES, Newest, Reference, Retention, Span
from vocoder_svc.minicpmo45.room import Made, Room
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings
from vocoder_svc.minicpmo45.source import noise_table
from vocoder_svc.minicpmo45.stream import CHUNK
from vocoder_svc.minicpmo45.voice import SILENCE_CODE, Ear, Heard, Recording

WIDTH_STEP = 100
"""Prompts count as long as the next multiple of so many frames, so that few graphs are needed."""
KEPT_FIELDS, SOUND_FIELDS = 5, 8
"""Of `Newest.rows` and `Continuation.rows`."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Sound(msgspec.Struct, frozen=True):
    """What one slot's step made: float32 [n] at 24 kHz, or None when it was not finite and nothing of it is kept."""

    samples: NDArray[np.float32] | None


class Vocoder:
    """`flow` and `hift`: weights with checkpoint names, weight norm folded, any dtype and device."""

    def __init__(
        self, flow: Weights, hift: Weights, flow_config: FlowConfig, hift_config: HiftConfig, ear: Ear, settings: MiniCpmVocoderSettings
    ) -> None:
        device, dtype = torch.device(settings.device), DTYPES[settings.flow_dtype]
        longest = longest_prompt(settings)
        self._ear = ear
        self._settings = settings
        self._device = device
        networks = {name: tensor.to(device, dtype) for name, tensor in flow.items()}
        drawn = noise(flow_config, settings.seed)[:, : min(NOISE_FRAMES, 2 * longest + 2 * RING_FRAMES)]
        most = longest + RING_FRAMES
        how = {"tf32": settings.flow_tf32, "chained": settings.flow_chained}
        self._flow = Flow(networks, flow_config, settings.flow_steps, most, drawn, settings.kernels, **how)
        retention = _retention(settings, device)
        rings = settings.slots * retention.ring_frames
        voices = max(2, settings.voices_bytes // cached_frame_bytes(settings, flow_config))
        self.arena = Arena(flow_config, settings.flow_steps, rings + voices, cache_dtype(settings), device)
        self.voice_room = Span(SCRATCH + rings, voices)
        self._graphs = Graphs(device, plain=settings.plain or not isinstance(retention, Newest))
        self._retention = retention
        # behind the sessions one row for padding, which nobody reads
        self._caches = FlowCaches(self._flow, self.arena, retention, settings.slots + 1)
        generator = _hift({name: tensor.to(device, torch.float32) for name, tensor in hift.items()}, hift_config, settings)
        self._hop = generator.hop
        self._sound = Continuation(generator, noise_table(hift_config, settings.seed).to(device), settings.slots + 1)
        self._room = Room(lambda rows: (self._flow.start(rows), self._sound.start(rows)))

    def hear(self, voice: Recording) -> Heard:
        """Raises BadVoice."""
        return self._ear.hear(voice)

    def set_up(self, heard: Heard, span: Span) -> Prompt:
        """Puts a voice's keys into the arena; beside steps, on a thread and, on a GPU, a stream of its own. Raises NotFinite."""
        codes = torch.from_numpy(heard.codes)
        ahead = self._flow.config.lookahead
        filler = codes[:ahead] if self._settings.filler == "prompt" else torch.full((ahead,), SILENCE_CODE)
        mel, embedding = torch.from_numpy(heard.mel).to(self._device), torch.from_numpy(heard.embedding)
        if self._device.type != "cuda":
            return self._caches.set_up(span, codes, filler, mel, embedding)
        stream = torch.cuda.Stream(self._device, priority=0)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            prompt = self._caches.set_up(span, codes, filler, mel, embedding)
        stream.synchronize()
        return prompt

    def begin(self, slot: int, prompt: Prompt) -> None:
        """A turn begins in this slot, in this voice."""
        self._caches.begin(slot, prompt)
        self._sound.begin(slot)

    def step(self, slots: Sequence[int], pieces: Sequence[Piece], meanwhile: Callable[[], None] = lambda: None) -> list[Sound]:
        """The next piece of each slot (distinct, begun). What it raises has changed nothing. `meanwhile` is called once the device is at
        work, and does not raise."""
        cuts = [self._sound.cut(slot, 2 * piece.fresh, piece.final) for slot, piece in zip(slots, pieces, strict=True)]
        if self._graphs.on:
            samples, fine, flow_after, sound_after = self._replayed(slots, pieces, cuts)
            meanwhile()
        else:
            meanwhile()
            mel, flow_after = self._caches.run(slots, pieces, CHUNK)
            samples, sound_after = self._sound.run(slots, cuts, mel)
            fine = _finite(samples, mel, torch.tensor([2 * piece.fresh for piece in pieces], device=mel.device))
        rows = [row for row, ok in enumerate(fine.tolist()[: len(slots)]) if ok]
        if rows:
            kept = [slots[row] for row in rows]
            self._caches.commit(kept, [pieces[row] for row in rows], rows, flow_after)
            self._sound.commit(kept, [cuts[row] for row in rows], rows, sound_after)
        heard = samples.cpu().numpy()
        good = set(rows)
        return [
            Sound(heard[row, cut.first * self._hop : cut.last * self._hop].copy() if row in good else None) for row, cut in enumerate(cuts)
        ]

    def _replayed(self, slots: Sequence[int], pieces: Sequence[Piece], cuts: Sequence[Cut]) -> Made:
        """Of a batch padded to a few sizes; both networks replayed from one graph."""
        retention = self._retention
        assert isinstance(retention, Newest)
        kept, flow = retention.rows(slots, [piece.fresh for piece in pieces]), self._caches.rows(slots, pieces, CHUNK)
        given = [[*each, *where, *part] for each, where, part in zip(kept, flow, self._sound.rows(slots, cuts), strict=True)]
        rows = torch.tensor(given + [self._padding] * (bucket(len(given)) - len(given))).to(self._device)
        key, run, blank = self._replaying(len(rows), _padded(max(row[1] for row in kept)))
        return self._graphs(key, run, (rows,), blank)

    def warm_up(self, batch: int, prompts: Iterable[int]) -> None:
        """Captures the steps of up to `batch` sessions with prompts of so many frames; others are when first met."""
        if self._graphs.on:
            for longest in sorted({_padded(frames) for frames in prompts}):
                for size in _sizes(batch):
                    self._graphs.prepare(*self._replaying(size, longest))

    def launch_once(self, batch: int, prompts: Iterable[int]) -> None:
        """Launches each kernel that is launched by what `warm_up` captures and by the set-up of such prompts. What is made is of no use."""
        caches, lengths = self._caches.excerpt(), sorted(set(prompts))
        for size in _sizes(batch):
            self._forward(caches, self._blank(size), _padded(lengths[-1]))
        config = self._flow.config
        ahead, embedding = torch.zeros(config.lookahead, dtype=torch.int64), torch.zeros(config.speaker_dim)
        for frames in lengths:
            codes, mel = torch.zeros(frames // 2, dtype=torch.int64), torch.zeros(frames, config.mels, device=self._device)
            caches.run_prompt(Span(self.voice_room.start, frames), codes, ahead, mel, embedding)

    @property
    def _padding(self) -> list[int]:
        """A row that nobody reads: no frames but one of sound, for an index must point at something."""
        spare, codes = self._settings.slots, CHUNK + self._flow.config.lookahead
        return [*[0] * KEPT_FIELDS, spare, *[0] * (2 + codes), spare, 0, 0, 0, 1, 1, 1, 0]

    def _replaying(self, size: int, longest: int) -> tuple[Hashable, Callable[[Tensor], Made], Callable[[], tuple[Tensor]]]:
        """Key, function and blank inputs of a graph."""

        def run(rows: Tensor) -> Made:
            return self._room.put(self._forward(self._caches, rows, longest))

        def blank() -> tuple[Tensor]:
            return (self._blank(size),)

        return (size, longest), run, blank

    def _forward(self, caches: FlowCaches, rows: Tensor, longest: int) -> Made:
        """A step of `rows`, int64 [B, fields]; `longest`: at least the frames of every prompt."""
        kept, flow, sound = rows.split_with_sizes([KEPT_FIELDS, rows.shape[1] - KEPT_FIELDS - SOUND_FIELDS, SOUND_FIELDS], 1)
        mel, flow_after = caches.forward(flow, Newest.attention(kept, longest, CHUNK))
        samples, sound_after = self._sound.forward(sound, mel)
        return samples, _finite(samples, mel, kept[:, -1]), flow_after, sound_after

    def _blank(self, size: int) -> Tensor:
        return torch.tensor([self._padding] * size).to(self._device)


def _finite(samples: Tensor, mel: Tensor, frames: Tensor) -> Tensor:
    """bool [B]: all samples, and of the mels each row's `frames`, int64 [B]."""
    counted = within(frames, mel.shape[1])
    return torch.isfinite(samples).all(1) & torch.isfinite(mel.masked_fill(~counted[:, :, None], 0.0)).all(2).all(1)


def _sizes(batch: int) -> list[int]:
    """To which the batches of steps are padded, the largest first."""
    return [size for size in reversed(BUCKETS) if size <= bucket(batch)]


def _padded(frames: int) -> int:
    return -(-frames // WIDTH_STEP) * WIDTH_STEP


def longest_prompt(settings: MiniCpmVocoderSettings) -> int:
    """Frames of the longest voice."""
    return 2 * int(settings.voice_s * CODE_RATE + 1)


def cache_dtype(settings: MiniCpmVocoderSettings) -> torch.dtype:
    """Of keys and values."""
    automatic = "float32" if settings.device == "cpu" else "float16" if settings.flow_dtype == "float16" else "bfloat16"
    return DTYPES[automatic if settings.cache_dtype == "auto" else settings.cache_dtype]


def cached_frame_bytes(settings: MiniCpmVocoderSettings, config: FlowConfig) -> int:
    """Of one mel frame of a voice or session."""
    return frame_bytes(config, settings.flow_steps, cache_dtype(settings).itemsize)


def session_bytes(settings: MiniCpmVocoderSettings, config: FlowConfig) -> int:
    """Keys and values of one session, and what its convolutions remember."""
    frames = _retention(settings, torch.device("cpu")).ring_frames
    contexts = context_bytes(config, settings.flow_steps, DTYPES[settings.flow_dtype].itemsize)
    return frames * cached_frame_bytes(settings, config) + contexts


def _hift(weights: Weights, config: HiftConfig, settings: MiniCpmVocoderSettings) -> Hift:
    if settings.kernels == "plain":
        return Hift(weights, config)
    # Triton is not everywhere
    from vocoder_svc.minicpmo45.fused_hift import FusedHift

    return FusedHift(weights, config, DTYPES[settings.hift_dtype])


def _retention(settings: MiniCpmVocoderSettings, device: torch.device) -> Retention:
    if settings.trim == "newest":
        return Newest(settings.slots, device)
    return Reference(settings.slots, device, longest_prompt(settings), packed=settings.trim == "reference_packed")
