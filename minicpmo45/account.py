"""The account of a checkpoint: every tensor of every file, held against what the model's sizes demand."""

from __future__ import annotations

from pathlib import Path

import msgspec
from torch import Tensor

from minicpmo45.config import Config, read_config
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import PREFIXES, Layout, compare, modern_name, prefix_of, safetensors_layout
from minicpmo45.token2wav import FLOW_FILE, HIFT_FILES, default_voice, read_flow, read_hift, speaker_model, speech_tokenizer
from minicpmo45.tokens import bad_token_ids, read_json, resolve
from minicpmo45.weights import INDEX_FILE, Place, find_tensors

SAFETENSORS = "all shards"


class Part(msgspec.Struct, frozen=True):
    """All tensors of one prefix, of all shards together (`SAFETENSORS`), or of one file. `nbytes` as stored."""

    name: str
    tensors: int
    parameters: int
    nbytes: int
    files: int


class Account(msgspec.Struct, frozen=True):
    """What `check` found: every expected tensor in its shape, and no other. `str` of it is a table for people."""

    config: Config
    parts: tuple[Part, ...]
    bad_tokens: int
    files: tuple[str, ...]
    """The other files that services need: networks in ONNX, the default voice."""

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("part", "tensors", "parameters", "bytes", "files")]
        rows += [_row(part) for part in self.parts]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = [
            row[0].ljust(widths[0]) + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ]
        generation = "causal (newer)" if self.config.hift.causal else "first"
        notes = (
            f"generator: {generation} generation",
            f"tokens never spoken: {self.bad_tokens:,}",
            *(f"present: {name}" for name in self.files),
        )
        return "\n".join((*table, *notes))


def check(path: Path, config: Config | None = None) -> Account:
    """Reads every header and index of the checkpoint folder, no weights: a second for the released one.

    Raises CheckpointError that names the file, field, token or tensor which is missing, surplus, misshapen or not where the index says.
    `config`: the sizes to hold it against; by default those that it states itself.
    """
    sizes = config or read_config(path)
    parts = [*_shards(path, sizes), *_assets(path, sizes)]
    resolve(path, sizes.llm.vocab_size)
    bad = bad_token_ids(path, sizes.llm.vocab_size)
    present = tuple(str(found.relative_to(path)) for found in (speaker_model(path), speech_tokenizer(path), default_voice(path)))
    return Account(sizes, tuple(parts), len(bad), present)


def _shards(path: Path, config: Config) -> list[Part]:
    """One part a prefix, then the sum of them."""
    expected = safetensors_layout(config)
    places = {modern_name(name): place for name, place in find_tensors(path, ("",)).items()}
    compare(expected, {name: place.tensor.shape for name, place in places.items()}, "the safetensors shards")
    parts = [_part(prefix, {name: place for name, place in places.items() if prefix_of(name) == prefix}, expected) for prefix in PREFIXES]
    whole = _part(SAFETENSORS, places, expected)
    _check_total(path, whole.nbytes)
    return [*parts, whole]


def _part(name: str, places: dict[str, Place], expected: Layout) -> Part:
    return Part(
        name,
        len(places),
        sum(expected[tensor].parameters for tensor in places),
        sum(place.tensor.end - place.tensor.begin for place in places.values()),
        len({place.file for place in places.values()}),
    )


def _check_total(path: Path, found: int) -> None:
    if (path / INDEX_FILE).is_file():
        metadata = read_json(path / INDEX_FILE).get("metadata", {})
        if not isinstance(metadata, dict):
            raise CheckpointError(INDEX_FILE, "its metadata is no JSON object")
        stated = metadata.get("total_size", found)
        if stated != found:
            raise CheckpointError(INDEX_FILE, f"total_size says {stated} bytes, the shards hold {found}")


def _assets(path: Path, config: Config) -> list[Part]:
    return [_file(FLOW_FILE, read_flow(path, config.flow)), _file(HIFT_FILES[0], read_hift(path, config.hift))]


def _file(name: str, tensors: dict[str, Tensor]) -> Part:
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return Part(name, len(tensors), parameters, sum(tensor.nbytes for tensor in tensors.values()), 1)


def _row(part: Part) -> tuple[str, ...]:
    return (part.name, f"{part.tensors:,}", f"{part.parameters:,}", f"{part.nbytes:,}", f"{part.files}")
