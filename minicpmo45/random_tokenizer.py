"""A tokenizer with the released structure and ids, and made-up words between them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters, ascii_lowercase
from typing import Any

from minicpmo45.tokens import ADDED_TOKENS, BASE_VOCAB, UNKNOWN_ID, UNKNOWN_TOKEN

BAD_TOKENS = 6965
"""How many ids the released list of tokens that are never spoken holds."""
WORDS = {"system": 8948, "user": 872, "assistant": 77_091}
"""Words that stay one token, at their released ids."""
SPLIT_CHARACTERS = 432
"""Tokens that hold the first two bytes of a character of three."""
PLAIN_ADDED = (*(f"<|fim_{part}|>" for part in ("prefix", "middle", "suffix", "pad")), "<|repo_name|>", "<|file_sep|>")
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen cuts text before the merges."""


def write_tokenizer(folder: Path, seed: int) -> None:
    """Writes tokenizer.json, vocab.json, merges.txt, added_tokens.json, special_tokens_map.json and tokenizer_config.json into `folder`.

    Ids 0 to 255 are the bytes in the order of GPT-2; every id up to 151,642 has a text; added tokens and `<unk>` have their released ids.
    Some ordinary tokens end within a character, as in the released vocabulary, so that detokenising has something to get wrong.
    """
    vocab, merges = _vocabulary()
    _dump(folder / "vocab.json", vocab)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges), encoding="utf-8")
    _dump(folder / "added_tokens.json", dict(sorted(ADDED_TOKENS.items())))
    _dump(folder / "tokenizer.json", _tokenizer(vocab, merges))
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": UNKNOWN_TOKEN}
    additional = [UNKNOWN_TOKEN, *(name for name, index in ADDED_TOKENS.items() if index >= ADDED_TOKENS["<image>"])]
    _dump(folder / "special_tokens_map.json", {**special, "additional_special_tokens": additional})
    config = {
        **special,
        "added_tokens_decoder": {str(index): _flags(name) for name, index in _added()},
        "additional_special_tokens": additional,
        "add_prefix_space": False,
        "errors": "replace",
        "model_max_length": 131_072,
        "tokenizer_class": "MiniCPMOTokenizerFast",
        "auto_map": {"AutoTokenizer": ["tokenization_minicpmo_fast.MiniCPMOTokenizerFast", None]},
        "bad_token_ids": _bad_tokens(seed),
    }
    _dump(folder / "tokenizer_config.json", config)


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary, by byte value."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Text (in byte letters) to id for all ordinary tokens, and the merges that make `WORDS` out of bytes."""
    letters = byte_letters()
    kept = [letter for byte, letter in enumerate(letters) if chr(byte) == letter]
    texts: dict[int, str] = dict(enumerate([*kept, *(letter for byte, letter in enumerate(letters) if chr(byte) != letter)]))
    texts[UNKNOWN_ID] = UNKNOWN_TOKEN
    texts |= {index: word for word, index in WORDS.items()}
    merges = [(word[:end], word[end]) for word in WORDS for end in range(1, len(word))]
    stems = dict.fromkeys(left + right for left, right in merges if left + right not in WORDS)
    taken = {*texts.values(), *stems}
    fill = itertools.chain(stems, (text for text in _fillers(letters) if text not in taken))
    for index in range(BASE_VOCAB):
        if index not in texts:
            texts[index] = next(fill)
    return {texts[index]: index for index in range(BASE_VOCAB)}, merges


def _fillers(letters: list[str]) -> Iterator[str]:
    """Distinct made-up tokens: short words with and without a space before, Chinese characters, and the beginnings of some."""
    space = letters[ord(" ")]
    for code in range(SPLIT_CHARACTERS):
        yield "".join(letters[byte] for byte in chr(0x3400 + 64 * code).encode()[:2])
    for code in range(0x4E00, 0x9FA6, 4):
        yield "".join(letters[byte] for byte in chr(code).encode())
    for first, second in itertools.product(ascii_letters, ascii_letters):
        yield space + first + second
    for alphabet, length in ((ascii_letters, 3), (ascii_lowercase, 4)):
        yield from map("".join, itertools.product(alphabet, repeat=length))


def _added() -> list[tuple[str, int]]:
    return [(UNKNOWN_TOKEN, UNKNOWN_ID), *ADDED_TOKENS.items()]


def _flags(name: str) -> dict[str, Any]:
    plain = name in PLAIN_ADDED or "tool_" in name or "think>" in name
    return {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": not plain}


def _tokenizer(vocab: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, **_flags(name)} for name, index in _added()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _bad_tokens(seed: int) -> list[int]:
    """As many ids as the released list has: brackets, the upper bytes and line breaks, as there, and a draw of the made-up words."""
    fixed = {7, 8, *range(94, 188), 198, 201, *range(222, 256)}
    others = [index for index in range(256, BASE_VOCAB) if index not in WORDS.values() and index != UNKNOWN_ID]
    return sorted(fixed | set(random.Random(seed).sample(others, BAD_TOKENS - len(fixed))))


def _dump(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
