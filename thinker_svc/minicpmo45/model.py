"""The language model of the thinker: one ragged forward for rows in all phases, and the decisions of those that speak next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import LlmConfig
from thinker_svc.minicpmo45.decider import Decider, deciding_tokens
from thinker_svc.minicpmo45.row import Deciding, Decisions, Row, token_ids
from thinker_svc.minicpmo45.sampler import Manner, Sampling
from thinker_svc.minicpmo45.script import Script
from thinker_svc.minicpmo45.template import AUDIO_ROWS
from thinker_svc.minicpmo45.unit import UnitRules
from thinker_svc.minicpmo45.vocabulary import Vocabulary
from torch_kit.aside import Aside
from torch_kit.decoder import Decoder, DecoderConfig, WeightError
from torch_kit.graphs import Graphs
from torch_kit.pages import PagePool
from torch_kit.ragged import BUCKETS, WIDTHS, RaggedBatch, bucket, width
from torch_kit.staging import Staging
from torch_kit.tiles import Tiling

if TYPE_CHECKING:
    from stage_kit import Wait

    # its kernels are of Triton, which the plain path does without
    from thinker_svc.minicpmo45.fused_step import FusedStep

PREFIX = "llm.model."
_UNIT_ROWS = AUDIO_ROWS + 3
"""What ends the unit before, `<unit>`, sound."""
_WARM_SAID = 8
"""Tokens that a unit says, as a rule, at most."""
_Graph = tuple[Hashable, Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]
"""Key, function and blank inputs of a graph."""


class ThinkerModel:
    """Weights, pages, and the slot-indexed state of sampler and units. `weights`: the tensors `llm.*` of one dtype on one device.

    Keys and values lie in `pool`, which the caller sizes; tables of pages are the caller's. `plain`: no graphs. `tiling`: batches are cut
    so for the fused decoder; None: the plain one. Raises WeightError, and ValueError: sizes or a device that the fused one does not serve.
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
        tiling: Tiling | None = None,
    ) -> None:
        self.pool = pool
        self.vocabulary = vocabulary
        self._embedding = _matrix(weights, f"{PREFIX}embed_tokens.weight", config)
        self._head = _matrix(weights, "llm.lm_head.weight", config)
        self.graphs = Graphs(pool.device, plain=plain)
        self._decider = Decider(vocabulary, slots, config.hidden_size, self.dtype, pool.device, script)
        self.sampler, self.units = self._decider.sampler, self._decider.units
        llm = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items() if name.startswith(PREFIX)}
        self._judge = self._decider.decide
        self._staging = Staging(pool.device)
        self._aside = Aside(pool.device)
        self._fused: FusedStep | None = None
        if tiling is None:
            self._decoder = Decoder(llm, decoder_config(config), pool)
        else:
            self._fused = self._fuse(llm, decoder_config(config), tiling)

    def _fuse(self, llm: Mapping[str, Tensor], config: DecoderConfig, tiling: Tiling) -> FusedStep:
        from thinker_svc.minicpmo45.fused_decider import FusedDecider
        from thinker_svc.minicpmo45.fused_step import FusedStep
        from torch_kit.fused_decoder import FusedDecoder

        decoder = FusedDecoder(llm, config, self.pool)
        self._judge = FusedDecider(self._decider, self.vocabulary.tokens).decide
        return FusedStep(decoder, self._embedding, self._decide, self._decider.padding, tiling)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and hidden states."""
        return self._embedding.dtype

    def tune(self, slot: int, sampling: Sampling, rules: UnitRules, seed: int) -> None:
        """A slot's settings, from its next token on."""
        self._decider.tune(slot, sampling, rules, seed)

    def forget(self, slot: int) -> None:
        """Another session begins in this slot."""
        self.sampler.forget(slot)

    def recall(self, slot: int, drawn: Sequence[int]) -> None:
        """Tokens that the session drew elsewhere, oldest first: its repetition penalty knows them from now on."""
        self.sampler.observe(slot, drawn)

    @torch.no_grad()
    def step(self, rows: Sequence[Row], waiting: Wait = lambda _: None) -> list[Decisions]:
        """Forwards all rows; each one's decisions: none of rows that decide nothing, two of rows whose draft was right. `waiting` is called
        while the device works.

        The hidden state of every row's last token is kept for `said`, under the number of the token that was fed; a wrong draft's is not.
        """

        def launched(done: Callable[[], bool]) -> None:
            self._aside.follow()
            waiting(done)

        if self._fused is not None:
            return self._fused(rows, self.sampler.manner, self.graphs, launched)
        if self.graphs.on and all(row.goes_on for row in rows):
            return self._go_on(rows, launched)
        batch = RaggedBatch.of([row.appended for row in rows], [False] * len(rows))
        deciding = Deciding.of(rows)
        # uploads wait for what runs on the device: they come before the forward
        numbers = self._upload(deciding.numbers)
        hidden = self._decoder.forward(self._embed(rows), batch)
        if not deciding.rows:
            return [()] * len(rows)
        manner = self._manner(row for row in rows if row.unit >= 0)
        packed = self._decided(numbers, hidden[deciding_tokens(numbers, deciding.drafts)], manner)
        launched(self._aside.over)
        return deciding.answers(len(rows), packed.cpu().numpy(), len(deciding.rows))

    def _decided(self, numbers: Tensor, hidden: Tensor, manner: Manner) -> Tensor:
        """`_decide`, padded to a few sizes and replayed from a graph."""
        if not self.graphs.on:
            return self._decide(numbers, hidden, manner)
        rows, drafts = len(numbers), len(hidden) - len(numbers)
        size = bucket(rows)
        key, run, blank = self._deciding(size, bucket(drafts) if drafts else 0, manner)
        spare, states = blank()
        states[:rows], states[size : size + drafts] = hidden[:rows], hidden[rows:]
        out = self.graphs(key, run, (torch.cat((numbers, spare[rows:])), states), blank)
        return torch.cat((out[:rows], out[size : size + drafts]))

    def _go_on(self, rows: Sequence[Row], launched: Wait) -> list[Decisions]:
        """The step of rows that all feed one decided token: the same kernels for all batches of a padded size, replayed from a graph."""
        batch = RaggedBatch.steps([row.appended for row in rows])
        deciding = Deciding.of(rows)
        ids = [int(row.ids[0]) for row in rows]
        given = np.column_stack((ids, deciding.numbers)).tolist()
        numbers = self._upload(given + [(0, *self._decider.padding)] * (batch.size - len(rows)))
        key, run, blank = self._going_on(batch, self._manner(rows))
        packed = self.graphs(key, run, (batch.packed, numbers), blank)[: len(rows)]
        launched(self._aside.over)
        return deciding.answers(len(rows), packed.cpu().numpy(), len(rows))

    def warm_up(self, rows: int, pages: int, *, draft: bool = False) -> None:
        """Captures the steps of up to `rows` sessions that hold up to `pages` pages, drawn as by default; others are when first met.

        Of the fused decoder: the steps of any pages, as long as no picture is seen.
        """
        if not self.graphs.on:
            return
        for _ in range(2):
            # memory that the host pins for them
            self.said(range(rows), _WARM_SAID)
        if self._fused is not None:
            for shape in sorted(self._fused.shapes(rows, _UNIT_ROWS, Manner.NARROW, draft=draft), reverse=True):
                self._fused.prepare(self.graphs, shape)
            return
        for size in (size for size in BUCKETS if size <= bucket(rows)):
            for drafts in (0, *(count for count in BUCKETS if draft and count <= size)):
                self.graphs.prepare(*self._deciding(size, drafts, Manner.NARROW))
            for wide in (wide for wide in WIDTHS if wide <= width(pages)):
                batch = RaggedBatch.blank(size, wide, gapped=False, device=self.pool.device)
                self.graphs.prepare(*self._going_on(batch, Manner.NARROW))

    def _deciding(self, size: int, drafts: int, manner: Manner) -> _Graph:
        def run(numbers: Tensor, hidden: Tensor) -> Tensor:
            return self._decide(numbers, hidden, manner)

        def blank() -> tuple[Tensor, ...]:
            states = torch.zeros(size + drafts, self._embedding.shape[1], dtype=self.dtype, device=self.pool.device)
            return self._upload([self._decider.padding] * size), states

        return ("decide", size, drafts, manner), run, blank

    def _going_on(self, batch: RaggedBatch, manner: Manner) -> _Graph:
        def run(packed: Tensor, numbers: Tensor) -> Tensor:
            hidden = self._decoder.forward(self._embedding[numbers[:, 0]], batch.over(packed))
            return self._decide(numbers[:, 1:], hidden, manner)

        def blank() -> tuple[Tensor, ...]:
            return torch.zeros_like(batch.packed), self._upload([(0, *self._decider.padding)] * batch.size)

        return ("step", batch.size, batch.pages.shape[1], batch.gapped, manner), run, blank

    @torch.no_grad()
    def said(self, slots: Sequence[int], count: int) -> Tensor:
        """Hidden states of the first `count` tokens of the units of `slots`, on the host: [rows, count, hidden]; only of those fed.

        The next call but one overwrites them. What was launched behind the last step is not waited for.
        """
        with self._aside:
            self._staging.begin()
            try:
                chosen = self._staging.take("slots", (len(slots),), torch.int64)
                chosen.numpy()[:] = slots
                states = self._decider.said(chosen.to(self.pool.device, non_blocking=True), count)
                out = self._staging.take("states", tuple(states.shape), states.dtype).copy_(states, non_blocking=True)
                self._staging.end().wait()
            except Exception:
                self._staging.undo()
                raise
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocabulary], of the weights' dtype."""
        return functional.linear(hidden, self._head)

    def _embed(self, rows: Sequence[Row]) -> Tensor:
        """[tokens, hidden]."""
        ids, places = token_ids(rows)
        states = self._embedding[torch.from_numpy(ids.clip(0)).to(self.pool.device)]
        given = [part for row in rows for part in row.embeddings]
        if given:
            states[torch.from_numpy(places).to(self.pool.device)] = torch.cat(given).to(states.dtype)
        return states

    def _manner(self, rows: Iterable[Row]) -> Manner:
        return self.sampler.manner(row.slot for row in rows)

    def _decide(self, numbers: Tensor, hidden: Tensor, manner: Manner) -> Tensor:
        """See `Decider.decide`."""
        return self._judge(numbers, hidden, self.logits(hidden), manner)

    def _upload(self, numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.pool.device)


def _matrix(weights: Mapping[str, Tensor], name: str, config: LlmConfig) -> Tensor:
    found = weights.get(name)
    if found is None:
        raise WeightError(name, "missing")
    if tuple(found.shape) != (config.vocab_size, config.hidden_size):
        raise WeightError(name, f"shape {tuple(found.shape)}, not {(config.vocab_size, config.hidden_size)}")
    return found


def decoder_config(config: LlmConfig) -> DecoderConfig:
    """The decoder's sizes."""
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
