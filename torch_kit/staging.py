"""Memory of the host that a device copies from and to without being waited for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDS = 2


class Staging:
    """Buffers by name, pinned on CUDA and kept: what `take` gave in a round is given again two rounds later.

    A round begins only when the copies of the last but one are over. Of one thread and one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pins = device.type == "cuda"
        self._buffers: list[dict[str, Tensor]] = [{} for _ in range(_ROUNDS)]
        self._events = [torch.cuda.Event() for _ in range(_ROUNDS)] if self._pins else []  # type: ignore[no-untyped-call]
        self._round = 0

    def begin(self) -> None:
        """The next round."""
        self._round = (self._round + 1) % _ROUNDS
        if self._pins:
            self._events[self._round].synchronize()

    def end(self) -> Landing:
        """All copies of this round are on their way."""
        if not self._pins:
            return Landing(None)
        self._events[self._round].record(torch.cuda.current_stream(self._device))
        return Landing(self._events[self._round])

    def undo(self) -> None:
        """As if the round had not begun."""
        if self._pins:
            torch.cuda.current_stream(self._device).synchronize()
        self._round = (self._round - 1) % _ROUNDS

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of this shape that holds anything; one `name` is taken once a round."""
        size = math.prod(shape) * dtype.itemsize
        buffers = self._buffers[self._round]
        if name not in buffers or buffers[name].numel() < size:
            # grows in steps, for pinning takes milliseconds
            buffers[name] = torch.empty(max(1 << (size - 1).bit_length(), 4096) if size else 4096, dtype=torch.uint8, pin_memory=self._pins)
        return buffers[name][:size].view(dtype).view(shape)


class Landing:
    """When the device has done what it was given."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def over(self) -> bool:
        """It has."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until then."""
        if self._event is not None:
            self._event.synchronize()
