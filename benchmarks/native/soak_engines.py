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
from talker_svc.minicpmo45.sampler import CodeSampler
from talker_svc.minicpmo45.session import Session as TalkerSession
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.script import FREE, Script
from thinker_svc.minicpmo45.session import Session as ThinkerSession
from torch_kit.draws import session_seed
from torch_kit.page_table import PageTable
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.engine import Session as VocoderSession

MOST_SLOTS = 1025
_SMALL = 1e-30


class SessionScript(Script):
    """Sessions begin at places of their own, and say words of their own."""

    def __init__(self, table: Tensor, **rules: Any) -> None:
        super().__init__(table, **rules)
        self.seeds = torch.zeros(MOST_SLOTS, dtype=torch.int64, device=table.device)
        """By slot."""

    def __call__(self, slots: Tensor, units: Tensor, steps: Tensor) -> Tensor:
        count, width = self._table.shape
        seeds = self.seeds[slots]
        said = self._table[(units + places(seeds, count)) % count, steps.clamp(max=width - 1)]
        is_word = (said >= WORDS.start) & (said < WORDS.stop)
        return torch.where(steps < width, torch.where(is_word, word_ids(seeds, units, steps), said), FREE)


class PlannedCodes(CodeSampler):
    """Everything runs as ever, but the plan's code wins each draw."""

    def sample(self, rows: Tensor, logits: Tensor, injected: Tensor | None = None) -> Tensor:
        state, (unit, _, ending) = self._state[rows], self._rules[rows].unbind(1)
        made = state[:, 1]
        wanted = codes(self._seed[rows], unit, made, self._end)
        wanted = torch.where((ending > 0) & (made >= end_codes(self._seed[rows], unit)), self._end, wanted)
        race = torch.ones_like(logits, dtype=torch.float32).scatter_(1, wanted[:, None], _SMALL)
        return super().sample(rows, logits, race)


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
        script = self._model._decider._script
        assert isinstance(script, SessionScript)
        script.seeds[_thinker(slot).row] = session_seed(slot.session_id)


class SoakTalker(PreloadedTalker):
    def __init__(self, settings: Any, tokens: int, orders: Path) -> None:
        super().__init__(settings, tokens)
        self._inbox = Inbox(orders, "talker")

    def load(self) -> None:
        with patch("talker_svc.minicpmo45.engine.CodeSampler", PlannedCodes):
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
    return turn is not None and turn.unit is not None and _spoil(session.table)


@torch.inference_mode()
def _spoil(table: PageTable) -> bool:
    """Keys and values of the session's own pages; those of a shared prefix stay."""
    own = list(table.pages[table.prefix_pages :])
    if own:
        table.pool.storage[:, own] = torch.nan
    return bool(own)


def _thinker(slot: Slot) -> ThinkerSession:
    session: ThinkerSession = slot.state
    return session
