"""Sessions of the thinker without the kit: the real model, stepper and state, and embeddings of sound that a test gives."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from parley_stage.v1 import stage_pb2
from torch import Tensor

from minicpmo45.config import Config, tiny
from stage_kit import Append, Label, Slot, Wait
from stage_kit.outputs import Output
from tests.thinker_svc.minicpmo45.language_support import embeddings, llm_weights
from thinker_svc.minicpmo45.camera import Frame
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.frames import Picture
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES
from thinker_svc.minicpmo45.model import ThinkerModel
from thinker_svc.minicpmo45.note import Note, read_log
from thinker_svc.minicpmo45.prefixes import Prefixes
from thinker_svc.minicpmo45.row import Decisions, Row
from thinker_svc.minicpmo45.script import Script
from thinker_svc.minicpmo45.session import Session
from thinker_svc.minicpmo45.stepper import Stepper
from thinker_svc.minicpmo45.vocabulary import Vocabulary
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool
from torch_kit.tiles import Tiling

Sound = Callable[[int, int], Tensor]
"""(slot, unit) to [10, hidden]."""


class GivenPerception:
    """Hears what the test says; the voice is the one of the fixtures."""

    def __init__(self, hidden: int, sound: Sound | None = None) -> None:
        self._hidden = hidden
        self._sound = sound or (lambda _, unit: embeddings(hidden, "audio", unit))
        self._heard: dict[int, int] = {}

    def hear(self, slots: Sequence[int], samples: Sequence[Any], first: Sequence[bool]) -> Tensor:
        made = []
        for slot, begins in zip(slots, first, strict=True):
            unit = self._heard[slot] = 0 if begins else self._heard[slot] + 1
            made.append(self._sound(slot, unit))
        return torch.stack(made)

    def see(self, pictures: Sequence[Picture]) -> list[Tensor]:
        raise AssertionError("the test gives pictures as embeddings")

    def reference(self, samples: Any) -> Tensor:
        return embeddings(self._hidden, "voice")


class RecordingModel(ThinkerModel):
    """Keeps the logits of every decision, and the ids that each slot was fed."""

    columns: Tensor | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        found = super().logits(hidden)
        self.seen.append(found if self.columns is None else found[:, self.columns])
        return found

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Tensor] = []
        self.fed: dict[int, list[int]] = {}

    def step(self, rows: Sequence[Row], waiting: Wait = lambda _: None) -> list[Decisions]:
        decisions = super().step(rows, waiting)
        for row in rows:
            self.fed.setdefault(row.slot, []).extend(row.ids.tolist())
        return decisions


class House:
    """A model and its sessions."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        slots: int = 4,
        pages: int = 40,
        script: Sequence[Sequence[int]] | None = None,
        weights: dict[str, Tensor] | None = None,
        config: Config | None = None,
        sound: Sound | None = None,
        stagger: int = 0,
        repeat: bool = False,
        poison: bool = True,
        draft: bool = False,
        fused: bool = False,
    ) -> None:
        torch.set_num_threads(1)
        self.config = config or tiny()
        self.vocabulary = vocabulary
        self.reserve = pages
        llm = self.config.llm
        self.pool = PagePool(layers=llm.layers, kv_heads=llm.kv_heads, head_dim=llm.head_dim, pages=slots * pages + 1, poison=poison)
        table = None if script is None else Script(_table(script), repeat=repeat, stagger=stagger)
        tiling = Tiling(pages=pages, rows=slots) if fused else None
        self.model = RecordingModel(weights or default_weights(), llm, vocabulary, self.pool, slots, table, tiling=tiling)
        self.perception = GivenPerception(llm.hidden_size, sound)
        self.prefixes = Prefixes()
        self.now = 0.0
        perception: Any = self.perception
        self.stepper = Stepper(self.model, perception, self.prefixes, self.config.vision.queries, lambda: self.now, draft=draft)
        self._rows = list(range(slots))[::-1]

    def open(self, config: SessionConfig, seed: int = 1, row: int | None = None) -> Talk:
        """Another session."""
        row = self._rows.pop() if row is None else row
        self._rows = [each for each in self._rows if each != row]
        return Talk(self, config, seed, row)

    def run(self, talks: Iterable[Talk]) -> int:
        """Steps until nobody has anything to do; how many steps."""
        steps = 0
        while ready := [talk.slot for talk in talks if talk.session.failure is None and talk.session.next() is not None]:
            self.stepper.step(ready)
            steps += 1
        return steps


