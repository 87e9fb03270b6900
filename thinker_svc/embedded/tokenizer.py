"""The language model's tokenizer: text to tokens that can never be special ones, and tokens back to whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE


class TokenizerMeta(msgspec.Struct, frozen=True):
    """What the tokenizer file cannot say (`meta.json`)."""

    bos_token: str
    eos_token: str
    special_tokens: tuple[str, ...]
    context_tokens: int  # most tokens of prompt and answer that the model was made for


def build_tokenizer(tokens: Sequence[str], merges: Sequence[str]) -> Tokenizer:
    """From a GGUF's own tables: byte-level BPE where each digit stands alone.

    Special tokens are left out of the added tokens on purpose: no merge leads to them, so no text is ever encoded as one.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class TextTokenizer:
    """Encodes plain text. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=TokenizerMeta)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def tokens(self, text: str) -> list[str]:
        """Never a special token, whatever the text says."""
        encoded: list[str] = self._tokenizer.encode(text, add_special_tokens=False).tokens
        return encoded

    def special(self, token: str) -> str:
        """The token itself; raises KeyError for one that the model does not know as special."""
        if token not in self.meta.special_tokens:
            raise KeyError(token)
        return token


class Detokenizer:
    """Tokens to text as they come; a character whose bytes are not all there yet is held back."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: str) -> str:
        """Text that is complete now; may be empty."""
        return self._decoder.decode(bytes(_BYTE_OF[char] for char in token))


def _byte_table() -> dict[str, int]:
    # byte-level BPE writes printable Latin-1 bytes as themselves and the others, in order, from U+0100 on
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_table()
