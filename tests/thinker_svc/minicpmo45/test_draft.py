"""`<|speak|>` drafted with a unit's sound against the same sessions one token a step: tokens, texts, states, pages, all that is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from minicpmo45.config import tiny
from tests.support.graphs import RehearsedGraphs
from tests.thinker_svc.minicpmo45.clients import Client, run
from tests.thinker_svc.minicpmo45.language_support import CHUNK_EOS, LISTEN, LONG, SPEAK, TTS_BOS, TURN_EOS, embeddings
from tests.thinker_svc.minicpmo45.thinking import House, Talk, default_weights, states, vocabulary_of
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.row import Row
from thinker_svc.minicpmo45.sampler import HISTORY, Sampling
from thinker_svc.minicpmo45.session import OpenUnit, Overflow
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from thinker_svc.minicpmo45.stepper import NotFinite
from thinker_svc.minicpmo45.unit import UnitRules
from thinker_svc.minicpmo45.voice import VoiceRecording
from thinker_svc.minicpmo45.window import WindowRules
from torch_kit.decoder import rms_norm
from torch_kit.page_table import PageTable

HIDDEN = tiny().llm.hidden_size
FREE = -1
UNITS = (
    (SPEAK, FREE, FREE, TURN_EOS, CHUNK_EOS),
    (LISTEN,),
    (SPEAK, CHUNK_EOS),
    (SPEAK, LISTEN, FREE, CHUNK_EOS),
    (LISTEN, 65, CHUNK_EOS),
    (CHUNK_EOS,),
    (SPEAK, TURN_EOS, 66, CHUNK_EOS),
    (FREE, FREE, CHUNK_EOS),
    (SPEAK, LONG, LONG, LONG),
    (TURN_EOS, CHUNK_EOS),
    (TTS_BOS, 67, CHUNK_EOS),
    (SPEAK, SPEAK, FREE, CHUNK_EOS),
)
"""All that may become of a first and a second token."""


def _quiet(**changes: Any) -> SessionConfig:
    return SessionConfig(**{"force_listen_count": 0, "sampling": Sampling(greedy=True), **changes})


CONFIGS = (
    _quiet(),
    _quiet(sampling=Sampling(temperature=0.4), rules=UnitRules(4, 28), voice=VoiceRecording(b"", 16_000)),
    _quiet(sampling=Sampling(top_k=5), window=WindowRules("basic", 130, 70), force_listen_count=1, rules=UnitRules(20, 3)),
    _quiet(sampling=Sampling(top_k=40, listen_top_k=2), window=WindowRules("context", units=2, previous_tokens=5), rules=UnitRules(2, 28)),
)


def _sound(slot: int, unit: int) -> Tensor:
    return embeddings(HIDDEN, "audio", 1000 * slot + unit)


class Kept(NamedTuple):
    """All that a session leaves behind, but for numbers of pages and hidden states."""

    emitted: list[bytes]
    labels: list[Any]
    history: list[int]
    unit: list[int]
    session: list[Any]
    table: list[int]


def _unit(unit: OpenUnit | None) -> list[Any]:
    """What is known of it, but for its sound."""
    return [] if unit is None else [getattr(unit, each.name) for each in fields(unit) if each.name not in ("heard", "audio")]


def _kept(talk: Talk) -> tuple[Kept, list[Tensor]]:
    """The states: of thoughts, then keys and values of the context [layers, 2, heads, tokens, head_dim]."""
    session, model, row, table = talk.session, talk.house.model, talk.session.row, talk.session.table
    hidden, emitted = [], []
    for output in talk.outputs:
        if output.payload is not None and output.kind == "thought":
            hidden.append(states(output.payload.thought))
            output.payload.thought.hidden.data = b""
        emitted.append(output.payload.SerializeToString() if output.payload is not None else output.kind.encode())
    pieces = zip(table.pages, table.starts, table.stops, strict=True)
    cache = torch.cat([table.pool.storage[:, page, :, :, start:stop] for page, start, stop in pieces], 3)
    sampler, units = model.sampler, model.units
    history = sampler._history[row, : min(int(sampler._drawn[row]), HISTORY)].tolist()
    counted = [int(units.step[row]), int(units.length[row]), int(units.turn_open[row]), int(units._turn_ended[row])]
    told = [(output.label, output.last) for output in talk.outputs]
    known = [session.number, session.ended, session.receipts, session.close, session.turn, session.turn_label, session.fed_open]
    known += [session.force_listen, _unit(session.unit), list(session.window.spans), session.window.previous, type(session.failure)]
    places = [table.position, table.length, table.gap, table.page_count, *table.starts, *table.stops]
    return Kept(emitted, told, [int(sampler._drawn[row]), *history], counted, known, places), [*hidden, cache]


def _same(drafted: Talk, plain: Talk) -> None:
    _equal(_kept(drafted), _kept(plain))


def _equal(ours: tuple[Kept, list[Tensor]], theirs: tuple[Kept, list[Tensor]]) -> None:
    for name, one, other in zip(Kept._fields, ours[0], theirs[0], strict=True):
        assert one == other, name
    for mine, other in zip(ours[1], theirs[1], strict=True):
        assert mine.shape == other.shape and (not mine.numel() or (mine - other).abs().max() < 1e-5)


def _story(house: House, ticks: int = 9) -> list[Talk]:
    """Sessions that begin one after the other, hear at their own pace, see now and then; one is interrupted."""
    talks = {row: house.open(config, seed=10 + row, row=row) for row, config in enumerate(CONFIGS)}
    for tick in range(ticks):
        for row, talk in talks.items():
            if tick < row:
                continue
            if (tick + row) % 5 == 1 and tick > row:
                talk.see([embeddings(HIDDEN, "picture", row, tick, 1)])
            if (row, tick) in ((0, 5), (3, 9)):
                talk.session.break_off()
            talk.hear(1 + (row == 1 and tick % 4 == 3))
        # some wait a step longer than others, so that no phase keeps step
        for _ in range(3):
            ready = [talk.slot for talk in talks.values() if talk.session.next() is not None]
            if ready:
                house.stepper.step(ready[: 1 + tick % 4])
        house.run(talks.values())
    return list(talks.values())


def _house(checkpoint: Path, *, draft: bool, **changes: Any) -> House:
    given: dict[str, Any] = {"script": UNITS, "repeat": True, "stagger": 5, "sound": _sound, "pages": 12, **changes}
    return House(vocabulary_of(checkpoint), draft=draft, **given)


def _watch(house: House, seen: Callable[[list[Row]], None]) -> None:
    """Every batch of the house is shown."""
    whole = house.model.step

    def step(rows: Any, *rest: Any) -> Any:
        seen(rows)
        return whole(rows, *rest)

    house.model.step = step  # type: ignore[method-assign]


@pytest.mark.behaviour("N44", "S1")
def test_a_draft_changes_nothing_but_the_number_of_steps(tiny_checkpoint: Path) -> None:
    """Greedy and drawn, scripted and free, in all phases of one batch, over pictures, cuts, interruptions and all bounds of a unit."""
    plain = [_kept(talk) for talk in _story(_house(tiny_checkpoint, draft=False))]
    drafting, replaying = _house(tiny_checkpoint, draft=True), _house(tiny_checkpoint, draft=True)
    batches: list[list[Row]] = []
    _watch(drafting, batches.append)
    replaying.model.graphs = RehearsedGraphs()
    for house in (drafting, replaying):
        for talk, kept in zip(_story(house), plain, strict=True):
            _equal(_kept(talk), kept)
    mixes = {(any(row.draft for row in rows), any(row.goes_on for row in rows), any(row.unit < 0 for row in rows)) for rows in batches}
    assert mixes >= {(True, True, False), (True, False, True), (False, True, True)}


def test_a_unit_that_speaks_takes_a_step_less_and_one_that_listens_as_many(tiny_checkpoint: Path) -> None:
    for script, one_by_one, drafted in (((SPEAK, 65, 66, CHUNK_EOS), 4, 3), ((SPEAK, CHUNK_EOS), 2, 1), ((LISTEN,), 1, 1)):
        for draft, expected in ((False, one_by_one), (True, drafted)):
            house = _house(tiny_checkpoint, draft=draft, script=[script], slots=1)
            talk = house.open(_quiet())
            house.run([talk])
            talk.hear()
            assert house.run([talk]) == expected


def test_states_belong_to_the_tokens_that_were_fed(tiny_checkpoint: Path) -> None:
    """Spy weights: the state of a token is its own embedding, and names it."""
    weights = {
        name: torch.zeros_like(tensor) if "o_proj" in name or "down_proj" in name else tensor for name, tensor in default_weights().items()
    }
    script = [(SPEAK, 65, 66, CHUNK_EOS), (TTS_BOS, 67, 68, CHUNK_EOS), (SPEAK, 69, TURN_EOS, CHUNK_EOS), (SPEAK, *range(64, 84))]
    house = _house(tiny_checkpoint, draft=True, weights=weights, script=script, slots=2, stagger=1)
    talks = [house.open(_quiet()), house.open(_quiet())]
    for talk in talks:
        talk.hear(4)
    house.run(talks)
    embedding, norm = weights["llm.model.embed_tokens.weight"], weights["llm.model.norm.weight"]
    said = [list(thought.token_ids) for thought in talks[0].thoughts()]
    assert said == [[65, 66], [67, 68], [69, TURN_EOS], list(range(64, 82))]
    for thought in talks[0].thoughts() + talks[1].thoughts():
        named = rms_norm(embedding[list(thought.token_ids)], norm, house.config.llm.rms_eps)
        assert torch.allclose(states(thought), named, atol=1e-6)


@pytest.mark.behaviour("X9")
@pytest.mark.parametrize("mode", ["off", "basic", "context"])
def test_wrong_drafts_at_every_place_of_a_page_leave_nothing(mode: Any, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening units of 13 rows meet all 64 places; pages are few, so that units leave to make room or the session ends."""
    pages: list[int] = []
    rewind = PageTable.rewind

    def watched(table: PageTable, count: int) -> None:
        before = table.page_count
        rewind(table, count)
        pages.append(before - table.page_count)

    monkeypatch.setattr(PageTable, "rewind", watched)
    talks = []
    for draft in (True, False):
        house = _house(tiny_checkpoint, draft=draft, script=[(LISTEN,)], pages=5, slots=1)
        talks.append(house.open(_quiet(window=WindowRules(mode))))
        talks[-1].hear(70)
        house.run([talks[-1]])
    _same(*talks)
    assert isinstance(talks[0].session.failure, Overflow) if mode == "off" else len(pages) == 70
    assert 1 in pages or mode == "off"


