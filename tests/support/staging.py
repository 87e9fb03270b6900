"""Staging on a CPU as a device has it: copies land when they are waited for, and memory is lent for two rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_kit.staging import Landing, Staging

_JUNK = 0xA5


class LateStaging(Staging):
    """Whoever reads before the landing, or what was lent two rounds ago, reads junk."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def begin(self) -> None:
        super().begin()
        for buffer in self._buffers[self._round].values():
            buffer.fill_(_JUNK)

    def end(self) -> Landing:
        held = [(buffer, buffer.clone()) for buffer in self._buffers[self._round].values()]
        for buffer, _ in held:
            buffer.fill_(_JUNK)
        return _Late(held)


class _Late(Landing):
    def __init__(self, held: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__(None)
        self._held = held

    def wait(self) -> None:
        for buffer, landed in self._held:
            buffer.copy_(landed)
