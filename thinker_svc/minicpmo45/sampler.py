"""How the next token is drawn: the two stages of the reference, for rows of many sessions with settings of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from minicpmo45.tokens import Tokens
from torch_kit.draws import choose, exponentials

HISTORY = 512
"""Drawn tokens that the repetition penalty remembers."""
FIRST_DRAW, SECOND_DRAW = 0, 1
KEEP_ALL = 2.0
"""A share that no sum of probabilities passes, rounded as it may be."""


NARROW_COLUMNS = 128
NARROW_TOP_K = 64


class Manner(IntEnum):
    """What the rows of a batch need at most. A row's token does not depend on it."""

    GREEDY = 0
    """No draw."""
    NARROW = 1
    """The second draw is among the highest 128 scores: top-k is at most 64, so up to 64 scores equal to the k-th stay."""
    WIDE = 2
    """The second draw may be among all."""


class Sampling(msgspec.Struct, frozen=True):
    """What a session may set. The defaults are the reference's."""

    temperature: float = 0.7
    top_k: int = 20
    """0: all."""
    top_p: float = 0.8
    """0: all."""
    repetition_penalty: float = 1.05
    length_penalty: float = 1.1
    """Above 1: turns end later."""
    listen_prob_scale: float = 1.0
    """Factor of the logit of the token named by `listen_token`."""
    listen_token: Literal["listen", "im_end"] = "listen"
    """`im_end` is the reference's quirk: `listen_prob_scale` and `listen_top_k` mean `<|im_end|>`, not `<|listen|>`."""
    listen_top_k: int = 0
    """The listen token is taken at once when fewer logits are above its own; 0: off."""
    greedy: bool = False


class Draws(NamedTuple):
    """What draws are keyed by, int64 [rows] each; or `injected`: exponentials [2, rows, vocabulary] for both draws."""

    seed: Tensor
    unit: Tensor
    step: Tensor
    injected: Tensor | None = None


class SamplerTables(NamedTuple):
    """What a sampler keeps, by slot but for the last; for whoever draws in its place."""

    settings: Tensor
    """fp32 [slots, 5]: temperature, top-p, repetition penalty, length penalty, scale of the listen token."""
    choices: Tensor
    """int64 [slots, 4]: top-k, listen token, its top-k, greedy."""
    history: Tensor
    """int64 [slots, HISTORY], a ring."""
    drawn: Tensor
    """int64 [slots]: tokens that ever entered the history."""
    entered: Tensor
    """bool [slots]"""
    forbidden: Tensor
    """bool [vocabulary]"""


