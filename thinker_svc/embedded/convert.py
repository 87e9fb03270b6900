"""`python -m thinker_svc.embedded.convert SOURCE.gguf FOLDER`: a Llama-architecture GGUF becomes a CTranslate2 int8 model and a tokenizer.

Writes `ct2/`, `tokenizer.json` and `meta.json` into FOLDER. Runs once, at fetch time; needs neither torch nor transformers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from ctranslate2.converters.utils import fuse_linear
from ctranslate2.specs import common_spec, transformer_spec
from tokenizers import Tokenizer

from .convert_smooth import smooth
from .convert_weights import Gguf, Layer, UnsupportedModel, Weights
from .tokenizer import TokenizerMeta, build_tokenizer

SPECIAL = 3  # token type of control tokens in GGUF
SAMPLE = (
    ("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    ("user", "What is the capital of Italy, and what should I see there in two days?"),
    ("assistant", "The capital of Italy is Rome. Visit the Colosseum on the first day and the Vatican museums on the second."),
    ("user", "Thanks! How far is it from Naples, about 200 kilometres? And can you write me 3 lines of Python that print it?"),
    ("assistant", 'Yes, roughly 225 km by road:\n\n1. `km = 225`\n2. `for _ in range(3):`\n3. `    print(f"{km} km")`'),
    ("user", "I don't feel well today. Why is water wet, and who wrote Hamlet?"),
    ("assistant", "I'm sorry to hear that. Water feels wet because it clings to skin. William Shakespeare wrote Hamlet around 1600."),
)


def convert(source: Path, folder: Path) -> None:
    """Raises UnsupportedModel. The folder may exist."""
    model = Gguf(source)
    tokens: list[str] = model.field("tokenizer.ggml.tokens")
    meta = _meta(model, tokens)
    tokenizer = build_tokenizer(tokens, model.field("tokenizer.ggml.merges"))
    weights = model.weights()
    smooth(weights, _sample_ids(tokenizer, model))
    spec = _spec(weights)
    spec.register_vocabulary(tokens)
    spec.config.bos_token = meta.bos_token
    spec.config.eos_token = meta.eos_token
    spec.config.unk_token = tokens[model.field("tokenizer.ggml.unknown_token_id")]
    spec.config.layer_norm_epsilon = weights.shape.rms_epsilon
    spec.validate()
    spec.optimize(quantization="int8")
    out = folder / "ct2"
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta))


def _meta(model: Gguf, tokens: list[str]) -> TokenizerMeta:
    kind, pre = model.field("tokenizer.ggml.model"), model.field("tokenizer.ggml.pre")
    if (kind, pre) != ("gpt2", "smollm"):
        raise UnsupportedModel(f"tokenizer '{kind}/{pre}' is not supported; expected 'gpt2/smollm'")
    types = model.field("tokenizer.ggml.token_type")
    return TokenizerMeta(
        bos_token=tokens[model.field("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[model.field("tokenizer.ggml.eos_token_id")],
        special_tokens=tuple(token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL),
        context_tokens=model.field("llama.context_length"),
    )


def _sample_ids(tokenizer: Tokenizer, model: Gguf) -> list[int]:
    begin, end = model.field("tokenizer.ggml.bos_token_id"), model.field("tokenizer.ggml.eos_token_id")
    newline = tokenizer.encode("\n").ids
    ids: list[int] = []
    for role, text in SAMPLE:
        ids += [begin, *tokenizer.encode(f"{role}\n{text}").ids, end, *newline]
    return ids


def _spec(weights: Weights) -> Any:
    shape = weights.shape
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        shape.layers,
        shape.heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=shape.rope_base,
        num_heads_kv=shape.heads_kv,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weights.embeddings
    decoder.projection.weight = weights.embeddings
    decoder.layer_norm.gamma = weights.final_norm
    for target, layer in zip(decoder.layer, weights.layers, strict=True):
        _fill(target, layer)
    return spec


def _fill(target: Any, layer: Layer) -> None:
    joined = [common_spec.LinearSpec() for _ in range(3)]
    for linear, weight in zip(joined, (layer.query, layer.key, layer.value), strict=True):
        linear.weight = weight
    fuse_linear(target.self_attention.linear[0], joined)
    target.self_attention.layer_norm.gamma = layer.attention_norm
    target.self_attention.linear[1].weight = layer.output
    target.ffn.layer_norm.gamma = layer.feed_norm
    target.ffn.linear_0.weight = layer.gate
    target.ffn.linear_0_noact.weight = layer.up
    target.ffn.linear_1.weight = layer.down


def main(arguments: list[str]) -> int:
    """Exit code 0, 1 for a model that cannot be converted, 2 for wrong usage."""
    if len(arguments) != 2:
        print("usage: python -m thinker_svc.embedded.convert SOURCE.gguf FOLDER", file=sys.stderr)
        return 2
    try:
        convert(Path(arguments[0]), Path(arguments[1]))
    except (UnsupportedModel, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
