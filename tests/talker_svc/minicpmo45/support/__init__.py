"""A tiny talker of seeded weights, and a conversation for it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from minicpmo45.config import TalkerConfig
from minicpmo45.token2wav import fold_weight_norm
from talker_svc.minicpmo45.inputs import CODE, Input, Tokens
from talker_svc.minicpmo45.model import TalkerModel
from talker_svc.minicpmo45.sampler import CodeSampler, UnitRule
from torch_kit.pages import PagePool

torch.set_num_threads(1)

CONFIG = TalkerConfig(
    llm_dim=48, hidden_size=32, layers=2, heads=2, kv_heads=2, intermediate_size=64, text_tokens=512, audio_bos=500, text_eos=501
)
GAIN, END_GAIN = 2.0, 6.0
"""Norms of the head's rows; the end code's is larger, so that it is drawn now and then."""


def raw_weights(config: TalkerConfig = CONFIG, seed: int = 0) -> dict[str, Tensor]:
    """fp32, named and shaped as in a checkpoint, weight norm not folded, without what is never read."""
    width, inner, head = config.hidden_size, config.intermediate_size, "tts.head_code.0.parametrizations.weight.original"
    shapes: dict[str, tuple[int, ...]] = {
        "tts.emb_text.weight": (config.text_tokens, width),
        "tts.emb_code.0.weight": (config.codes, width),
        f"{head}1": (config.codes, width),
        "tts.projector_semantic.linear1.weight": (width, config.llm_dim),
        "tts.projector_semantic.linear1.bias": (width,),
        "tts.projector_semantic.linear2.weight": (width, width),
        "tts.projector_semantic.linear2.bias": (width,),
        "tts.model.norm.weight": (width,),
    }
    for layer in range(config.layers):
        prefix = f"tts.model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (width, inner)
        shapes |= {f"{prefix}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    weights = {name: _tensor(name, shape, seed) for name, shape in shapes.items()}
    weights[f"{head}0"] = torch.full((config.codes, 1), GAIN)
    weights[f"{head}0"][config.end_code] = END_GAIN
    return weights


def folded_weights(config: TalkerConfig = CONFIG, seed: int = 0) -> dict[str, Tensor]:
    """As the loader gives them."""
    return fold_weight_norm(raw_weights(config, seed))


def model(pages: int = 40, *, seed: int = 0, page: int = 16) -> TalkerModel:
    """A talker whose free pages are NaN."""
    pool = PagePool(layers=CONFIG.layers, kv_heads=CONFIG.kv_heads, head_dim=CONFIG.head_dim, pages=pages, page=page, poison=True)
    return TalkerModel(folded_weights(seed=seed), CONFIG, pool)


def thought(count: int, seed: int) -> tuple[list[int], Tensor]:
    """Token ids below 500 and fp32 hidden states [count, llm_dim]."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, 500, (count,), generator=generator).tolist()
    return ids, torch.randn(count, CONFIG.llm_dim, generator=generator)


def embed(talker: TalkerModel, inputs: Sequence[Input], codes: Tensor) -> Tensor:
    """[tokens, hidden_size]; `codes` int64: those of the inputs that feed one, in order."""
    tokens = Tokens.of(inputs)
    ids = torch.from_numpy(tokens.ids)
    fed = torch.zeros(len(ids), dtype=torch.int64)
    fed[ids == CODE] = codes
    hidden = torch.cat(tokens.hidden) if tokens.lines else torch.full((1, talker.config.llm_dim), torch.nan)
    return talker.embed(ids, hidden, torch.from_numpy(tokens.hidden_at), fed)


def begin(sampler: CodeSampler, rows: list[int], rules: list[UnitRule]) -> None:
    sampler.begin(torch.tensor(rows), torch.tensor([rule.fields for rule in rules]))


def _tensor(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed))
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    return noise * 1.5 * shape[-1] ** -0.5 if len(shape) == 2 else noise * 0.1
