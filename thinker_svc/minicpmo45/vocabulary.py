"""Words to token ids and back: bytes of every token, so that text leaves character by character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minicpmo45.errors import CheckpointError
from minicpmo45.tokens import UNKNOWN_TOKEN, Tokens, bad_token_ids, read_json, resolve

Ids = list[int]
CONTINUING = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character."""


class Vocabulary:
    """The tokenizer of a checkpoint. Text that users write never becomes a control token, and no control token becomes text."""

    def __init__(self, tokenizer: Tokenizer, tokens: Tokens, pieces: list[bytes | None], forbidden: Iterable[int]) -> None:
        self.tokens = tokens
        self.size = len(pieces)
        self._tokenizer = tokenizer
        self._pieces = pieces
        self.forbidden: NDArray[np.bool_] = np.zeros(self.size, bool)
        """[size] ids that are never spoken: the released list, the end of a chunk (which only the first draw may choose), filler."""
        self.forbidden[[*forbidden, tokens.chunk_eos, tokens.tts_pad]] = True
        self.characters: NDArray[np.int64] = np.array([_begun(piece) for piece in pieces], np.int64)
        """[size] characters that begin in each token; 0 for control tokens. Of whole UTF-8 text these add up to its length."""

    @classmethod
    def read(cls, path: Path, vocab_size: int) -> Vocabulary:
        """Reads `tokenizer.json` and `tokenizer_config.json` of the folder `path`. Raises CheckpointError."""
        tokens, forbidden = resolve(path, vocab_size), bad_token_ids(path, vocab_size)
        content = read_json(path / "tokenizer.json")
        pieces = _pieces(content, vocab_size)
        try:
            # without its added tokens it knows no control token, whatever a prompt says
            tokenizer = Tokenizer.from_buffer(msgspec.json.encode({**content, "added_tokens": []}))
        except Exception as error:
            raise CheckpointError("tokenizer.json", f"the tokenizer library cannot read it ({type(error).__name__})") from None
        return cls(tokenizer, tokens, pieces, forbidden)

    def encode(self, text: str) -> Ids:
        """Ids of ordinary tokens only."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def is_text(self, token: int) -> bool:
        """False for control tokens and ids without a text."""
        return self._pieces[token] is not None

    def piece(self, token: int) -> bytes:
        """The UTF-8 bytes of a token, which may begin or end within a character; none for a control token."""
        return self._pieces[token] or b""

    def decode(self, ids: Iterable[int]) -> str:
        """The whole text of a list of ids; what is no UTF-8 becomes U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")


class TextStream:
    """The text of one model turn as its tokens come. A character leaves when it is whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False
        """The last token ended within a character."""

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        piece = self._vocabulary.piece(token)
        if not self._begun and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._begun = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The turn is over: U+FFFD for a character that stayed incomplete. The next token begins anew."""
        rest = self._decoder.decode(b"", final=True)
        self.reset()
        return rest

    def reset(self) -> None:
        """Drops an incomplete character."""
        self._begun = False
        self._decoder.reset()


@cache
def _bytes_of_letters() -> dict[int, int]:
    """Printable letter to byte, as byte-level vocabularies spell them: bytes without a letter follow from U+0100 on, in their order.

    For str.translate: what is no such letter becomes none that Latin-1 has.
    """
    kept = [byte for byte in range(256) if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE]
    moved = [byte for byte in range(256) if byte not in kept]
    return dict.fromkeys(moved, 0xFFFD) | {byte: byte for byte in kept} | {0x100 + index: byte for index, byte in enumerate(moved)}


def _pieces(content: dict[str, Any], vocab_size: int) -> list[bytes | None]:
    """Bytes of every id; None for added tokens and ids without a token. Raises CheckpointError."""
    letters = _bytes_of_letters()
    pieces: list[bytes | None] = [None] * vocab_size
    try:
        control = {int(token["id"]) for token in content["added_tokens"]}
        vocab: dict[str, int] = content["model"]["vocab"]
        for text, index in vocab.items():
            if index not in control and text != UNKNOWN_TOKEN:
                pieces[index] = text.translate(letters).encode("latin-1")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError("tokenizer.json", f"its vocabulary is not byte-level or too large ({type(error).__name__})") from None
    return pieces


def _begun(piece: bytes | None) -> int:
    return len((piece or b"").translate(None, CONTINUING))
