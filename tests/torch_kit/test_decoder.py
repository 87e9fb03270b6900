"""The decoder against transformers, and against itself in other batches."""

from __future__ import annotations

import pytest
import torch

from tests.torch_kit.support import HIDDEN, LLAMA, QWEN, decoder, embeddings, feed, reference, table, whole
from torch_kit.decoder import Decoder, DecoderConfig, WeightError
from torch_kit.decoder_weights import DecoderWeights, join
from torch_kit.ragged import RaggedBatch

BOTH = pytest.mark.parametrize("config", [QWEN, LLAMA], ids=["qwen3", "llama"])


@BOTH
def test_prefill_equals_transformers(config: DecoderConfig) -> None:
    model = reference(config)
    ours = decoder(model, config)
    inputs = embeddings(29, seed=1)
    (hidden,) = feed(ours, [table(ours)], [inputs])
    assert (hidden - whole(model, inputs)).abs().max() < 1e-5


@BOTH
def test_pieces_equal_the_whole(config: DecoderConfig) -> None:
    model = reference(config)
    ours = decoder(model, config)
    inputs = embeddings(40, seed=2)
    session = table(ours)
    pieces = [feed(ours, [session], [piece])[0] for piece in inputs.split([13, 1, 1, 1, 9, 1, 14])]
    assert (torch.cat(pieces) - whole(model, inputs)).abs().max() < 1e-5


@BOTH
def test_a_mixed_batch_equals_each_row_alone(config: DecoderConfig) -> None:
    model = reference(config)
    ours = decoder(model, config)
    histories = [embeddings(count, seed=10 + count) for count in (17, 3, 31, 8)]
    tables = [table(ours) for _ in range(5)]
    feed(ours, tables[:4], histories)
    news = [embeddings(count, seed=50 + count) for count in (1, 1, 12, 1, 21)]
    mixed = feed(ours, tables, news)
    for history, new, hidden in zip([*histories, embeddings(0, seed=0)], news, mixed, strict=True):
        expected = whole(model, torch.cat((history, new)))[len(history) :]
        assert (hidden - expected).abs().max() < 1e-5


def test_padding_changes_nothing() -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN)
    inputs = [embeddings(5, seed=1), embeddings(1, seed=2)]
    exact = feed(ours, [table(ours), table(ours)], inputs, exact=True)
    tables = [table(ours), table(ours)]
    batch = RaggedBatch.of([each.append(len(rows)) for each, rows in zip(tables, inputs, strict=True)], tokens=32, rows=8, pages=5)
    padded = ours.forward(torch.cat(inputs), batch)
    assert padded.isfinite().all() and padded.shape == (32, HIDDEN)
    assert (padded[:6] - torch.cat(exact)).abs().max() < 1e-5


def test_only_rows_that_sample_are_named() -> None:
    ours = decoder(reference(QWEN), QWEN)
    appended = [table(ours).append(count) for count in (4, 1, 7)]
    assert RaggedBatch.of(appended).sampled.tolist() == [3, 4, 11]
    assert RaggedBatch.of(appended, [True, False, True]).sampled.tolist() == [3, 11]
    assert RaggedBatch.of(appended, [False] * 3).sampled.tolist() == []


def test_freed_pages_are_poison_that_nobody_reads() -> None:
    model = reference(LLAMA)
    ours = decoder(model, LLAMA, pages=8)
    first, second = table(ours, reserve=3), table(ours, reserve=4)
    feed(ours, [first], [embeddings(20, seed=1)])
    first.release()
    assert ours.pool.storage[:, 1:].isnan().all()
    inputs = embeddings(30, seed=2)
    (hidden,) = feed(ours, [second], [inputs])
    assert (hidden - whole(model, inputs)).abs().max() < 1e-5


def test_a_rewound_draft_leaves_nothing() -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN)
    inputs, wrong = embeddings(20, seed=3), embeddings(7, seed=4)
    session = table(ours)
    feed(ours, [session], [inputs[:15]])
    feed(ours, [session], [wrong])
    session.rewind(7)
    (hidden,) = feed(ours, [session], [inputs[15:]])
    assert (hidden - whole(model, inputs)[15:]).abs().max() < 1e-5
    assert session.position == 20 and session.page_count == 3


@BOTH
def test_bf16_is_as_near_as_plain_torch(config: DecoderConfig) -> None:
    model = reference(config)
    inputs = embeddings(64, seed=5)
    truth = whole(model, inputs)
    plain = whole(reference(config).bfloat16(), inputs.bfloat16()).float()
    ours = decoder(model, config, dtype=torch.bfloat16)
    (hidden,) = feed(ours, [table(ours)], [inputs.bfloat16()])
    assert (hidden.float() - truth).square().mean().sqrt() < 1.5 * (plain - truth).square().mean().sqrt()


def test_weights_at_fault_are_named() -> None:
    model = reference(QWEN)
    weights = dict(model.state_dict())
    pool = decoder(model, QWEN).pool
    name = "layers.1.self_attn.k_norm.weight"
    kept = weights.pop(name)
    with pytest.raises(WeightError, match=f"{name}: missing"):
        Decoder(weights, QWEN, pool)
    weights[name] = torch.cat((kept, kept))
    with pytest.raises(WeightError, match=rf"{name}: shape \(32,\), not \(16,\)"):
        Decoder(weights, QWEN, pool)


def test_embeddings_of_another_size_are_refused() -> None:
    ours = decoder(reference(QWEN), QWEN)
    batch = RaggedBatch.of([table(ours).append(3)])
    with pytest.raises(ValueError, match="embeddings"):
        ours.forward(torch.zeros(2, HIDDEN), batch)


def test_joined_weights_are_the_same_decoder_and_are_held_once() -> None:
    model = reference(QWEN)
    weights = dict(model.state_dict())
    parts = [name for name in weights if any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))]
    apart = DecoderWeights(weights, QWEN)
    join(weights, QWEN)
    together = DecoderWeights(weights, QWEN)
    assert parts and not any(name in weights for name in parts)
    for left, right in zip(apart.layers, together.layers, strict=True):
        assert torch.equal(left.qkv.values, right.qkv.values) and torch.equal(left.gate_up.values, right.gate_up.values)
    assert together.layers[0].qkv.values is weights["layers.0.self_attn.qkv_proj.weight"]
    with pytest.raises(WeightError, match="q_proj"):
        join(weights, QWEN)
