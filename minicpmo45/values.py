"""NaN and infinity in stored tensors: every value is read, a piece of one tensor at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minicpmo45.errors import CheckpointError
from minicpmo45.weights import Place, opened

PIECE_BYTES = 16 << 20
NOT_FINITE = "holds NaN or infinity"
_EXPONENTS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F80_0000),
}
"""The bits of a number whose exponent is all ones: NaN or infinity."""

Progress = Callable[[int], None]


def bad_shards(places: Iterable[Place], progress: Progress) -> Iterator[CheckpointError]:
    """One error for each stored tensor that holds NaN or infinity, or whose bytes cannot be read. `progress` is told bytes read."""
    in_order = sorted(places, key=lambda place: (place.file, place.tensor.begin))
    for file, stored in groupby(in_order, key=lambda place: place.file):
        try:
            with opened(file) as descriptor:
                for place in stored:
                    yield from _bad_stored(descriptor, place, progress)
        except CheckpointError as error:
            yield error


def bad_tensors(file: Path, tensors: Mapping[str, Tensor], progress: Progress) -> Iterator[CheckpointError]:
    """The same for tensors that are mapped from a file."""
    for name, tensor in tensors.items():
        flat = tensor.detach().flatten()
        step = PIECE_BYTES // flat.element_size()
        if not all(bool(torch.isfinite(flat[begin : begin + step]).all()) for begin in range(0, len(flat), step)):
            yield CheckpointError(name, f"{NOT_FINITE}, in {file.name}")
        progress(tensor.nbytes)


def _bad_stored(descriptor: int, place: Place, progress: Progress) -> Iterator[CheckpointError]:
    stored, file = place.tensor, place.file.name
    kind, exponent = _EXPONENTS[stored.dtype]
    for begin in range(stored.begin, stored.end, PIECE_BYTES):
        piece = np.empty(min(PIECE_BYTES, stored.end - begin), np.uint8)
        try:
            whole = _fill(piece, descriptor, begin)
        except OSError as error:
            yield CheckpointError(stored.name, f"cannot be read from {file}: {error.strerror or error}")
            return
        if not whole:
            yield CheckpointError(stored.name, f"{file} ended early")
            return
        values = piece.view(kind)
        progress(piece.nbytes)
        if ((values & kind(exponent)) == exponent).any():
            progress(stored.end - begin - piece.nbytes)
            yield CheckpointError(stored.name, f"{NOT_FINITE}, in {file}")
            return


def _fill(piece: NDArray[np.uint8], descriptor: int, begin: int) -> bool:
    """Reads the piece from `begin` of the file on; False when the file ends before."""
    rest = piece.data
    while rest:
        count = os.preadv(descriptor, [rest], begin)
        if not count:
            return False
        begin, rest = begin + count, rest[count:]
    return True
