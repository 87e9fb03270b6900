"""The conversion of a GGUF, against a forward pass in numpy that shares nothing with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests.thinker_svc.support.llama_oracle import LlamaOracle
from thinker_svc.embedded.convert import convert
from thinker_svc.embedded.tokenizer import TextTokenizer

LAYERS, WIDTH, HEADS, HEADS_KV, FEED = 3, 128, 8, 4, 256
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]


def vocabulary() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in printable] + [chr(0x100 + at) for at in range(256 - len(printable))]
    return SPECIALS + letters + [merge.replace(" ", "") for merge in MERGES]


def write_gguf(path: Path, architecture: str = "llama", pre: str = "smollm") -> Path:
    """A small Llama with grouped heads, quantised weights, and outliers in its norms like the real one."""
    rng = np.random.default_rng(7)
    writer, tokens = GGUFWriter(str(path), architecture), vocabulary()
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS_KV)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def matrix(name: str, out: int, width: int, gain: float) -> None:
        values = rng.normal(0, gain / np.sqrt(width), (out, width)).astype(np.float32)
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        gamma = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        gamma[rng.integers(WIDTH)] = 6.0
        writer.add_tensor(name, gamma)

    matrix("token_embd.weight", len(tokens), WIDTH, 1.0)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight")
        norm(prefix + "ffn_norm.weight")
        matrix(prefix + "attn_q.weight", WIDTH, WIDTH, 1.0)
        matrix(prefix + "attn_k.weight", WIDTH * HEADS_KV // HEADS, WIDTH, 1.0)
        matrix(prefix + "attn_v.weight", WIDTH * HEADS_KV // HEADS, WIDTH, 0.7)
        matrix(prefix + "attn_output.weight", WIDTH, WIDTH, 0.7)
        matrix(prefix + "ffn_gate.weight", FEED, WIDTH, 0.7)
        matrix(prefix + "ffn_up.weight", FEED, WIDTH, 0.7)
        matrix(prefix + "ffn_down.weight", WIDTH, FEED, 0.7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("model")
    source = write_gguf(folder / "small.gguf")
    convert(source, folder)
    return source, folder


@pytest.mark.parametrize(("compute_type", "correlation"), [("float32", 0.997), ("int8", 0.995)])
def test_the_logits_are_the_oracles(converted: tuple[Path, Path], compute_type: str, correlation: float) -> None:
    source, folder = converted
    oracle = LlamaOracle(source)
    ids = [1, *np.random.default_rng(3).integers(3, len(oracle.tokens), 30).tolist(), 2]
    expected = oracle.logits(ids)
    generator = ctranslate2.Generator(str(folder / "ct2"), compute_type=compute_type)
    logits = np.asarray(generator.forward_batch([[oracle.tokens[index] for index in ids]]))[0]
    assert logits.shape == expected.shape
    # the last rows depend on every position; with the rotation in pairs instead of halves they correlate by 0.58
    assert np.corrcoef(logits[-8:].ravel(), expected[-8:].ravel())[0, 1] > correlation


def test_the_tokenizer_comes_from_the_files_tables(converted: tuple[Path, Path]) -> None:
    tokenizer = TextTokenizer(converted[1])
    assert tokenizer.tokens("hello world") == ["hello", "Ġw", "o", "r", "l", "d"]
    assert tokenizer.meta.special_tokens == tuple(SPECIALS)
    assert tokenizer.meta.context_tokens == 512


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"architecture": "gemma"}, "architecture 'gemma' is not supported"), ({"pre": "qwen2"}, "tokenizer 'gpt2/qwen2' is not supported")],
)
def test_another_model_is_refused_in_one_line(tmp_path: Path, fields: dict[str, str], words: str) -> None:
    source = write_gguf(tmp_path / "other.gguf", **fields)
    command = [sys.executable, "-m", "thinker_svc.embedded.convert", str(source), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1
