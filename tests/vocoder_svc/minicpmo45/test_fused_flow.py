"""The fused flow against the plain one, chunk by chunk: two voices, all phases of turns in one batch, unwritten memory NaN."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.vocoder_svc.minicpmo45.kernels import DEVICE
from tests.vocoder_svc.minicpmo45.support import CHUNK, Bench, piece
from tests.vocoder_svc.minicpmo45.weights import FLOW
from vocoder_svc.minicpmo45.arena import SCRATCH
from vocoder_svc.minicpmo45.attention import Keys
from vocoder_svc.minicpmo45.retention import RING_FRAMES, Newest
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

VOICES = (60, 44)
STEPS = 2
ONE_HEAD = msgspec.structs.replace(FLOW, heads=1, dit_heads=1, dit_head_dim=24)
"""The interpreter takes its time for each head."""
PHASES = [[(0, 28)], [(0, 28)], [(0, 20), (1, 10)], [(1, 28), (0, 28)], [(2, 28), (0, 4), (1, 7)], [(0, 28), (2, 28)]]
"""Slots and codes of each batch: first, later, trimmed and last chunks; 7, 10 and 4 of them end a turn, then the slot begins another."""
LAST = {(0, 4), (1, 7)}


@pytest.mark.behaviour("N46", "N48", "D1")
def test_mels_are_the_plain_ones_in_all_phases_and_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain, fused = (Bench(Newest(3, DEVICE), 3, VOICES, STEPS, ONE_HEAD, kind, DEVICE) for kind in ("plain", "fused"))
    draw, begun = np.random.default_rng(3), set()
    for batch in PHASES:
        slots = [slot for slot, _ in batch]
        pieces = [piece(draw.integers(0, 6561, count), final=each in LAST) for each in batch for count in each[1:]]
        for slot in set(slots) - begun:
            for bench in (plain, fused):
                bench.caches.begin(slot, bench.prompts[slot % 2])
        begun = (begun | set(slots)) - {slot for slot, count in batch if (slot, count) in LAST}
        for found, truth in zip(fused.say(slots, pieces), plain.say(slots, pieces), strict=True):
            assert np.abs(found - truth).max() < 1e-5
    ours, theirs = fused.caches._context, plain.caches._context
    assert (ours.dit - theirs.dit).abs().max() < 1e-5
    assert (ours.conformer.upsample - theirs.conformer.upsample).abs().max() < 1e-5
    rings = slice(SCRATCH, SCRATCH + 3 * RING_FRAMES)
    written = fused.arena.dit[..., rings, :], plain.arena.dit[..., rings, :]
    assert torch.equal(written[0].isnan(), written[1].isnan()) and (written[0] - written[1]).nan_to_num().abs().max() < 1e-5


@pytest.mark.behaviour("N46", "N48")
def test_a_prompt_may_count_as_longer_than_any_prompt_is() -> None:
    """As graphs have it, whose prompts are as long as the next hundred frames: no distance beyond the longest prompt's is ever met."""
    found = []
    for kernels, longest in (("plain", VOICES[0]), ("fused", 100)):
        bench = Bench(Newest(1, DEVICE), 1, VOICES[:1], 1, ONE_HEAD, kernels, DEVICE)  # type: ignore[arg-type]
        draw, retention = np.random.default_rng(4), bench.caches._retention
        assert isinstance(retention, Newest)
        bench.caches.begin(0, bench.prompts[0])
        for _ in range(2):
            pieces = [piece(draw.integers(0, 6561, 28))]
            kept = torch.tensor(retention.rows((0,), (25,)), device=DEVICE)
            rows = torch.tensor(bench.caches.rows((0,), pieces, CHUNK), device=DEVICE)
            mel, after = bench.caches.forward(rows, Newest.attention(kept, longest, CHUNK))
            bench.caches.commit((0,), pieces, (0,), after)
        found.append(mel)
    assert (found[0] - found[1]).abs().max() < 1e-5


def test_keys_without_lengths_are_refused() -> None:
    bench = Bench(Newest(1, DEVICE), 1, VOICES[1:], 1, kernels="fused", device=DEVICE)
    nothing = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    keys, x = Keys(), torch.zeros(1, 50, 80, device=DEVICE)
    context = bench.flow.start(1)
    with pytest.raises(ValueError, match="keys: no spans"):
        bench.flow._dit(0, x, x, nothing[0], context.dit[0], keys, bench.arena)
    with pytest.raises(ValueError, match="keys: no spans"):
        bench.flow._conformer(nothing.expand(1, 28), nothing[0], nothing[0] > 0, context.conformer, keys, keys, bench.arena)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"kernels": "fused", "trim": "reference"}, "kernels: fused ones have the trim"),
        ({"kernels": "fused"}, "kernels: fused ones run on a GPU"),
        ({"flow_tf32": True}, "flow_tf32"),
        ({"device": "cuda", "kernels": "plain", "flow_chained": True}, "flow_chained"),
        ({"kernels": "fused", "device": "cuda", "flow_tf32": True, "flow_dtype": "bfloat16"}, "flow_tf32"),
    ],
)
def test_what_fused_kernels_cannot_do_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, chosen: dict[str, object], why: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValidationError, match=why):
        MiniCpmVocoderSettings(checkpoint=Path(), **chosen)
