"""Codes of a session's turns, cut into the pieces that the flow takes. How a turn is cut depends on its codes alone, not on when a step
ran."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stage_kit import Label
from vocoder_svc.minicpmo45.caches import Piece
from vocoder_svc.minicpmo45.voice import SILENCE_CODE

CHUNK = 25
LOOKAHEAD = 3
SHORTEST = 5
"""Codes that a piece consumes at least, unless the turn ends: less is held."""

REMEMBERED = 16
"""Turns that are over, so that what comes late is known."""


class Turn:
    """Silence for the look-ahead, then the codes. Every message lets out what it can: up to 25 codes a piece, 3 more seen behind them."""

    def __init__(self, label: Label) -> None:
        self.label = label
        self.pieces: deque[Piece] = deque()
        self.ended = False
        """No more codes come; the last piece is final, or there is none at all."""
        self.begun = False
        """The first piece was made: caches are this turn's."""
        self._held: list[int] = []

    @property
    def waiting(self) -> int:
        """Codes that wait, in pieces and held."""
        return sum(piece.fresh for piece in self.pieces) + len(self._held)

    def push(self, codes: Iterable[int], *, last: bool) -> None:
        """Takes codes in; with `last` lets all out."""
        fresh = list(codes)
        if fresh and not self._held:
            self._held = [SILENCE_CODE] * LOOKAHEAD
        self._held += fresh
        while len(self._held) >= (CHUNK + 1 if last else SHORTEST + LOOKAHEAD):
            seen = self._held[: CHUNK + LOOKAHEAD]
            count = len(seen) - LOOKAHEAD
            self.pieces.append(Piece(tuple(seen), count, False))
            del self._held[:count]
        if last:
            if self._held:
                self.pieces.append(Piece(tuple(self._held), len(self._held), True))
            self._held = []
            self.ended = True


class Stream:
    """The turns of one session, one after the other: a turn that begins ends the one before it, so that nothing held is lost."""

    def __init__(self) -> None:
        self._turns: deque[Turn] = deque()
        self._over: deque[Label] = deque(maxlen=REMEMBERED)

    def push(self, label: Label, codes: Iterable[int], *, last: bool) -> Turn | None:
        """Takes codes of `label` in; None when its work is over here."""
        if self.is_over(label):
            return None
        turn = next((turn for turn in self._turns if turn.label == label), None)
        if turn is None:
            for other in self._turns:
                if not other.ended:
                    other.push((), last=True)
                    self._over.append(other.label)
            turn = Turn(label)
            self._turns.append(turn)
        turn.push(codes, last=last)
        return turn

    def is_over(self, label: Label) -> bool:
        """True when a turn takes no more codes: what still comes of it is ignored."""
        return label in self._over

    def current(self) -> Turn | None:
        """The turn for which there is something to do."""
        turn = self._turns[0] if self._turns else None
        return turn if turn is not None and (turn.pieces or turn.ended) else None

    def holds(self, turn: Turn) -> bool:
        """It is neither over nor forgotten."""
        return turn in self._turns

    def finish(self, turn: Turn) -> None:
        """The turn's last sound has left."""
        self._turns.remove(turn)
        self._over.append(turn.label)

    def drop(self, label: Label) -> None:
        """Forgets a turn, and ignores what else comes of it."""
        self._over.append(label)
        self._turns = deque(turn for turn in self._turns if turn.label != label)

    def forget_below(self, epoch: int) -> None:
        """Forgets the turns of lower epochs."""
        self._turns = deque(turn for turn in self._turns if turn.label.epoch >= epoch)
