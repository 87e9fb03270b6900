"""Images of any sizes through the vision encoder and the resampler: which go together, and which from a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from minicpmo45.config import VisionConfig
from thinker_svc.minicpmo45.frames import Slice, overview_size
from thinker_svc.minicpmo45.resampler import Resampler
from thinker_svc.minicpmo45.vision_encoder import PatchBatch, VisionEncoder, packed
from torch_kit.graphs import Graphs

AT_ONCE = (16, 12, 8, 6, 4, 3, 2, 1)
"""Images of one forward pass: what its activations may take. From a graph in these sizes, since a padding image would cost as one does."""
LENGTHS = 12
"""Most patch counts that have graphs; images of others go through together without."""
ASPECTS = ((1, 1), (4, 3), (16, 9))
"""Of the pictures that cameras make: their graphs are captured at start."""


_Graph = tuple[Hashable, Callable[[Tensor], Tensor], Callable[[], tuple[Tensor, ...]]]
"""Key, function and blank inputs of a graph."""


class Sight:
    """Graphs are keyed by images and patches; nothing in them is padded, so that attention needs no mask. One engine thread."""

    def __init__(self, vision: VisionEncoder, resampler: Resampler, config: VisionConfig, device: torch.device) -> None:
        self._vision = vision
        self._resampler = resampler
        self._config = config
        self._device = device
        self._lengths: set[int] = set()

    def __call__(self, slices: Sequence[Slice], graphs: Graphs) -> list[Tensor]:
        """Embeddings of each, [queries, hidden]."""
        seen: dict[int, Tensor] = {}
        for chosen, replayed in self._batches(slices, graphs):
            images = [slices[index] for index in chosen]
            found = self._replayed(images, graphs) if replayed else self._read(PatchBatch.of(images, self._device))
            seen.update(zip(chosen, found, strict=True))
        return [seen[index] for index in range(len(slices))]

    def warm_up(self, images: int, graphs: Graphs) -> None:
        """Captures the passes of up to so many pictures of the usual aspects; others are when first met, up to LENGTHS of them."""
        for aspect in ASPECTS:
            width, height = (side // self._config.patch_size for side in overview_size(*aspect, self._config))
            like = Slice(height, width, np.zeros((height * width, 3 * self._config.patch_size**2), np.uint8))
            self._lengths.add(len(like.patches))
            for size in (size for size in AT_ONCE if size <= images):
                graphs.prepare(*self._graph(size, like))

    def _batches(self, slices: Sequence[Slice], graphs: Graphs) -> Iterator[tuple[list[int], bool]]:
        """Which go through together, and whether a graph takes them."""
        lengths: dict[int, list[int]] = {}
        for index, each in enumerate(slices):
            lengths.setdefault(len(each.patches), []).append(index)
        rest: list[int] = []
        for length, indices in sorted(lengths.items()):
            if not graphs.on or (length not in self._lengths and len(self._lengths) >= LENGTHS):
                rest += indices
                continue
            self._lengths.add(length)
            while indices:
                size = next(size for size in AT_ONCE if size <= len(indices))
                yield indices[:size], True
                indices = indices[size:]
        for begin in range(0, len(rest), AT_ONCE[0]):
            yield rest[begin : begin + AT_ONCE[0]], False

    def _replayed(self, images: Sequence[Slice], graphs: Graphs) -> Tensor:
        key, run, blank = self._graph(len(images), images[0])
        upload = packed(images, len(images[0].patches), self._device)
        return graphs(key, run, (upload,), blank).clone()

    def _graph(self, images: int, like: Slice) -> _Graph:
        """Of so many images with the patches of `like`."""
        length = len(like.patches)

        def run(upload: Tensor) -> Tensor:
            return self._read(PatchBatch.over(upload, images, length, full=True))

        def blank() -> tuple[Tensor, ...]:
            return (packed([like._replace(patches=np.zeros_like(like.patches))] * images, length, self._device),)

        return ("see", images, length), run, blank

    def _read(self, batch: PatchBatch) -> Tensor:
        """[images, queries, hidden]."""
        return self._resampler(batch, self._vision(batch))
