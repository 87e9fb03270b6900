"""Reading the safetensors shards: only those that a service needs, by several threads, through pinned buffers on a GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from minicpmo45.config import Config, read_config
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import TALKER_PREFIXES, THINKER_PREFIXES, UNUSED_PREFIXES, compare, modern_name, safetensors_layout, select
from minicpmo45.shard import StoredTensor, read_header
from minicpmo45.token2wav import FLOW_FILE, fold_weight_norm, read_flow, read_hift
from minicpmo45.tokens import read_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
READERS: Final = 8
STAGING_BYTES: Final = 32 << 20
"""One pinned buffer; each reader has two, so that a copy to the GPU runs while the next bytes are read."""
Change = Callable[[str, Tensor], Mapping[str, Tensor]]
"""What becomes of a tensor, by name, once it is read: one or several. Several threads ask at once."""
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def thinker_weights(
    path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16, change: Change | None = None
) -> dict[str, Tensor]:
    """`llm.`, `vpm.`, `resampler.`, `apm.` and `audio_projection_layer.`, under their stored names. Raises CheckpointError."""
    return Weights.open(path, THINKER_PREFIXES).load(device, dtype, change=change)


def talker_weights(path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """`tts.` without what is never read, and with `tts.head_code.0.weight` folded out of its weight norm. Raises CheckpointError."""
    loaded = Weights.open(path, TALKER_PREFIXES, without=UNUSED_PREFIXES).load(device, dtype)
    return fold_weight_norm(loaded)


def flow_weights(
    path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, config: Config | None = None
) -> dict[str, Tensor]:
    """`flow.pt` under its stored names. Raises CheckpointError."""
    found = read_flow(path, (config or read_config(path)).flow)
    return _finite({name: tensor.to(device, dtype, copy=True) for name, tensor in found.items()}, dict.fromkeys(found, FLOW_FILE))


def hift_weights(
    path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, config: Config | None = None
) -> dict[str, Tensor]:
    """The generator of the generation in `config.hift`, weight norm folded in fp32, names without `generator.`. Raises CheckpointError."""
    stored = read_hift(path, (config or read_config(path)).hift)
    found = fold_weight_norm(_finite(stored, dict.fromkeys(stored, "the generator's file")))
    return {name: tensor.to(device, dtype, copy=True) for name, tensor in found.items()}


class Place(NamedTuple):
    """Where one tensor is stored."""

    file: Path
    tensor: StoredTensor


class Weights:
    """The tensors of some prefixes, found and checked against the model's layout, not read yet."""

    def __init__(self, places: dict[str, Place]) -> None:
        self.places = places

    @classmethod
    def open(cls, path: Path, prefixes: Iterable[str], without: Iterable[str] = (), config: Config | None = None) -> Weights:
        """Reads the index and the headers of the shards that hold `prefixes`; the other shards may be absent.

        Raises CheckpointError that names a missing file, or a tensor that is missing, surplus, misshapen or misplaced.
        """
        wanted = tuple(prefixes)
        dropped = tuple(without)
        expected = select(safetensors_layout(config or _sizes(path)), wanted, dropped)
        found = {
            modern_name(name): place for name, place in find_tensors(path, wanted).items() if not (dropped and name.startswith(dropped))
        }
        compare(expected, {name: place.tensor.shape for name, place in found.items()}, "the safetensors shards")
        return cls({name: found[name] for name in expected})

    @property
    def nbytes(self) -> int:
        return sum(place.tensor.end - place.tensor.begin for place in self.places.values())

    def load(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        readers: int = READERS,
        change: Change | None = None,
    ) -> dict[str, Tensor]:
        """All tensors, contiguous, on `device` in `dtype`, or what `change` makes of them, so that the device never holds all as they were.

        Raises CheckpointError that names a tensor with NaN or infinity in it. Elements of a byte are not asked: it shows in their scales.
        """
        target = torch.device(device)
        with ExitStack() as stack:
            files = {place.file: stack.enter_context(opened(place.file)) for place in self.places.values()}
            staging = threading.local()

            def made(name: str) -> Mapping[str, Tensor]:
                tensor = read(name)
                return {name: tensor} if change is None else change(name, tensor)

            def read(name: str) -> Tensor:
                place = self.places[name]
                if target.type != "cuda":
                    return _read_host(files[place.file], place).to(target, dtype)
                if not hasattr(staging, "buffers"):
                    staging.buffers = _Staging(target)
                reader: _Staging = staging.buffers
                return reader.read(files[place.file], place).to(dtype)

            largest_first = sorted(self.places, key=lambda name: self.places[name].tensor.begin - self.places[name].tensor.end)
            with ThreadPoolExecutor(max(1, min(readers, len(largest_first)))) as pool:
                found = dict(zip(largest_first, pool.map(made, largest_first), strict=True))
        if target.type == "cuda":
            torch.cuda.synchronize(target)
        asked = {name: tensor for name in self.places for tensor in found[name].values() if tensor.element_size() > 1}
        _finite(asked, {name: place.file.name for name, place in self.places.items()})
        return {part: tensor for name in self.places for part, tensor in found[name].items()}


