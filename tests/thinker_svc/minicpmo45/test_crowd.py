"""Sessions in a crowd against each of them alone: random schedules of all that happens to them, in slots that are used again at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from parley_stage.v1 import stage_pb2
from torch import Tensor

from stage_kit import Label, SessionOver
from tests.thinker_svc.minicpmo45.clients import Client, picture
from tests.thinker_svc.minicpmo45.thinking import states
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.session import Kind, Session
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

FREE = [None] * 20
UNITS = [
    *(["listen"], FREE, [None, None, "turn_eos"], ["speak", None, None, "chunk_eos"], ["speak", "turn_eos"], FREE),
    *([None, "listen", None, "turn_eos"], ["speak", 65, 66, "turn_eos"], ["speak", "speak"], ["turn_eos"], ["chunk_eos"]),
]
CONFIGS: tuple[dict[str, Any], ...] = (
    {"greedy": True, "max_new_tokens_per_unit": 5},
    {"temperature": 0.05, "top_k": 64, "top_p": 1.0, "max_new_tokens_per_unit": 6, "window_high_tokens": 240, "window_low_tokens": 160},
    {"top_k": 65, "force_listen_count": 1, "max_new_tokens_per_unit": 4, "instructions": "x" * 200},
    {"window": "context", "window_units": 1, "window_previous_tokens": 20, "max_new_tokens_per_unit": 4, "instructions": ""},
    {"voice": "HT_ref_audio", "top_k": 0, "max_new_tokens_per_unit": 3, "window": "off"},
)
UPDATES: tuple[dict[str, Any], ...] = (
    {"instructions": "Other."},
    {"max_new_tokens_per_unit": 9, "temperature": 0.3},
    {"max_new_tokens_per_unit": 2, "top_k": 70},
    {"force_listen_count": 5},
    {"window": "context", "window_units": 1},
)
PLACES = 3
Event = tuple[Any, ...]
Made = tuple[tuple[Any, ...], Tensor | None]
EVENT = st.one_of(
    *[st.tuples(st.just("sound"), st.sampled_from([20, 500, 1000, 1030, 1400]))] * 5,
    st.tuples(st.just("frame"), st.sampled_from([-1500, -50, 100, 900, 2500]), st.sampled_from([0, 2])),
    st.tuples(st.just("update"), st.sampled_from(UPDATES)),
    st.sampled_from([("cancel",), ("cancel", "seen late"), ("clear",), ("close_unit",), ("skip",), ("go_on",), ("end",)]),
)
TURN = st.tuples(
    st.lists(st.tuples(st.integers(0, PLACES - 1), EVENT), max_size=4),
    # places that are in a step, as bits; 8: its forward fails first; then sound that comes to a place while the device works
    st.lists(
        st.tuples(st.integers(1, 15), st.none() | st.tuples(st.integers(0, PLACES - 1), st.sampled_from([500, 1030, 1400]))), max_size=5
    ),
)


class Life:
    """A session from its opening to its end, and what happened to it on the way."""

    def __init__(self, engine: MiniCpmThinkerEngine, number: int) -> None:
        self.number = number
        self.client = Client(engine, "x" * (1 + number), **CONFIGS[number % len(CONFIGS)])
        self.events: list[Event] = []
        self.why = ""

    @property
    def session(self) -> Session:
        found: Session = self.client.slot.state
        return found

    @property
    def prepares(self) -> bool:
        """Its prefix is made, which takes it fewer steps where another has made it."""
        return self.session.prefix is not Kind.UNIT and not self.session.begun

    @property
    def heard(self) -> bool:
        """The sound of its next unit."""
        return self.session.unit is not None and self.session.unit.audio is not None

    @property
    def ready(self) -> bool:
        return not self.why and self.client.engine.ready(self.client.slot) is not None

    def happens(self, event: Event) -> None:
        client, session, what = self.client, self.session, event[0]
        if what == "sound":
            client.sound(event[1])
        elif what == "frame":
            client.frame(max(0, client._ms + event[1]), PICTURE, max_slices=event[2])
            for frame in session.camera.frames:
                frame.decoded.exception()
        elif what == "update":
            client.update(**{**CONFIGS[self.number % len(CONFIGS)], **event[1]})
        elif what == "ahead":
            client.engine._stepper._hear_ahead([session])
        elif what == "cancel" and event[1:]:
            client.slot.epoch += 1
        elif what == "cancel":
            client.cancel()
        elif what == "clear":
            client.engine.cleared(client.slot)
        elif what == "skip":
            client.skip_silence(session.gather.start_ms, session.gather.start_ms + 400)
        elif what == "close_unit":
            client.close_unit(session.gather.start_ms + 1000)
        elif session.turn_label is not None:
            client.go_on(session.gather.start_ms + 1000, Label(client.slot.epoch, session.turn_label.turn))
        self.events.append(event)

    def ends(self) -> None:
        """What it leaves in its slot is spoilt."""
        row, engine = self.session.row, self.client.engine
        engine.close(self.client.slot)
        _spoil(engine, row)

    def made(self) -> list[Made]:
        """All that it told, hidden states apart."""
        found: list[Made] = []
        for output in self.client.outputs:
            hidden, payload = None, stage_pb2.Payload()
            if output.payload is not None:
                payload.CopyFrom(output.payload)
            if output.kind == "thought":
                hidden = states(payload.thought) if payload.thought.token_ids else None
                payload.thought.hidden.data = b""
            told = [each.SerializeToString() for each in (output.unit, output.finish) if each is not None]
            found.append(((output.kind, output.label, output.last, payload.SerializeToString(), *told), hidden))
        return found


PICTURE = picture()


def _step(lives: list[Life], *, fails: bool = False) -> None:
    """As the kit does it: a batch that failed is stepped one by one, who is over ends."""
    engine = lives[0].client.engine
    if fails:
        whole, place, made_room = engine._model.step, engine._stepper._place, list[Session]()

        def placed(job: Any) -> bool:
            found = place(job)
            made_room.extend([] if found else [job.session])
            return found

        engine._model.step, engine._stepper._place = _failing, placed  # type: ignore[assignment, method-assign]
        try:
            engine.step([life.client.slot for life in lives])
        except SessionOver as over:
            _over(lives, over)
        except RuntimeError:
            pass
        finally:
            engine._model.step, engine._stepper._place = whole, place  # type: ignore[method-assign]
        for life in lives:
            # units leave before the forward: it fed nothing anyway, and is a step further
            life.events += [("step",)] if life.session in made_room and life.session.failure is None else []
        lives = [life for life in lives if life.ready]
    for some in [[life] for life in lives] if fails else [lives]:
        try:
            engine.step([life.client.slot for life in some])
        except SessionOver as over:
            _over(some, over)


def _failing(*_: object) -> Any:
    raise RuntimeError("out of memory")


def _over(lives: list[Life], over: SessionOver) -> None:
    next(life for life in lives if life.client.slot is over.slot).why = over.why


@contextmanager
def _meanwhile(engine: MiniCpmThinkerEngine, life: Life | None, ms: int, stepped: list[Life]) -> Iterator[None]:
    """Sound comes to a session while the device works."""
    came: list[bool] = []

    def sound(_: object) -> None:
        if not came and life is not None:
            came.append(True)
            life.happens(("sound", ms))

    heard = life is not None and life.heard
    engine.on_wait(sound)
    yield
    engine.on_wait(lambda _: None)
    if life is not None and life not in stepped and life.heard and not heard:
        life.events.append(("ahead",))


def _crowd(engine: MiniCpmThinkerEngine, schedule: list[Any]) -> list[Life]:
    places: list[Life | None] = [None] * PLACES
    lives: list[Life] = []
    for events, steps in schedule:
        for place, event in events:
            life = places[place]
            if life is None:
                life = places[place] = Life(engine, len(lives))
                lives.append(life)
            if event == ("end",):
                life.ends()
                places[place] = None
            else:
                life.happens(event)
        for bits, sudden in steps:
            chosen = [life for place, life in enumerate(places) if life is not None and bits >> place & 1 and life.ready]
            if not chosen:
                continue
            prepared = [life for life in chosen if life.prepares]
            for life in chosen:
                life.events += [] if life in prepared else [("step",)]
            fails = bool(bits & 8) and len(chosen) > 1
            place, ms = sudden or (0, 0)
            hears = places[place] if sudden is not None else None
            # a prefix takes as many steps as others leave it, and a batch that failed more than one
            with _meanwhile(engine, None if hears in prepared or (fails and hears in chosen) else hears, ms, chosen):
                _step(chosen, fails=fails)
            for place, life in enumerate(places):
                if life in prepared and not life.prepares and not life.why:
                    life.events.append(("prepared",))
                elif life is not None and life.why:
                    life.ends()
                    places[place] = None
    for life in places:
        if life is not None:
            life.ends()
    return lives


def _alone(engine: MiniCpmThinkerEngine, crowded: Life) -> Life:
    life = Life(engine, crowded.number)
    # what is begun a little earlier makes a difference to these alone
    early = any(event[0] in ("clear", "update") for event in crowded.events)
    for event in crowded.events:
        if event[0] == "ahead" and not early:
            continue
        if event[0] == "step":
            assert life.ready
            _step([life])
        elif event[0] == "prepared":
            while life.prepares:
                _step([life])
        else:
            life.happens(event)
    life.ends()
    return life


def _spoil(engine: MiniCpmThinkerEngine, row: int) -> None:
    """With what differs from house to house."""
    perception, decider = engine._perception, engine._model._decider
    perception.cache[:, row] = torch.nan
    perception.mel_state.tail[row] = perception.mel_state.loudest[row] = torch.nan
    decider.states[row] = torch.nan
    decider.units.step[row], decider.units.length[row], decider.units.turn_open[row], decider.units._turn_ended[row] = 50, 900, True, True
    decider.sampler._history[row], decider.sampler._drawn[row] = 65 + engine.card.slots, 700 + row


@cache
def _engine(checkpoint: Path, folder: Path, slots: int) -> MiniCpmThinkerEngine:
    """Whose free pages and slots are spoilt."""
    torch.set_num_threads(1)
    script = folder / "script.json"
    script.write_text(json.dumps({"units": UNITS}))
    engine = MiniCpmThinkerEngine(
        MiniCpmThinkerSettings(checkpoint=checkpoint, script=script, slots=slots, window_tokens=512, draft=True, kernels="plain")
    )
    engine.load()
    engine._pool._poison = True
    engine._pool.spoil(engine._pool._stock)
    for row in range(slots):
        _spoil(engine, row)
    return engine


@pytest.fixture(scope="module")
def engines(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], MiniCpmThinkerEngine]:
    folder = tmp_path_factory.mktemp("script")
    return lambda slots: _engine(tiny_checkpoint, folder, slots)


@pytest.mark.behaviour("S1", "S2")
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck))
@given(schedule=st.lists(TURN, min_size=5, max_size=12))
def test_nobody_hears_of_the_others(schedule: list[Any], engines: Callable[[int], MiniCpmThinkerEngine]) -> None:
    """Sound, pictures, cancels, clears, updates, ends and failures at any point between steps of any few of them."""
    for crowded in _crowd(engines(PLACES), schedule):
        alone = _alone(engines(1), crowded)
        ours, theirs = crowded.made(), alone.made()
        assert [told for told, _ in ours] == [told for told, _ in theirs] and crowded.why == alone.why
        for (_, mine), (_, other) in zip(ours, theirs, strict=True):
            assert (mine is None) == (other is None) and (mine is None or other is None or (mine - other).abs().max() < 1e-3)
    for slots in (1, PLACES):
        pool = engines(slots)._pool
        assert pool.held == 0 and pool.free == pool.pages - 1