class Talk:
    """One session and what it emitted."""

    def __init__(self, house: House, config: SessionConfig, seed: int, row: int) -> None:
        self.house = house
        self.outputs: list[Output] = []
        self.slot = Slot(f"session {row}", config, self.outputs.append, lambda: None, 1 << 24, None)
        table = PageTable(house.pool, house.reserve)
        self.session = Session(row, table, house.reserve, config, house.vocabulary, 4, house.now)
        self.slot.state = self.session
        house.model.forget(row)
        house.model.tune(row, config.sampling, config.rules, seed)
        self._pushed = 0

    def hear(self, units: int = 1) -> None:
        """Sound of so many units comes."""
        for _ in range(units):
            count = FIRST_SAMPLES if self._pushed == 0 else UNIT_SAMPLES
            start = self._pushed // 16
            self._pushed += count
            self.session.gather.push(np.zeros(count, np.float32), start, self._pushed // 16, self.house.now)

    def see(self, pictures: Sequence[Tensor]) -> None:
        """Pictures of the open unit come, as embeddings."""
        for picture in pictures:
            decoded: Future[Picture] = Future()
            decoded.set_result(Picture((), None))
            append = Append("camera", 1, Label(), False, None)
            self.session.camera.frames.append(Frame(self.session.gather.start_ms, append, decoded, picture))

    def close(self) -> None:
        self.session.table.release()
        self.house.prefixes.tidy()

    def kinds(self) -> list[str]:
        """What was emitted, by name, but for notes: decisions by their kind."""
        return [_kind(output) for output in self.outputs if output.kind != "unit_note"]

    def log(self, vocab_size: int = 151_748) -> tuple[Note, ...]:
        """What was noted, as a stage placed anew would read it."""
        return read_log(told(self.outputs), vocab_size)

    def thoughts(self) -> list[stage_pb2.Thought]:
        return [output.payload.thought for output in self.outputs if output.payload is not None and output.kind == "thought"]

    def text(self) -> str:
        return "".join(output.payload.text.text for output in self.outputs if output.payload is not None and output.kind == "text")


def told(outputs: Sequence[Output]) -> list[str]:
    """The notes among the outputs, as a stage placed anew is told of them."""
    notes = [output.payload.unit_note for output in outputs if output.payload is not None and output.kind == "unit_note"]
    return [base64.b64encode(msgspec.msgpack.encode((note.start_ms, note.end_ms, note.data))).decode() for note in notes]


def states(thought: stage_pb2.Thought) -> Tensor:
    """[tokens, hidden]."""
    data = np.frombuffer(thought.hidden.data, np.float32)
    return torch.from_numpy(data.copy()).view(*thought.hidden.shape)


@cache
def default_weights() -> dict[str, Tensor]:
    """Made once; never change them."""
    return llm_weights(tiny())


@cache
def vocabulary_of(checkpoint: Path) -> Vocabulary:
    return Vocabulary.read(checkpoint, tiny().llm.vocab_size)


def _table(script: Sequence[Sequence[int]]) -> Tensor:
    steps = max(map(len, script)) + 1
    return torch.tensor([[*unit, *[-1] * (steps - len(unit))] for unit in script])


def _kind(output: Output) -> str:
    if output.kind == "decision" and output.payload is not None:
        return stage_pb2.Decision.Kind.Name(output.payload.decision.kind).removeprefix("KIND_").lower()
    return output.kind
