"""The account of a checkpoint: every tensor of every file, held against what the model's sizes demand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from minicpmo45.config import Config, FlowConfig, HiftConfig
from minicpmo45.config_json import from_json
from minicpmo45.errors import CheckpointError
from minicpmo45.findings import Findings
from minicpmo45.flow_yaml import read_flow_config, sizes_file
from minicpmo45.layout import (
    DIRECTION,
    GAIN,
    PREFIXES,
    Layout,
    differences,
    flow_layout,
    hift_layout,
    modern_name,
    prefix_of,
    safetensors_layout,
)
from minicpmo45.meter import Meter
from minicpmo45.networks import try_speaker_model, try_speech_tokenizer
from minicpmo45.recordings import LONGEST_S, check_recording
from minicpmo45.token2wav import (
    ASSETS,
    FLOW_FILE,
    HIFT_FILES,
    default_voice,
    fold_weight_norm,
    hift_config,
    shapes,
    speaker_model,
    speech_tokenizer,
    stored_hift,
    stored_tensors,
    voice_files,
)
from minicpmo45.tokens import bad_token_ids, read_json, resolve
from minicpmo45.values import bad_shards, bad_tensors
from minicpmo45.weights import INDEX_FILE, Place, Weights, survey

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


class Examined(msgspec.Struct, frozen=True):
    """The account of a checkpoint in which nothing is wrong; else all that is, and no account."""

    account: Account | None
    faults: tuple[CheckpointError, ...]


def check(path: Path, config: Config | None = None) -> Account:
    """Reads every header and index of the checkpoint folder, no weights: a second for the released one.

    Raises CheckpointError that names the file, field, token or tensor which is missing, surplus, misshapen or not where the index says.
    `config`: the sizes to hold it against; by default those that it states itself.
    """
    examined = examine(path, config, values=False)
    for fault in examined.faults:
        raise fault
    assert examined.account is not None
    return examined.account


def examine(path: Path, config: Config | None = None, *, values: bool = True) -> Examined:
    """The same, with everything that is wrong and not the first of it alone.

    `values`: also reads every tensor for NaN and infinity, a piece at a time, and tries the networks in ONNX: minutes for the released one.
    """
    return _Examination(path, config, values).run()


class _Examination:
    """What was found so far. Sizes that cannot be read are None, and nothing is held against them."""

    def __init__(self, path: Path, config: Config | None, values: bool) -> None:
        self._path, self._given, self._values = path, config, values
        self._found = Findings()
        self._parts: list[Part] = []
        self._places: dict[str, Place] = {}
        self._tensors: dict[str, dict[str, Tensor]] = {}

    def run(self) -> Examined:
        """All steps, each as far as the ones before it left something to look at."""
        path, found, given = self._path, self._found, self._given
        model, flow, hift = given, given.flow if given else None, given.hift if given else None
        if given is None:
            with found.noting():
                model = from_json(read_json(path / "config.json"))
            with found.noting():
                flow = read_flow_config(sizes_file(path / ASSETS))
            with found.noting():
                hift = hift_config(path)
        self._shards(model)
        self._flow(flow)
        self._hift(hift)
        vocabulary = (model or Config()).llm.vocab_size
        with found.noting():
            resolve(path, vocabulary)
        bad: tuple[int, ...] = ()
        with found.noting():
            bad = bad_token_ids(path, vocabulary)
        present = self._others((flow or Config().flow).speaker_dim)
        if self._values:
            self._read_values()
        if found.all or model is None or flow is None or hift is None:
            return Examined(None, found.all)
        sizes = msgspec.structs.replace(model, flow=flow, hift=hift)
        return Examined(Account(sizes, tuple(self._parts), len(bad), present), ())

    def _shards(self, model: Config | None) -> None:
        """One part a prefix, then the sum of them."""
        with self._found.noting():
            seen = survey(self._path, ("",))
            self._found.note(seen.faults)
            self._places = places = {modern_name(name): place for name, place in seen.places.items()}
            if model is None:
                return
            expected = safetensors_layout(model)
            unreadable = {modern_name(name) for name in seen.unreadable}
            readable = {name: spec for name, spec in expected.items() if name not in unreadable}
            shapes_found = {name: place.tensor.shape for name, place in places.items()}
            self._found.note(differences(readable, shapes_found, "the safetensors shards"))
            kept = {name: place for name, place in places.items() if name in expected}
            for prefix in PREFIXES:
                self._parts.append(_part(prefix, {name: place for name, place in kept.items() if prefix_of(name) == prefix}, expected))
            whole = _part(SAFETENSORS, kept, expected)
            self._parts.append(whole)
            if not seen.unreadable:
                _check_total(self._path, whole.nbytes)

    def _flow(self, sizes: FlowConfig | None) -> None:
        with self._found.noting():
            tensors = self._tensors[FLOW_FILE] = stored_tensors(self._path, FLOW_FILE)
            self._parts.append(_file(FLOW_FILE, tensors))
            if sizes is not None:
                self._found.note(differences(flow_layout(sizes), shapes(tensors), FLOW_FILE))

    def _hift(self, sizes: HiftConfig | None) -> None:
        """The generation that is used; of the other one, if it is there, the values alone."""
        for name in HIFT_FILES:
            if name == HIFT_FILES[0] or (self._path / ASSETS / name).is_file():
                with self._found.noting():
                    self._tensors[name] = stored_tensors(self._path, name)
        if sizes is not None:
            with self._found.noting():
                name, tensors = stored_hift(self._path, sizes.causal)
                self._parts.append(_file(HIFT_FILES[0], tensors))
                self._found.note(differences(hift_layout(sizes), shapes(tensors), name))

    def _others(self, speaker_dim: int) -> tuple[str, ...]:
        """The networks in ONNX and the voices."""
        path, found, present = self._path, self._found, []
        with found.noting():
            present.append(file := speaker_model(path))
            if self._values:
                try_speaker_model(file, speaker_dim)
        with found.noting():
            present.append(file := speech_tokenizer(path))
            if self._values:
                try_speech_tokenizer(file)
        with found.noting():
            present.append(voice := default_voice(path))
            check_recording(voice, LONGEST_S)
        for file in voice_files(path):
            with found.noting():
                check_recording(file)
        return tuple(str(each.relative_to(path)) for each in present)

    def _read_values(self) -> None:
        stored = [tensor for tensors in self._tensors.values() for tensor in tensors.values()]
        meter = Meter(sum(place.tensor.end - place.tensor.begin for place in self._places.values()) + sum(each.nbytes for each in stored))
        self._found.note(bad_shards(self._places.values(), meter))
        for name, tensors in self._tensors.items():
            self._found.note(bad_tensors(self._path / ASSETS / name, tensors, meter))
        if not self._found.all:
            self._fold()

    def _fold(self) -> None:
        """Weight norm, as services fold it: a row of length 0 has no direction."""
        normed = {name: place for name, place in self._places.items() if name.endswith((DIRECTION, GAIN))}
        stored = [Weights(normed).load(dtype=torch.float32)] if normed else []
        for tensors in (*stored, *(each for name, each in self._tensors.items() if name in HIFT_FILES)):
            with self._found.noting():
                fold_weight_norm(tensors)


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


def _file(name: str, tensors: dict[str, Tensor]) -> Part:
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return Part(name, len(tensors), parameters, sum(tensor.nbytes for tensor in tensors.values()), 1)


def _row(part: Part) -> tuple[str, ...]:
    return (part.name, f"{part.tensors:,}", f"{part.parameters:,}", f"{part.nbytes:,}", f"{part.files}")