def _break(house: House, call: int, row: int) -> None:
    """In one call the logits of one row are NaN."""
    whole, calls = house.model.logits, count(1)

    def logits(hidden: Tensor) -> Tensor:
        out = whole(hidden)
        if next(calls) == call:
            out[row] = torch.nan
        return out

    house.model.logits = logits  # type: ignore[method-assign]


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("behind", ["sound", "draft"])
def test_logits_that_are_not_finite_end_one_session_only(behind: str, tiny_checkpoint: Path) -> None:
    """Of three sessions, the second: what it was told before it failed is what it is told one token a step."""
    found = []
    for draft in (True, False):
        house = _house(tiny_checkpoint, draft=draft, script=[(SPEAK, 65, CHUNK_EOS)], stagger=0, slots=3)
        talks = [house.open(_quiet(), row=row) for row in range(3)]
        house.run(talks)
        for talk in talks:
            talk.hear()
        broken = (1, 1) if behind == "sound" else (1, 4) if draft else (2, 1)
        _break(house, *broken)
        house.run(talks)
        found.append(talks)
    for drafted, plain in zip(*found, strict=True):
        if drafted.session.failure is None:
            _same(drafted, plain)
    for _, failed, other in found:
        assert isinstance(failed.session.failure, NotFinite) and other.session.failure is None and other.session.number == 1
        assert failed.kinds() == ([] if behind == "sound" else ["speak"])
        assert failed.session.unit is not None and failed.session.unit.fed == ([] if behind == "sound" else [SPEAK])
    ours, theirs = (talks[1].session for talks in found)
    assert _unit(ours.unit) == _unit(theirs.unit) and ours.table.length == theirs.table.length and ours.fed_open == theirs.fed_open


