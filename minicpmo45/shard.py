"""One safetensors file: where each tensor lies in it. The header alone is read; the bytes are for whoever wants them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

from minicpmo45.errors import CheckpointError
from minicpmo45.layout import BYTES_PER_ELEMENT, Layout, Shape

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000


class StoredTensor(NamedTuple):
    """One tensor in a file: dtype in the spelling of safetensors, and the bytes [begin, end) from the start of the file."""

    name: str
    dtype: str
    shape: Shape
    begin: int
    end: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the file, by name. Raises CheckpointError for a file that is no safetensors file, or is cut short."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
                raise CheckpointError(path.name, "no safetensors file, or cut short in its header")
            header = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(path.name, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(path.name, "its safetensors header is no JSON") from None
    if not isinstance(header, dict):
        raise CheckpointError(path.name, "its safetensors header is no JSON object")
    start = LENGTH_BYTES + length
    found = {name: _entry(name, fields, start, size, path.name) for name, fields in header.items() if name != "__metadata__"}
    _check_apart(found.values(), path.name)
    return found


def _check_apart(tensors: Iterable[StoredTensor], file: str) -> None:
    """Raises CheckpointError for a tensor that begins within another."""
    for before, tensor in pairwise(sorted((each for each in tensors if each.end > each.begin), key=lambda each: each.begin)):
        if tensor.begin < before.end:
            raise CheckpointError(tensor.name, f"its bytes in {file} are those of {before.name}, too")


def _entry(name: str, fields: Any, start: int, size: int, file: str) -> StoredTensor:
    try:
        dtype, shape = str(fields["dtype"]), tuple(index(n) for n in fields["shape"])
        begin, end = (start + index(offset) for offset in fields["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(name, f"its entry in {file} is malformed") from None
    if dtype not in BYTES_PER_ELEMENT:
        raise CheckpointError(name, f"dtype {dtype} in {file}; only {', '.join(BYTES_PER_ELEMENT)} are known")
    if min(shape, default=0) < 0 or end - begin != math.prod(shape) * BYTES_PER_ELEMENT[dtype] or begin < start:
        raise CheckpointError(name, f"its bytes in {file} do not fit its shape")
    if end > size:
        raise CheckpointError(name, f"{file} is cut short: {size} bytes, this tensor ends at {end}")
    return StoredTensor(name, dtype, shape, begin, end)


def write_header(path: Path, layout: Layout) -> dict[str, StoredTensor]:
    """Makes a file of the right size whose tensors are still zero bytes (a hole); returns where each one goes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in layout.items():
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, offset + spec.nbytes]}
        offset += spec.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        file.truncate(LENGTH_BYTES + len(header) + offset)
    return read_header(path)