class Survey(NamedTuple):
    """What index and headers say of some tensors. `unreadable`: those whose file could not be read."""

    places: dict[str, Place]
    unreadable: frozenset[str]
    faults: tuple[CheckpointError, ...]


def find_tensors(path: Path, prefixes: tuple[str, ...]) -> dict[str, Place]:
    """Where every stored tensor of `prefixes` lies, by its name in the file. Raises CheckpointError when index and shards disagree."""
    found = survey(path, prefixes)
    for fault in found.faults:
        raise fault
    return found.places


def survey(path: Path, prefixes: tuple[str, ...]) -> Survey:
    """The same, with all that index and shards disagree in. Raises CheckpointError for an index that is none."""
    weight_map = read_weight_map(path)
    files = sorted({file for name, file in weight_map.items() if name.startswith(prefixes)})
    found: dict[str, Place] = {}
    broken: set[str] = set()
    faults: list[CheckpointError] = []
    for file in files:
        try:
            header = read_header(path / file)
        except CheckpointError as error:
            faults.append(error)
            broken.add(file)
            continue
        for name, tensor in header.items():
            if weight_map.get(name) != file:
                faults.append(CheckpointError(name, f"in {file}, but {INDEX_FILE} says {weight_map.get(name, 'nothing of it')}"))
            elif name.startswith(prefixes):
                found[name] = Place(path / file, tensor)
    for name, file in weight_map.items():
        if name.startswith(prefixes) and name not in found and file not in broken:
            faults.append(CheckpointError(name, f"{INDEX_FILE} says {file}, which does not hold it"))
    return Survey(found, frozenset(name for name, file in weight_map.items() if file in broken), tuple(faults))


def read_weight_map(path: Path) -> dict[str, str]:
    """Tensor name to shard, from the index; a folder with one `model.safetensors` needs none. Raises CheckpointError."""
    if not (path / INDEX_FILE).is_file() and (path / SINGLE_FILE).is_file():
        return dict.fromkeys(read_header(path / SINGLE_FILE), SINGLE_FILE)
    weight_map = read_json(path / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(INDEX_FILE, "holds no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.isprintable() or Path(file).name != file or file in ("", ".."):
            raise CheckpointError(name, f"{INDEX_FILE} places it in {file!r}, which is no file of this folder")
    return weight_map


def _sizes(path: Path) -> Config:
    from minicpmo45.config_json import from_json

    return from_json(read_json(path / "config.json"))


class _Staging:
    """One reader's two pinned buffers and its stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._free = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def read(self, file: int, place: Place) -> Tensor:
        """The tensor on the GPU in its stored dtype, its bytes in place. Its memory is of the default stream's pool, as its users are."""
        stored = place.tensor
        target = torch.empty(stored.end - stored.begin, dtype=torch.uint8, device=self._device)
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            for begin in range(0, target.numel(), STAGING_BYTES):
                size = min(STAGING_BYTES, target.numel() - begin)
                self._turn ^= 1
                self._free[self._turn].synchronize()
                part = self._buffers[self._turn][:size]
                _fill(part, file, stored.begin + begin, place)
                target[begin : begin + size].copy_(part, non_blocking=True)
                self._free[self._turn].record(self._stream)
            self._stream.synchronize()
        return target.view(DTYPES[stored.dtype]).view(stored.shape)


def _read_host(file: int, place: Place) -> Tensor:
    stored = place.tensor
    target = torch.empty(stored.end - stored.begin, dtype=torch.uint8)
    _fill(target, file, stored.begin, place)
    return target.view(DTYPES[stored.dtype]).view(stored.shape)


def _fill(target: Tensor, file: int, begin: int, place: Place) -> None:
    """Reads `target.numel()` bytes from `begin` of the file straight into the tensor's memory."""
    rest = target.numpy().data
    while rest:
        count = os.preadv(file, [rest], begin)
        if not count:
            raise CheckpointError(place.tensor.name, f"{place.file.name} ended early")
        begin, rest = begin + count, rest[count:]


@contextmanager
def opened(file: Path) -> Iterator[int]:
    """A descriptor to read from. Raises CheckpointError."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(file.name, error.strerror or str(error)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _finite(tensors: dict[str, Tensor], files: Mapping[str, str]) -> dict[str, Tensor]:
    """Raises CheckpointError that names the first tensor with NaN or infinity in it, and its file.

    One answer is fetched from the device for all: a sum is not finite where an element is not; a sum that overflows alone is asked again
    element by element.
    """
    sums = torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors.values()])
    for name, fine in zip(tensors, torch.isfinite(sums).tolist(), strict=True):
        if not fine and not bool(torch.isfinite(tensors[name]).all()):
            raise CheckpointError(name, f"holds NaN or infinity, in {files[name]}")
    return tensors