@pytest.mark.parametrize("unit", [(SPEAK, 65, 66, CHUNK_EOS), (TURN_EOS, 65, CHUNK_EOS), (65, 66, CHUNK_EOS)])
def test_a_cancel_right_behind_a_draft_finds_what_it_finds_behind_the_same_tokens(unit: tuple[int, ...], tiny_checkpoint: Path) -> None:
    talks = []
    for draft in (True, False):
        house = _house(tiny_checkpoint, draft=draft, script=[(SPEAK, 64, CHUNK_EOS), unit, (SPEAK, 67, CHUNK_EOS)], slots=1)
        talk = house.open(_quiet())
        house.run([talk])
        talk.hear()
        house.run([talk])
        talk.hear(3)
        for _ in range(1 if draft or unit[0] != SPEAK else 2):
            house.stepper.step([talk.slot])
        broken = talk.session.break_off()
        assert broken is not None and broken.tokens == list(unit[: 1 + (unit[0] == SPEAK)])
        house.run([talk])
        talks.append(talk)
    _same(*talks)


def test_units_of_a_log_are_fed_as_they_were_and_what_follows_is_drafted(tiny_checkpoint: Path) -> None:
    first = _house(tiny_checkpoint, draft=False, slots=1).open(_quiet())
    first.hear(5)
    first.house.run([first])
    talks, drafts = [], []
    for draft in (True, False):
        house = _house(tiny_checkpoint, draft=draft, slots=1)
        _watch(house, lambda rows: drafts.extend(row.draft for row in rows))
        talks.append(house.open(_quiet(unit_log=first.log())))
        talks[-1].hear(8)
        house.run([talks[-1]])
    _same(*talks)
    # the log ends in mid-turn, which ends by listening
    assert talks[0].session.ended == 8 and sum(drafts) == 2


