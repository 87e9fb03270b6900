"""The three engines of a soak run: they say what `soak_plan` says, and fail where it is ordered."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.native.preload import PreloadedTalker, PreloadedThinker
from benchmarks.native.soak_faults import Inbox
from benchmarks.native.soak_plan import codes, end_codes, places, word_ids
from benchmarks.native.spurts import WORDS
from stage_kit import Slot
from talker_svc.minicpmo45.engine import _sampler_of
from talker_svc.minicpmo45.sampler import CodeSampler
from talker_svc.minicpmo45.session import Session as TalkerSession
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.script import FREE, Script
from thinker_svc.minicpmo45.session import Session as ThinkerSession
from torch_kit.draws import session_seed
from torch_kit.page_table import PageTable
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.engine import Session as VocoderSession

MOST_SLOTS, UNITS = 257, 512
"""Units of a session: more than a run lasts."""
_CERTAIN = 1e4


class SessionScript(Script):
    """Sessions begin at places of their own, and say words of their own: each slot has UNITS lines, written when its session is known."""

    def __init__(self, table: Tensor, **rules: Any) -> None:
        self._units = table
        super().__init__(table.new_full((MOST_SLOTS * UNITS, table.shape[1]), FREE), repeat=True, stagger=UNITS)

    def write(self, slot: int, seed: int) -> None:
        """A session begins in this slot."""
        device, (count, width) = self.table.device, self._units.shape
        units = torch.arange(UNITS, device=device)
        seeds = torch.full_like(units, seed)
        said = self._units[(units + places(seeds, count)) % count]
        steps = torch.arange(width, device=device).expand(UNITS, -1)
        words = word_ids(seeds.repeat_interleave(width), units.repeat_interleave(width), steps.flatten()).view(UNITS, width)
        is_word = (said >= WORDS.start) & (said < WORDS.stop)
        self.table[slot * UNITS : (slot + 1) * UNITS] = torch.where(is_word, words, said)


def planned(sampler: type[CodeSampler]) -> type[CodeSampler]:
    """Everything runs as ever, but the plan's code is so likely that it wins each draw."""

    class PlannedCodes(sampler):  # type: ignore[misc, valid-type]
        def sample(self, rows: Tensor, logits: Tensor, injected: Tensor | None = None) -> Tensor:
            drawn: Tensor = super().sample(rows, self._certain(rows, logits), injected)
            return drawn

        def sample_next(self, rows: Tensor, logits: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
            drawn: tuple[Tensor, Tensor] = super().sample_next(rows, self._certain(rows, logits), table)
            return drawn

        def _certain(self, rows: Tensor, logits: Tensor) -> Tensor:
            state, (unit, _, ending) = self._state[rows], self._rules[rows].unbind(1)
            made = state[:, 1]
            wanted = codes(self._seed[rows], unit, made, self._end)
            wanted = torch.where((ending > 0) & (made >= end_codes(self._seed[rows], unit)), self._end, wanted)
            # a sum: what is not finite stays so
            return logits + torch.zeros_like(logits).scatter_(1, wanted[:, None], _CERTAIN)

    return PlannedCodes


class SoakThinker(PreloadedThinker):
    def __init__(self, settings: Any, tokens: int, orders: Path) -> None:
        super().__init__(settings, tokens)
        self._inbox = Inbox(orders, "thinker")

    def load(self) -> None:
        with patch("thinker_svc.minicpmo45.engine.Script", SessionScript):
            super().load()

    def step(self, slots: list[Slot]) -> None:
        self._inbox.meet(slots, lambda slot: _spoil(_thinker(slot).table))
        super().step(slots)

    def _tune(self, slot: Slot, config: SessionConfig) -> None:
        super()._tune(slot, config)
        script = self._model._decider.script
        assert isinstance(script, SessionScript)
        script.write(_thinker(slot).row, session_seed(slot.session_id))


class SoakTalker(PreloadedTalker):
    def __init__(self, settings: Any, tokens: int, orders: Path) -> None:
        super().__init__(settings, tokens)
        self._inbox = Inbox(orders, "talker")

    def load(self) -> None:
        with patch("talker_svc.minicpmo45.engine._sampler_of", lambda kernels: planned(_sampler_of(kernels))):
            super().load()

    def step(self, slots: list[Slot]) -> None:
        self._inbox.meet(slots, _spoil_turn)
        super().step(slots)


class SoakVocoder(MiniCpmVocoderEngine):
    def __init__(self, settings: Any, orders: Path) -> None:
        super().__init__(settings)
        self._inbox = Inbox(orders, "vocoder")

    def step(self, slots: list[Slot]) -> None:
        self._inbox.meet(slots, self._spoil)
        super().step(slots)

    @torch.inference_mode()
    def _spoil(self, slot: Slot) -> bool:
        """What the session's convolutions remember; a turn begins with the voice's own."""
        session: VocoderSession = slot.state
        turn = session.stream.current()
        if turn is None or not turn.begun or not turn.pieces:
            return False
        self._vocoder._caches._context.dit[:, :, session.row] = torch.nan
        return True


def _spoil_turn(slot: Slot) -> bool:
    session: TalkerSession = slot.state
    turn = session.turn
    # what is on its way does not meet it any more
    return turn is not None and turn.unit is not None and turn.speaks and _spoil(session.table)


@torch.inference_mode()
def _spoil(table: PageTable) -> bool:
    """Keys and values of the session's own pages; those of a shared prefix stay."""
    own = list(table.pages[table.prefix_pages :])
    if own:
        table.pool.spoil(own)
    return bool(own)


def _thinker(slot: Slot) -> ThinkerSession:
    session: ThinkerSession = slot.state
    return session
