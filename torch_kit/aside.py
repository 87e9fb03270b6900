"""A second stream of a device, for what need not wait for all that the first was given."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import torch


class Aside:
    """Within it, work goes to a stream of its own, behind what had been launched at the last `follow`. Without CUDA there is one order.

    Of one thread. Whoever changes what is read there waits for it first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on else None  # type: ignore[no-untyped-call]
        self._launched = torch.cuda.Event() if on else None  # type: ignore[no-untyped-call]
        self._outer: torch.cuda.Stream | None = None

    def follow(self) -> None:
        """What was launched on the current stream comes before; what is launched later does not."""
        if self._launched is not None:
            self._launched.record(torch.cuda.current_stream(self._device))

    def over(self) -> bool:
        """What was launched before the last `follow` is done."""
        return self._launched is None or bool(self._launched.query())  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        if self._stream is not None and self._launched is not None:
            self._outer = torch.cuda.current_stream(self._device)
            self._stream.wait_event(self._launched)
            torch.cuda.set_stream(self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._outer is not None:
            torch.cuda.set_stream(self._outer)
            self._outer = None
