"""Which frames a session still attends to. `Newest` is ours: the voice's prompt and the newest 100 frames. `Reference` copies the
packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from vocoder_svc.minicpmo45.attention import Keys, Lists, Spans

KEPT_FRAMES = 100
CHUNK_FRAMES = 50
RING_FRAMES = KEPT_FRAMES + CHUNK_FRAMES
"""What a session needs under `Newest`."""


class Span(msgspec.Struct, frozen=True):
    """Frames [start, start + frames) of the arena; tokens at half of that."""

    start: int
    frames: int


class Attention(msgspec.Struct, frozen=True):
    """The keys of a batch for the three kinds of attention, and each row's place in the noise."""

    token: Keys
    mel: Keys
    dit: Keys
    offset: Tensor
    """int64 [B]."""


class Retention(Protocol):
    """A rule, and what it knows of each session. `plan` changes nothing, so that a failed step leaves nothing behind."""

    ring_frames: int
    """Frames of the arena a session needs."""

    def begin(self, slot: int, prompt: Span, ring: Span) -> None:
        """A turn begins: the session has the prompt and nothing else."""

    def plan(self, slots: Sequence[int], codes: Sequence[int], chunk: int) -> Attention:
        """Keys for the next `codes[b]` codes of each slot, `chunk` being the most of them."""

    def commit(self, slots: Sequence[int], codes: Sequence[int]) -> None:
        """The planned frames were made and are remembered."""


