"""Tiny decoders with random weights, ours and transformers' side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

from torch_kit.decoder import Decoder, DecoderConfig
from torch_kit.decoder_weights import matrix_names, narrow
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch

torch.set_num_threads(1)

HIDDEN = 48
QWEN = DecoderConfig(HIDDEN, 3, 4, 2, 16, 96, 1e-6, 1_000_000.0, qk_norm=True)
LLAMA = DecoderConfig(HIDDEN, 3, 4, 4, 12, 96, 1e-6, 10_000.0, qk_norm=False)


def reference(config: DecoderConfig, *, seed: int = 0) -> Any:
    """transformers' model of these sizes, fp32, with weights large enough that attention matters."""
    sizes: dict[str, Any] = {
        "vocab_size": 8,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": 8192,
        "attn_implementation": "eager",
    }
    model: Any = Qwen3Model(Qwen3Config(**sizes)) if config.qk_norm else LlamaModel(LlamaConfig(**sizes))
    assert model.config.rope_parameters["rope_theta"] == config.rope_theta
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + 0.2 * noise if tensor.dim() == 1 else noise * (3 / tensor.shape[-1]) ** 0.5)
            assert tensor.isfinite().all(), name
    return model.eval()


def weights_of(model: Any, config: DecoderConfig, dtype: torch.dtype = torch.float32, *, scaled: bool = False) -> dict[str, Tensor]:
    """Of transformers' model. `scaled`: matrices in e4m3."""
    made: dict[str, Tensor] = {}
    matrices = matrix_names(config) if scaled else ()
    for name, tensor in model.state_dict().items():
        made |= narrow(name, tensor) if name in matrices else {name: tensor.to(dtype)}
    return made


def decoder(
    model: Any,
    config: DecoderConfig,
    *,
    pages: int = 64,
    page: int = 8,
    dtype: torch.dtype = torch.float32,
    kept: torch.dtype | None = None,
    scaled: bool = False,
    rounded: bool = False,
) -> Decoder:
    """Ours over the same weights (`scaled`: in e4m3); pages are of dtype `kept`. Small pages, so that tests cross their borders; free
    pages are NaN."""
    pool = PagePool(
        layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, pages=pages, page=page, dtype=kept or dtype, poison=True
    )
    return Decoder(weights_of(model, config, dtype, scaled=scaled), config, pool, rounded=rounded)


def table(model: Decoder, *, reserve: int = 12) -> PageTable:
    """A session's table."""
    return PageTable(model.pool, reserve)


def embeddings(count: int, *, seed: int) -> Tensor:
    """fp32 [count, HIDDEN]."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def feed(model: Decoder, tables: Sequence[PageTable], inputs: Sequence[Tensor], *, exact: bool = False) -> list[Tensor]:
    """One forward; the hidden states of each row."""
    appended = [each.append(len(rows)) for each, rows in zip(tables, inputs, strict=True)]
    batch = RaggedBatch.of(appended, exact=exact)
    hidden = model.forward(torch.cat(list(inputs)), batch)
    assert hidden.isfinite().all()
    return list(hidden[: batch.count].split([len(rows) for rows in inputs]))


@torch.no_grad()
def whole(model: Any, inputs: Tensor, *, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """transformers' hidden states of one sequence; `mask` [n, n] bool, True: may see."""
    count = len(inputs)
    allowed = torch.ones(count, count, dtype=torch.bool).tril() if mask is None else mask
    bias = torch.zeros(count, count).masked_fill(~allowed, torch.finfo(torch.float32).min)
    where = torch.arange(count) if positions is None else positions
    hidden: Tensor = model(inputs_embeds=inputs[None], position_ids=where[None], attention_mask=bias[None, None]).last_hidden_state[0]
    return hidden
