"""A cut window: equal to closed-up positions without rewriting a key (native.md 8 and 17)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tests.torch_kit.support import QWEN, decoder, embeddings, feed, reference, table, whole
from tests.torch_kit.support.pairwise import pairwise
from torch_kit.decoder import Decoder
from torch_kit.page_table import PageTable
from torch_kit.ragged import RaggedBatch, StaleAppend

PREFIX, UNITS, NEW = 11, (13, 18, 9, 21), 10
TOTAL = PREFIX + sum(UNITS) + NEW


def _feed_prefix(ours: Decoder, session: PageTable, inputs: Tensor) -> Tensor:
    batch = RaggedBatch.of([session.append_prefix(len(inputs))])
    return ours.forward(inputs, batch)[: batch.count]


def _session(ours: Decoder, inputs: Tensor) -> PageTable:
    session = table(ours)
    _feed_prefix(ours, session, inputs[:PREFIX])
    for unit in inputs[PREFIX : PREFIX + sum(UNITS)].split(list(UNITS)):
        feed(ours, [session], [unit])
    return session


@torch.no_grad()
def _re_rotated(model: Any, inputs: Tensor, dropped: int) -> Tensor:
    """The reference's way: the kept keys behind the span are turned to closed-up positions, the new tokens go on from there."""
    old, stop = len(inputs) - NEW, PREFIX + dropped
    cache, moved = DynamicCache(), DynamicCache()
    model(inputs_embeds=inputs[None, :old], position_ids=torch.arange(old)[None], past_key_values=cache, use_cache=True)
    for index, layer in enumerate(cache.layers):
        kept = torch.cat((layer.keys[:, :, :PREFIX], _turn(layer.keys[:, :, stop:], -dropped)), 2)
        moved.update(kept, torch.cat((layer.values[:, :, :PREFIX], layer.values[:, :, stop:]), 2), index)
    positions = torch.arange(old - dropped, old - dropped + NEW)[None]
    hidden: Tensor = model(inputs_embeds=inputs[None, old:], position_ids=positions, past_key_values=moved).last_hidden_state[0]
    return hidden


def _turn(keys: Tensor, delta: int) -> Tensor:
    half = QWEN.head_dim // 2
    angles = delta * QWEN.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().float(), angles.sin().float()
    first, second = keys[..., :half], keys[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _causal(count: int) -> tuple[Tensor, Tensor]:
    """Distances and visibility of an uncut history."""
    where = torch.arange(count)
    return where[:, None] - where, torch.ones(count, count, dtype=torch.bool).tril()


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
@pytest.mark.parametrize("units", [1, 2, 3])
def test_a_cut_equals_a_masked_forward_and_the_re_rotation_but_not_recomputation(units: int) -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN)
    inputs = embeddings(TOTAL, seed=1)
    session = _session(ours, inputs)
    dropped, held = sum(UNITS[:units]), ours.pool.held
    session.cut(PREFIX, PREFIX + dropped)
    assert session.gap == dropped and session.position == PREFIX + sum(UNITS) and ours.pool.held < held
    (hidden,) = feed(ours, [session], [inputs[-NEW:]])

    distance, mask = _causal(TOTAL)
    distance[-NEW:, :PREFIX] -= dropped
    mask[-NEW:, PREFIX : PREFIX + dropped] = False
    assert (hidden - pairwise(model, QWEN, inputs, distance, mask)[-NEW:]).abs().max() < 1e-4
    assert (hidden - _re_rotated(model, inputs, dropped)).abs().max() < 1e-4
    kept = torch.cat((inputs[:PREFIX], inputs[PREFIX + dropped :]))
    assert (hidden - whole(model, kept)[-NEW:]).abs().max() > 1e-2