class Newest:
    """The whole prompt (shared, by pointer) and the newest 100 frames (a ring of 150), places closed up. Lengths only: no lists, no
    copies."""

    def __init__(self, slots: int, device: torch.device | str) -> None:
        self.ring_frames = RING_FRAMES
        self._device = device
        self._prompt = [Span(0, 0)] * slots
        self._ring = [0] * slots
        self._made = [0] * slots

    def begin(self, slot: int, prompt: Span, ring: Span) -> None:
        self._prompt[slot], self._ring[slot], self._made[slot] = prompt, ring.start, 0

    def plan(self, slots: Sequence[int], codes: Sequence[int], chunk: int) -> Attention:
        rows = self.rows(slots, codes)
        return self.attention(torch.tensor(rows, dtype=torch.int64).to(self._device), max(row[1] for row in rows), chunk)

    def rows(self, slots: Sequence[int], codes: Sequence[int]) -> list[tuple[int, ...]]:
        """What `attention` needs to know of each slot: where its prompt begins, frames of it, where its ring begins, frames made, new
        ones."""
        return [
            (self._prompt[s].start, self._prompt[s].frames, self._ring[s], self._made[s], 2 * n) for s, n in zip(slots, codes, strict=True)
        ]

    @staticmethod
    def attention(rows: Tensor, longest: int, chunk: int) -> Attention:
        """The keys of `rows`, int64 [B, 5]; `longest`: at least the frames of every prompt."""
        rows = rows.contiguous()
        offset = rows[:, 1] + rows[:, 3].clamp(max=KEPT_FRAMES)
        mel = Keys(Spans(rows, RING_FRAMES, KEPT_FRAMES, longest, 2 * chunk))
        token = Keys(Spans(rows // 2, RING_FRAMES // 2, KEPT_FRAMES // 2, (longest + 1) // 2, chunk))
        return Attention(token, mel, mel, offset)

    def commit(self, slots: Sequence[int], codes: Sequence[int]) -> None:
        for slot, count in zip(slots, codes, strict=True):
            self._made[slot] += 2 * count


class _History(msgspec.Struct):
    """Arena places in the order in which a reference's cache holds them."""

    token: list[int]
    mel: list[int]
    dit: list[int]


class Reference:
    """The packages' rule: beyond P + 100 entries, keep the first P and the last 100 of each cache (P: prompt frames).

    What that keeps depends on the order in which a cache is joined: [new, old] in the DiT, so that prompt frames go and P generated ones
    stay; [old, new] in the conformer. `packed`: the conformer's token rate is trimmed through its packed form [cache, cache] and keeps the
    first 50 generated tokens (stepaudio2_minicpmo 0.1.1); else at its own rate (minicpmo_utils 1.0.7). For parity; a ring must hold P + 150
    frames.
    """

    def __init__(self, slots: int, device: torch.device | str, longest_prompt: int, packed: bool) -> None:
        self.ring_frames = longest_prompt + RING_FRAMES
        self._device = device
        self._packed = packed
        self._prompt = [0] * slots
        self._ring = [Span(0, 0)] * slots
        self._history = [_History([], [], [])] * slots

    def begin(self, slot: int, prompt: Span, ring: Span) -> None:
        """Raises ValueError for a prompt under 2 s: the packed form would keep frames twice."""
        if self._packed and prompt.frames < KEPT_FRAMES:
            raise ValueError(f"the packed rule needs a prompt of at least {KEPT_FRAMES} frames, this one has {prompt.frames}")
        self._prompt[slot], self._ring[slot] = prompt.frames, ring
        frames = list(range(prompt.start, prompt.start + prompt.frames))
        self._history[slot] = _History([frame // 2 for frame in frames[::2]], frames, list(frames))

    def plan(self, slots: Sequence[int], codes: Sequence[int], chunk: int) -> Attention:
        histories = [self._history[slot] for slot in slots]
        fresh = [self._fresh(slot, count) for slot, count in zip(slots, codes, strict=True)]
        return Attention(
            token=self._keys([(h.token, f.token) for h, f in zip(histories, fresh, strict=True)], chunk),
            mel=self._keys([(h.mel, f.mel) for h, f in zip(histories, fresh, strict=True)], 2 * chunk),
            dit=self._keys([(h.dit, f.dit) for h, f in zip(histories, fresh, strict=True)], 2 * chunk),
            offset=torch.tensor([len(h.dit) for h in histories], device=self._device),
        )

    def commit(self, slots: Sequence[int], codes: Sequence[int]) -> None:
        for slot, count in zip(slots, codes, strict=True):
            prompt, held, fresh = self._prompt[slot], self._history[slot], self._fresh(slot, count)
            token, mel, dit = held.token + fresh.token, held.mel + fresh.mel, fresh.dit + held.dit
            if self._packed and 2 * len(token) > prompt + KEPT_FRAMES:
                twice = _trim(token + token, prompt, KEPT_FRAMES)
                token = twice[: len(twice) // 2]
            elif not self._packed:
                token = _trim(token, prompt // 2, KEPT_FRAMES // 2)
            self._history[slot] = _History(token, _trim(mel, prompt, KEPT_FRAMES), _trim(dit, prompt, KEPT_FRAMES))

    def _fresh(self, slot: int, codes: int) -> _History:
        """Free places of the ring for the next codes, one list a cache: their histories differ."""
        ring, held = self._ring[slot], self._history[slot]
        frames = range(ring.start, ring.start + ring.frames)
        return _History(
            _free(range(ring.start // 2, (ring.start + ring.frames) // 2), held.token, codes),
            _free(frames, held.mel, 2 * codes),
            _free(frames, held.dit, 2 * codes),
        )

    def _keys(self, rows: list[tuple[list[int], list[int]]], chunk: int) -> Keys:
        most = max(len(held) + len(fresh) for held, fresh in rows)

        def padded(values: list[list[int]], size: int, filler: int) -> Tensor:
            return torch.tensor([row + [filler] * (size - len(row)) for row in values], device=self._device)

        lists = Lists(
            index=padded([held + fresh for held, fresh in rows], most, 0),
            position=padded([list(range(len(held) + len(fresh))) for held, fresh in rows], most, -1),
            write=padded([fresh for _, fresh in rows], chunk, 0),
            query=padded([[len(held) + n for n in range(chunk)] for held, _ in rows], chunk, 0),
        )
        return Keys(given=lists)


def _trim(entries: list[int], first: int, last: int) -> list[int]:
    return entries[:first] + entries[-last:] if len(entries) > first + last else entries


def _free(places: range, held: list[int], count: int) -> list[int]:
    taken = set(held)
    return [place for place in places if place not in taken][:count]


def whole(span: Span, device: torch.device | str) -> Attention:
    """Keys for a voice's set-up, one row: all frames are new, and lie where they will stay."""

    def keys(start: int, count: int) -> Keys:
        return Keys(Spans(torch.tensor([[0, 0, start, 0, count]], device=device), cells=count, kept=0, longest=0, chunk=count))

    mel = keys(span.start, span.frames)
    return Attention(keys(span.start // 2, span.frames // 2), mel, mel, torch.zeros(1, dtype=torch.int64, device=device))
