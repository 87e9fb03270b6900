"""The language model of the thinker: one ragged forward for rows in all phases, and one decision for those that speak next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import LlmConfig
from thinker_svc.minicpmo45.sampler import Draws, Manner, Sampler, Sampling
from thinker_svc.minicpmo45.script import Script
from thinker_svc.minicpmo45.template import EMBEDDED
from thinker_svc.minicpmo45.unit import MOST_UNIT_TOKENS, UnitRules, Units
from thinker_svc.minicpmo45.vocabulary import Vocabulary
from torch_kit.decoder import Decoder, DecoderConfig, WeightError
from torch_kit.graphs import Graphs
from torch_kit.page_table import Appended
from torch_kit.pages import PagePool
from torch_kit.ragged import BUCKETS, WIDTHS, RaggedBatch, bucket, width

PREFIX = "llm.model."
NOTHING = -1
"""In place of a token that was not drawn."""
_Graph = tuple[Hashable, Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]
"""Key, function and blank inputs of a graph."""


class Row(NamedTuple):
    """One session's tokens of a forward."""

    slot: int
    appended: Appended
    ids: NDArray[np.int64]
    """[n], EMBEDDED where an embedding goes."""
    embeddings: tuple[Tensor, ...] = ()
    """[k, hidden] each, in order."""
    unit: int = -1
    """Not negative: the next token of this unit is decided after the row."""
    opens: bool | None = None
    """Not None: the unit's first token is decided, and the value says whether a turn is open."""

    @property
    def goes_on(self) -> bool:
        """It feeds the token that was decided last, and nothing else."""
        return self.unit >= 0 and self.opens is None and len(self.ids) == 1 and not self.embeddings


class Decision(NamedTuple):
    """Of a row that decides."""

    token: int
    ended: bool
    """The unit ends with this token."""
    finite: bool
    """False: its logits hold NaN or infinity, and the token means nothing."""
    drawn: int
    """What entered the history of the repetition penalty, which need not be the token; negative: nothing."""