def test_many_cuts_equal_one_masked_forward_of_the_whole_history() -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN)
    units = [7, 12, 5, 16, 9, 3, 14, 8, 11, 6, 13, 10]
    inputs = embeddings(PREFIX + sum(units), seed=2)
    distance, mask = _causal(len(inputs))
    session = table(ours, reserve=9)
    hidden = [_feed_prefix(ours, session, inputs[:PREFIX])]
    at = PREFIX
    for index, unit in enumerate(units):
        hidden += feed(ours, [session], [inputs[at : at + unit]])
        distance[at : at + unit, :PREFIX] -= session.gap
        mask[at : at + unit, PREFIX : session.window_start] = False
        at += unit
        if session.window_length > 40:
            session.cut(session.window_start, session.window_start + units[index - 2] // 2 + 20)
    assert session.gap > 60
    assert (torch.cat(hidden) - pairwise(model, QWEN, inputs, distance, mask)).abs().max() < 1e-4


def test_a_cut_row_beside_an_uncut_one_equals_alone() -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN, pages=80)
    inputs, others = embeddings(TOTAL, seed=1), embeddings(33, seed=7)
    alone, beside, other = _session(ours, inputs), _session(ours, inputs), table(ours)
    for session in (alone, beside):
        session.cut(PREFIX, PREFIX + UNITS[0])
    feed(ours, [other], [others[:-1]])
    (expected,) = feed(ours, [alone], [inputs[-NEW:]])
    hidden, last = feed(ours, [beside, other], [inputs[-NEW:], others[-1:]])
    assert (hidden - expected).abs().max() < 1e-5
    assert (last - whole(model, others)[-1:]).abs().max() < 1e-5


def test_text_of_dropped_units_goes_behind_the_prefix() -> None:
    """The context window: more prefix is written while the window stays; its tokens see the prefix only."""
    model = reference(QWEN)
    ours = decoder(model, QWEN)
    inputs, recap, second = embeddings(TOTAL, seed=1), embeddings(7, seed=3), embeddings(14, seed=4)
    session = _session(ours, inputs)
    for text, dropped in ((recap, UNITS[0]), (second, UNITS[1])):
        session.cut(session.window_start, session.window_start + dropped)
        session.cut_prefix(PREFIX)
        hidden = _feed_prefix(ours, session, text)
        assert (hidden - whole(model, torch.cat((inputs[:PREFIX], text)))[PREFIX:]).abs().max() < 1e-5
    (hidden,) = feed(ours, [session], [inputs[-NEW:]])

    start = PREFIX + UNITS[0] + UNITS[1]
    gap = start - (PREFIX + 14)
    assert session.gap == gap
    everything = torch.cat((inputs[:-NEW], second, inputs[-NEW:]))
    where = torch.cat((torch.arange(TOTAL - NEW), torch.arange(PREFIX, PREFIX + 14), torch.arange(TOTAL - NEW, TOTAL)))
    distance, mask = where[:, None] - where, _causal(len(everything))[1]
    distance[-NEW:, :PREFIX] -= gap
    distance[-NEW:, -NEW - 14 : -NEW] -= gap
    mask[-NEW:, PREFIX:start] = False
    mask[-NEW - 14 : -NEW, PREFIX : TOTAL - NEW] = False
    assert (hidden - pairwise(model, QWEN, everything, distance, mask)[-NEW:]).abs().max() < 1e-4


def test_sessions_share_the_pages_of_one_prefix() -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN, pages=40)
    inputs = embeddings(TOTAL, seed=1)
    maker = table(ours, reserve=2)
    _feed_prefix(ours, maker, inputs[:PREFIX])
    prefix = maker.share_prefix()
    maker.release()
    assert ours.pool.held == 2
    sessions = [table(ours, reserve=10) for _ in range(3)]
    for session in sessions:
        session.attach(prefix)
    prefix.release()
    news = [torch.cat((inputs[PREFIX:-index], embeddings(index, seed=index))) for index in (1, 2, 3)]
    for session, new, hidden in zip(sessions, news, feed(ours, sessions, news), strict=True):
        assert session.prefix_pages == 2 and session.pages[:2] == list(prefix.pages)
        assert (hidden - whole(model, torch.cat((inputs[:PREFIX], new)))[PREFIX:]).abs().max() < 1e-5
    sessions[0].cut(PREFIX, PREFIX + 30)
    (cut,) = feed(ours, [sessions[0]], [inputs[-1:]])
    assert cut.isfinite().all()
    for session in sessions[:2]:
        session.release()
    (after,) = feed(ours, [sessions[2]], [inputs[-1:]])
    expected = whole(model, torch.cat((inputs[:PREFIX], news[2], inputs[-1:])))[-1:]
    assert (after - expected).abs().max() < 1e-5
    sessions[2].release()
    assert ours.pool.held == 0 and ours.pool.free == 39


def test_an_append_that_others_overtook_is_refused() -> None:
    ours = decoder(reference(QWEN), QWEN)
    session = table(ours)
    first = session.append(3)
    session.append(1)
    with pytest.raises(StaleAppend):
        RaggedBatch.of([first])
