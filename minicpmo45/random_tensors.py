"""Random values for any tensor of the model: made in blocks of their own seeds, so that neither order nor threads matter."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minicpmo45.layout import DIRECTION, GAIN, Layout, Shape, TensorSpec
from minicpmo45.shard import write_header

BLOCK = 1 << 22
"""Elements made at once: 16 MiB in fp32."""
TORCH_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


class Spread(NamedTuple):
    """Values are `mean + std * normal`."""

    mean: float
    std: float


def spread(name: str, shape: Shape) -> Spread:
    """How the values of one tensor spread, so that activations stay near 1 at any width and every tensor matters.

    Matrices and tables: 1 / sqrt(inputs). Norms: round 1. Gains of weight norm: rows of length 1, less within residual blocks.
    The F0 head is scaled to speak in hertz, partly voiced; adaLN is half as strong as a plain matrix, never the zero of an untrained one.
    """
    leaf = name.rpartition(".")[2]
    inputs = max(1, math.prod(shape[1:]))
    if name.startswith("f0_predictor.classifier"):
        return Spread(0.0, 150.0 / math.sqrt(inputs)) if leaf == "weight" else Spread(80.0, 1.0)
    if name.endswith(GAIN):
        return Spread(0.4, 0.04) if "resblocks." in name else Spread(1.0, 0.1)
    if name.endswith(DIRECTION):
        return Spread(0.0, 0.3)
    if leaf == "alpha":
        return Spread(1.0, 0.1)
    if leaf == "weight" and len(shape) == 1:
        return Spread(1.0, 0.05)
    if leaf.endswith("bias"):
        return Spread(0.0, 0.02)
    if "adaLN_modulation" in name:
        return Spread(0.0, 0.5 / math.sqrt(inputs))
    return Spread(0.0, 1.0 / math.sqrt(inputs))


def tensor(name: str, spec: TensorSpec, seed: int) -> Tensor:
    """The whole tensor `name`, in its stored dtype, on the CPU."""
    flat = torch.cat([block for _, block in _blocks(name, spec, seed)])
    return flat.reshape(spec.shape)


def write_shard(path: Path, layout: Layout, seed: int, workers: int | None = None, made: Callable[[int], None] | None = None) -> None:
    """Writes a safetensors file of random tensors, block by block: memory stays at a few blocks a worker.

    `made` is told the bytes of each finished block, from the worker threads.
    """
    places = write_header(path, layout)
    file = os.open(path, os.O_WRONLY)

    def make(job: tuple[str, int]) -> None:
        name, index = job
        data = _block(name, layout[name], seed, index).view(torch.uint8).numpy().data
        begin = places[name].begin + index * BLOCK * (layout[name].nbytes // max(1, layout[name].parameters))
        while data:
            written = os.pwrite(file, data, begin)
            begin, data = begin + written, data[written:]
            if made is not None:
                made(written)

    try:
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            for _ in pool.map(make, [(name, index) for name, spec in layout.items() for index in range(_count(spec))]):
                pass
    finally:
        os.close(file)


def _count(spec: TensorSpec) -> int:
    return -(-spec.parameters // BLOCK)


def _blocks(name: str, spec: TensorSpec, seed: int) -> Iterator[tuple[int, Tensor]]:
    for index in range(_count(spec)):
        yield index, _block(name, spec, seed, index)


def _block(name: str, spec: TensorSpec, seed: int, index: int) -> Tensor:
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    mean, std = spread(name, spec.shape)
    size = min(BLOCK, spec.parameters - index * BLOCK)
    return torch.empty(size).normal_(mean, std, generator=generator).to(TORCH_DTYPES[spec.dtype])
