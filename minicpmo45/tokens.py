"""Token ids of the model: the names that the duplex template speaks in, looked up in the tokenizer's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from minicpmo45.errors import CheckpointError

BASE_VOCAB = 151_643
"""Ordinary tokens; the added ones follow."""

ADDED_TOKENS: dict[str, int] = {
    name: BASE_VOCAB + index
    for index, name in enumerate(
        (
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
            *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
            *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"),
            *("<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
            *(
                tag
                for name in (
                    *("image", "ref", "box", "quad", "point", "slice", "image_id", "unit", "answer", "focus", "line", "perception"),
                    *("source_image", "image_save_to"),
                )
                for tag in (f"<{name}>", f"</{name}>")
            ),
            *("<|audio_start|>", "<|audio|>", "<|audio_end|>", "<|spk_bos|>", "<|spk|>", "<|spk_eos|>", "<|tts_bos|>", "<|tts_eos|>"),
            *("<|listen|>", "<|speak|>", "<|interrupt|>", "<|vad_start|>", "<|vad_end|>", "<|emotion_start|>", "<|emotion_end|>"),
            *("<|speed_start|>", "<|speed_end|>", "<|pitch_start|>", "<|pitch_end|>", "<|turn_bos|>", "<|turn_eos|>", "<|chunk_eos|>"),
            *("<|chunk_bos|>", "<|chunk_tts_bos|>", "<|chunk_tts_eos|>", "<|tts_pad|>"),
            *(f"<|timbre_{n}|>" for n in range(7, 32)),
        )
    )
}
"""The 105 tokens behind the ordinary ones, at their released ids."""

UNKNOWN_TOKEN, UNKNOWN_ID = "<unk>", 128_244
"""A special token that lies among the ordinary ids."""


class Tokens(msgspec.Struct, frozen=True):
    """Ids of every token that the duplex conversation, the talker or the sampler names."""

    end_of_text: int
    im_start: int
    im_end: int
    image: int
    image_end: int
    slice: int
    slice_end: int
    unit: int
    unit_end: int
    audio_start: int
    audio: int
    audio_end: int
    tts_bos: int
    tts_eos: int
    listen: int
    speak: int
    interrupt: int
    turn_bos: int
    turn_eos: int
    chunk_eos: int
    chunk_bos: int
    chunk_tts_bos: int
    chunk_tts_eos: int
    tts_pad: int
    think: int
    think_end: int

    @property
    def unit_terminators(self) -> frozenset[int]:
        """Tokens that end the writing of a unit."""
        return frozenset((self.listen, self.chunk_eos, self.chunk_tts_eos))


NAMES: dict[str, str] = {
    "end_of_text": "<|endoftext|>",
    "image_end": "</image>",
    "slice_end": "</slice>",
    "unit_end": "</unit>",
    "think_end": "</think>",
    **{field: f"<{field}>" for field in ("image", "slice", "unit", "think")},
    **{field: f"<|{field}|>" for field in ("im_start", "im_end", "audio_start", "audio", "audio_end", "tts_bos", "tts_eos", "tts_pad")},
    **{field: f"<|{field}|>" for field in ("listen", "speak", "interrupt", "turn_bos", "turn_eos", "chunk_eos", "chunk_bos")},
    **{field: f"<|{field}|>" for field in ("chunk_tts_bos", "chunk_tts_eos")},
}
"""Field of `Tokens` to the text of its token."""


def resolve(path: Path, vocab_size: int) -> Tokens:
    """Looks every field of `Tokens` up in `tokenizer.json` of the folder `path`.

    Raises CheckpointError that names a token which is missing, shares its id, or whose id has no row in the embedding of `vocab_size` rows.
    """
    content = read_json(path / "tokenizer.json")
    try:
        ids = {str(token["content"]): int(token["id"]) for token in content["added_tokens"]}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CheckpointError("tokenizer.json", "its added_tokens are malformed") from None
    owners: dict[int, str] = {}
    for text in NAMES.values():
        if text not in ids:
            raise CheckpointError(text, "no such token in tokenizer.json")
        if not 0 <= ids[text] < vocab_size:
            raise CheckpointError(text, f"its id {ids[text]} is not below the vocabulary's size {vocab_size}")
        if owners.setdefault(ids[text], text) != text:
            raise CheckpointError(text, f"its id {ids[text]} is that of {owners[ids[text]]}, too")
    return Tokens(**{field: ids[text] for field, text in NAMES.items()})


def bad_token_ids(path: Path, vocab_size: int) -> tuple[int, ...]:
    """Ids that may never be spoken: `bad_token_ids` of `tokenizer_config.json`, which no plain tokenizer library reads. Sorted, each once.

    Raises CheckpointError when the list is missing or holds anything but ids below `vocab_size`.
    """
    found = read_json(path / "tokenizer_config.json").get("bad_token_ids")
    if not isinstance(found, list):
        raise CheckpointError("bad_token_ids", "missing from tokenizer_config.json")
    for item in found:
        if type(item) is not int or not 0 <= item < vocab_size:
            raise CheckpointError("bad_token_ids", f"{item!r} is no id below the vocabulary's size {vocab_size}")
    return tuple(sorted(set(found)))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError that names the file when it is missing, unreadable or something else."""
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise CheckpointError(file.name, "missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise CheckpointError(file.name, "no JSON") from None
    if not isinstance(content, dict):
        raise CheckpointError(file.name, "no JSON object")
    return content