class ThinkerModel:
    """Weights, pages, and the slot-indexed state of sampler and units. `weights`: the tensors `llm.*` of one dtype on one device.

    Keys and values lie in `pool`, which the caller sizes; tables of pages are the caller's. `plain`: no graphs. Raises WeightError.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: LlmConfig,
        vocabulary: Vocabulary,
        pool: PagePool,
        slots: int,
        script: Script | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self.pool = pool
        self.vocabulary = vocabulary
        self._embedding = _matrix(weights, f"{PREFIX}embed_tokens.weight", config)
        self._head = _matrix(weights, "llm.lm_head.weight", config)
        llm = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items() if name.startswith(PREFIX)}
        self._decoder = Decoder(llm, _decoder_config(config), pool)
        device = pool.device
        self.graphs = Graphs(device, plain=plain)
        # behind the sessions one row for padding, which nobody reads
        self._spare = slots
        self.sampler = Sampler(vocabulary.tokens, torch.from_numpy(vocabulary.forbidden).to(device), slots + 1)
        self.units = Units(vocabulary.tokens, torch.from_numpy(vocabulary.characters).to(device), slots + 1)
        self._seeds = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._script = script
        self._said = torch.zeros(slots + 1, MOST_UNIT_TOKENS + 1, config.hidden_size, dtype=self._embedding.dtype, device=device)
        self.tune(self._spare, Sampling(), UnitRules(), 0)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and hidden states."""
        return self._embedding.dtype

    def tune(self, slot: int, sampling: Sampling, rules: UnitRules, seed: int) -> None:
        """A slot's settings, from its next token on."""
        self.sampler.tune(slot, sampling)
        self.units.tune(slot, rules)
        self._seeds[slot] = seed

    def forget(self, slot: int) -> None:
        """Another session begins in this slot."""
        self.sampler.forget(slot)

    def recall(self, slot: int, drawn: Sequence[int]) -> None:
        """Tokens that the session drew elsewhere, oldest first: its repetition penalty knows them from now on."""
        self.sampler.observe(slot, drawn)

    @torch.no_grad()
    def step(self, rows: Sequence[Row]) -> list[Decision | None]:
        """Forwards all rows; each one's decision, None for rows that decide nothing.

        The hidden state of every row's last token is kept for `said`, under the number of the token that was fed.
        """
        if self.graphs.on and all(row.goes_on for row in rows):
            return self._go_on(rows)
        batch = RaggedBatch.of([row.appended for row in rows], [row.unit >= 0 for row in rows])
        deciding = [row for row in rows if row.unit >= 0]
        # uploads wait for what runs on the device: they come before the forward
        numbers = self._upload([(row.slot, row.unit, row.opens is None, bool(row.opens)) for row in deciding])
        hidden = self._decoder.forward(self._embed(rows), batch)
        if not deciding:
            return [None] * len(rows)
        packed = iter(self._decided(numbers, hidden[batch.sampled], self._manner(deciding)).tolist())
        return [_decision(next(packed)) if row.unit >= 0 else None for row in rows]

    def _decided(self, numbers: Tensor, hidden: Tensor, manner: Manner) -> Tensor:
        """`_decide`, padded to a few sizes and replayed from a graph."""
        rows = len(hidden)
        if not self.graphs.on:
            return self._decide(numbers, hidden, manner)
        key, run, blank = self._deciding(bucket(rows), manner)
        spare, states = blank()
        states[:rows] = hidden
        return self.graphs(key, run, (torch.cat((numbers, spare[rows:])), states), blank)[:rows]

    def _go_on(self, rows: Sequence[Row]) -> list[Decision | None]:
        """The step of rows that all feed one decided token: the same kernels for all batches of a padded size, replayed from a graph."""
        batch = RaggedBatch.steps([row.appended for row in rows])
        given = [(int(row.ids[0]), row.slot, row.unit, True, False) for row in rows]
        numbers = self._upload(given + [(0, *self._padding)] * (batch.size - len(rows)))
        key, run, blank = self._going_on(batch, self._manner(rows))
        return [_decision(each) for each in self.graphs(key, run, (batch.packed, numbers), blank)[: len(rows)].tolist()]

    def warm_up(self, rows: int, pages: int) -> None:
        """Captures the steps of up to `rows` sessions that hold up to `pages` pages, drawn as by default; others are when first met."""
        if not self.graphs.on:
            return
        for size in (size for size in BUCKETS if size <= bucket(rows)):
            self.graphs.prepare(*self._deciding(size, Manner.NARROW))
            for wide in (wide for wide in WIDTHS if wide <= width(pages)):
                batch = RaggedBatch.blank(size, wide, gapped=False, device=self.pool.device)
                self.graphs.prepare(*self._going_on(batch, Manner.NARROW))

    @property
    def _padding(self) -> tuple[int, ...]:
        """What `_decide` needs to know of a row that nobody reads."""
        return self._spare, 0, 0, 0

    def _deciding(self, size: int, manner: Manner) -> _Graph:
        def run(numbers: Tensor, hidden: Tensor) -> Tensor:
            return self._decide(numbers, hidden, manner)

        def blank() -> tuple[Tensor, ...]:
            states = torch.zeros(size, self._embedding.shape[1], dtype=self.dtype, device=self.pool.device)
            return self._upload([self._padding] * size), states

        return ("decide", size, manner), run, blank

    def _going_on(self, batch: RaggedBatch, manner: Manner) -> _Graph:
        def run(packed: Tensor, numbers: Tensor) -> Tensor:
            hidden = self._decoder.forward(self._embedding[numbers[:, 0]], batch.over(packed))
            return self._decide(numbers[:, 1:], hidden, manner)

        def blank() -> tuple[Tensor, ...]:
            return torch.zeros_like(batch.packed), self._upload([(0, *self._padding)] * batch.size)

        return ("step", batch.size, batch.pages.shape[1], batch.gapped, manner), run, blank

    @torch.no_grad()
    def said(self, slots: Sequence[int], count: int) -> Tensor:
        """Hidden states of the first `count` tokens of the units of `slots`, on the host: [rows, count, hidden]; only of those fed."""
        return self._said[self._upload(slots), :count].cpu()

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [rows, vocabulary]."""
        return functional.linear(hidden, self._head).float()

    def _embed(self, rows: Sequence[Row]) -> Tensor:
        """[tokens, hidden]."""
        ids = np.concatenate([row.ids for row in rows])
        places = np.flatnonzero(ids == EMBEDDED)
        states = self._embedding[torch.from_numpy(ids.clip(0)).to(self.pool.device)]
        given = [part for row in rows for part in row.embeddings]
        if len(places) != sum(len(part) for part in given):
            raise ValueError(f"embeddings: {sum(len(part) for part in given)} for {len(places)} places")
        if given:
            states[torch.from_numpy(places).to(self.pool.device)] = torch.cat(given).to(states.dtype)
        return states

    def _manner(self, rows: Sequence[Row]) -> Manner:
        return self.sampler.manner(row.slot for row in rows)

    def _decide(self, numbers: Tensor, hidden: Tensor, manner: Manner) -> Tensor:
        """int64 [rows, 4]: token, ended, finite, drawn. `numbers` int64 [rows, 4]: slot, unit, goes on, turn is open."""
        slots, unit, goes_on, is_open = numbers.unbind(1)
        opening = goes_on == 0
        self.units.begin(slots, opening, is_open > 0)
        step = self.units.step[slots]
        # the state of a unit's last input goes to a place that nobody reads
        self._said[slots, torch.where(opening, MOST_UNIT_TOKENS, step - 1)] = hidden
        logits = self.logits(hidden)
        finite = logits.isfinite().all(-1)
        script = None if self._script is None else self._script(slots, unit, step)
        draws = Draws(self._seeds[slots], unit, step)
        drawn = self.sampler.sample(slots, logits, draws, self.units.draws(slots), script, manner)
        verdict = self.units.advance(slots, drawn)
        entered = torch.where(self.sampler.entered[slots], drawn, NOTHING)
        return torch.stack((verdict.token, verdict.ended, finite, entered), 1)

    def _upload(self, numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.pool.device)


def _decision(numbers: list[int]) -> Decision:
    token, ended, finite, drawn = numbers
    return Decision(token, bool(ended), bool(finite), drawn)


def _matrix(weights: Mapping[str, Tensor], name: str, config: LlmConfig) -> Tensor:
    found = weights.get(name)
    if found is None:
        raise WeightError(name, "missing")
    if tuple(found.shape) != (config.vocab_size, config.hidden_size):
        raise WeightError(name, f"shape {tuple(found.shape)}, not {(config.vocab_size, config.hidden_size)}")
    return found


def _decoder_config(config: LlmConfig) -> DecoderConfig:
    return DecoderConfig(
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        rms_eps=config.rms_eps,
        rope_theta=config.rope_theta,
        qk_norm=True,
    )