class _Rows(NamedTuple):
    """Settings of each row, [rows, 1]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    penalty: Tensor
    length_penalty: Tensor
    listen_scale: Tensor
    listen_token: Tensor
    listen_top_k: Tensor
    greedy: Tensor


class Sampler:
    """Settings and history of `slots` sessions in slot-indexed tensors; one call draws a token for any of them.

    `forbidden` bool [vocabulary]: ids that the second draw never gives; `<|chunk_eos|>` is one of them.
    """

    def __init__(self, tokens: Tokens, forbidden: Tensor, slots: int) -> None:
        device = forbidden.device
        self._tokens = tokens
        self._forbidden = forbidden
        self._numbers = torch.zeros(slots, 5, device=device)
        self._choices = torch.zeros(slots, 4, dtype=torch.int64, device=device)
        self._history = torch.zeros(slots, HISTORY, dtype=torch.int64, device=device)
        self._drawn = torch.zeros(slots, dtype=torch.int64, device=device)
        self.entered = torch.zeros(slots, dtype=torch.bool, device=device)
        """Whether the slot's newest token entered its history."""
        self._manners = [Manner.WIDE] * slots

    @property
    def tables(self) -> SamplerTables:
        return SamplerTables(self._numbers, self._choices, self._history, self._drawn, self.entered, self._forbidden)

    def tune(self, slot: int, sampling: Sampling) -> None:
        """The settings of a slot from now on; its history stays."""
        top_k = min(sampling.top_k, len(self._forbidden)) or len(self._forbidden)
        token = self._tokens.listen if sampling.listen_token == "listen" else self._tokens.im_end
        numbers = (sampling.temperature, sampling.top_p or KEEP_ALL, sampling.repetition_penalty, sampling.length_penalty)
        self._numbers[slot] = torch.tensor((*numbers, sampling.listen_prob_scale))
        self._choices[slot] = torch.tensor((top_k, token, sampling.listen_top_k, sampling.greedy))
        self._manners[slot] = Manner.GREEDY if sampling.greedy else Manner.NARROW if top_k <= NARROW_TOP_K else Manner.WIDE

    def forget(self, slot: int) -> None:
        """Another session begins in this slot."""
        self._drawn[slot] = 0

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Tokens that this session drew elsewhere enter its history, oldest first."""
        newest = torch.tensor(tokens[-HISTORY:], dtype=torch.int64, device=self._history.device)
        places = self._drawn[slot] + torch.arange(len(newest), device=self._history.device)
        self._history[slot, places % HISTORY] = newest
        self._drawn[slot] += len(newest)

    def manner(self, slots: Iterable[int]) -> Manner:
        """What a batch of these slots needs."""
        return max(self._manners[slot] for slot in slots)

    @torch.no_grad()
    def sample(
        self,
        slots: Tensor,
        logits: Tensor,
        draws: Draws,
        counted: Tensor,
        script: Tensor | None = None,
        manner: Manner = Manner.WIDE,
    ) -> Tensor:
        """int64 [rows]: the next token of each row.

        slots int64 [rows], each at most once. logits [rows, vocabulary], as the model gives them. counted bool [rows]: False for rows whose
        token is decided elsewhere: they leave no trace in the history. script int64 [rows]: the token that replaces the drawn one, where it
        is not negative. manner: at least what the rows need.

        First the unmodified distribution is drawn from: `<|chunk_eos|>` ends the unit and does not enter the history. Else, in this order:
        forbidden ids, repetition penalty (a division, whatever the logit's sign), length penalty on `<|turn_eos|>`, scale of the listen
        token, the listen token at once if it is among its first so many (not entered in the history), temperature, top-k (ties with the
        k-th stay), top-p (the token that passes p stays), second draw.
        """
        logits = logits.float()
        rows = self._rows(slots)
        first = logits.argmax(-1)
        if manner is not Manner.GREEDY:
            drawn = choose(torch.softmax(logits, -1), _waits(draws, FIRST_DRAW, logits.shape[1]))
            first = torch.where(rows.greedy, first, drawn)
        ended = first == self._tokens.chunk_eos
        scores = self._penalised(slots, logits.masked_fill(self._forbidden, -torch.inf), rows)
        listen = scores.gather(1, rows.listen_token)
        at_once = (scores > listen).sum(1) < rows.listen_top_k[:, 0]
        second = scores.argmax(-1)
        if manner is not Manner.GREEDY:
            columns = min(NARROW_COLUMNS, scores.shape[1]) if manner is Manner.NARROW else scores.shape[1]
            kept, order = _likeliest(scores / rows.temperature, rows.top_k, rows.top_p, columns)
            chosen = choose(torch.softmax(kept, -1), _waits(draws, SECOND_DRAW, order))
            second = torch.where(rows.greedy, second, order.gather(1, chosen[:, None])[:, 0])
        token = torch.where(ended, self._tokens.chunk_eos, torch.where(at_once, rows.listen_token[:, 0], second))
        entered = counted & ~ended & ~at_once
        if script is not None:
            token = torch.where(script >= 0, script, token)
            entered = torch.where(script >= 0, counted & (script != self._tokens.chunk_eos), entered)
        self._enter(slots, token, entered)
        return token

    def _rows(self, slots: Tensor) -> _Rows:
        numbers, choices = self._numbers[slots], self._choices[slots]
        temperature, top_p, penalty, length_penalty, listen_scale = torch.split(numbers, 1, dim=1)
        top_k, listen_token, listen_top_k, greedy = torch.split(choices, 1, dim=1)
        return _Rows(temperature, top_k, top_p, penalty, length_penalty, listen_scale, listen_token, listen_top_k, greedy[:, 0] > 0)

    def _penalised(self, slots: Tensor, scores: Tensor, rows: _Rows) -> Tensor:
        seen = torch.zeros_like(scores, dtype=torch.bool)
        remembered = torch.arange(HISTORY, device=scores.device) < self._drawn[slots, None]
        # what is not remembered points at a forbidden id, where a division changes nothing
        seen.scatter_(1, torch.where(remembered, self._history[slots], self._tokens.chunk_eos), value=True)
        scores = torch.where(seen, scores / rows.penalty, scores)
        end = scores[:, self._tokens.turn_eos, None]
        scores[:, self._tokens.turn_eos, None] = torch.where(end > 0, end / rows.length_penalty, end * rows.length_penalty)
        listen = scores.gather(1, rows.listen_token)
        # a scale of 0 would make NaN of a forbidden token
        return scores.scatter(1, rows.listen_token, torch.where(listen.isinf(), listen, listen * rows.listen_scale))

    def _enter(self, slots: Tensor, token: Tensor, entered: Tensor) -> None:
        place = self._drawn[slots] % HISTORY
        self._history[slots, place] = torch.where(entered, token, self._history[slots, place])
        self._drawn[slots] += entered
        self.entered[slots] = entered


def _waits(draws: Draws, draw: int, columns: Tensor | int) -> Tensor:
    """Exponentials of the columns; each is the same whichever others are asked for."""
    if draws.injected is not None:
        given = draws.injected[draw]
        return given if isinstance(columns, int) else given.gather(1, columns)
    return exponentials(draws.seed, draws.unit, draws.step, draw, columns)


def _likeliest(scores: Tensor, count: Tensor, share: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Top-k, then top-p: the highest `columns` scores in falling order, of equals the lowest id first, and their ids; what leaves is -inf.

    Scores equal to the `count`-th stay; so does the token that passes `share`.
    """
    if columns < scores.shape[1]:
        places = scores.topk(columns, sorted=False).indices.sort(1).values
        ordered, order = torch.sort(scores.gather(1, places), dim=-1, descending=True, stable=True)
        order = places.gather(1, order)
    else:
        ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    last = ordered.gather(1, (count - 1).clamp(max=columns - 1))
    ordered = ordered.masked_fill(ordered < last, -torch.inf)
    passed = torch.softmax(ordered, -1).cumsum(-1) > share
    dropped = torch.cat((torch.zeros_like(passed[:, :1]), passed[:, :-1]), 1)
    return ordered.masked_fill(dropped, -torch.inf), order
