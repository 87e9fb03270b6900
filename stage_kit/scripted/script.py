"""The script: what is said and how it sounds, as pure functions."""

from __future__ import annotations

from typing import Any, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from stage_kit.engine import InvalidConfig

RATE = 24000
SAMPLES_PER_FRAME = 256
_PERIOD = 20011
_STEP = 13
_SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "sa", "ti", "vo", "zu", "be", "da", "fi", "go", "hu", "ja", "pe")
_SENTENCE = 6

T = TypeVar("T")


def ramp(session_id: str, start: int, count: int) -> NDArray[np.int16]:
    """Samples start to start + count of every response of a session: a ramp whose 20011 values all differ within a period."""
    index = np.arange(start, start + count, dtype=np.int64)
    return ((index * _STEP + crc32(session_id.encode())) % _PERIOD - _PERIOD // 2).astype(np.int16)


def reply(response_id: str, words: int) -> list[str]:
    """The text chunks of a response, one word each, with a sentence end every six words; joined they are the whole text."""
    chunks = []
    for index in range(words):
        code = crc32(f"{response_id}/{index}".encode())
        word = "".join(_SYLLABLES[code >> shift & 15] for shift in (0, 4, 8))
        ends = index % _SENTENCE == _SENTENCE - 1 or index == words - 1
        chunks.append(word + ("." if ends else "") + ("" if index == words - 1 else " "))
    return chunks


def convert(config: dict[str, Any], kind: type[T]) -> T:
    """A typed configuration; fields that the script does not know are ignored. Raises InvalidConfig."""
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as error:
        _, _, path = str(error).rpartition("`$.")
        raise InvalidConfig(path.rstrip("`") or "config_json", "wrong type or out of range") from None