def test_a_failed_forward_takes_its_drafts_back(tiny_checkpoint: Path) -> None:
    talks = []
    for fails in (True, False):
        house, steps = _house(tiny_checkpoint, draft=True), count(1)

        def fail(_: Any, fails: bool = fails, steps: Any = steps) -> None:
            if fails and next(steps) % 3 == 0:
                raise RuntimeError("out of memory")

        _watch(house, fail)
        talks.append([house.open(config, row=row) for row, config in enumerate(CONFIGS)])
        for talk in talks[-1]:
            talk.hear(3)
        while ready := [talk.slot for talk in talks[-1] if talk.session.next() is not None]:
            try:
                house.stepper.step(ready)
            except RuntimeError:
                continue
    for broken, whole in zip(*talks, strict=True):
        _same(broken, whole)


def test_the_engine_drafts_where_it_is_told_to(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"units": [["speak", 65, 66, "chunk_eos"], ["speak", 67, "turn_eos", "chunk_eos"], ["listen"]]}))
    monkeypatch.setenv("PARLEY_CHECKPOINT", str(tiny_checkpoint))
    clients, steps = [], []
    for draft in ("false", "true"):
        monkeypatch.setenv("PARLEY_THINKER_DRAFT", draft)
        engine = MiniCpmThinkerEngine(MiniCpmThinkerSettings(slots=1, window_tokens=512, script=script))
        engine.load()
        client = Client(engine, "one")
        run(client)
        client.units(3)
        steps.append(run(client))
        clients.append(client)
    plain, drafted = clients
    assert steps == [9, 7] and drafted.kinds() == plain.kinds() and drafted.receipts() == plain.receipts()
    assert [list(thought.token_ids) for thought in drafted.thoughts()] == [[65, 66], [67, TURN_EOS]]


def test_what_is_captured_at_start_is_what_is_met(tiny_checkpoint: Path) -> None:
    house = _house(tiny_checkpoint, draft=True, slots=3)
    graphs = house.model.graphs = RehearsedGraphs()
    house.model.warm_up(3, 8, draft=True)
    before = set(graphs.prepared)
    talks = [house.open(SessionConfig(force_listen_count=0), seed=row, row=row) for row in range(3)]
    for heard in (talks, talks[:1], talks):
        for talk in heard:
            talk.hear()
        house.run(talks)
    assert {key[2] for key in graphs.keys if key[0] == "decide"} >= {1, 4} and set(graphs.keys) <= before
