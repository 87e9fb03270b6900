"""What work belongs to: the epoch, which only rises, and the turn that led to it."""

from __future__ import annotations

from msgspec import Struct


class Fence(Struct):
    epoch: int = 1
    turn: int = 0
    config_generation: int = 1

    def advance(self) -> tuple[int, int]:
        """Begin the next epoch: (cancelled, next)."""
        cancelled, self.epoch = self.epoch, self.epoch + 1
        return cancelled, self.epoch

    def admits(self, epoch: int) -> bool:
        """Whether output stamped with this epoch may still leave."""
        return epoch >= self.epoch
