"""Sessions side by side in one forward: each is what it would be alone, and what fails fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minicpmo45.config import tiny
from tests.thinker_svc.minicpmo45.language_support import CHUNK_EOS, LISTEN, SPEAK, TURN_EOS, embeddings
from tests.thinker_svc.minicpmo45.thinking import House, Talk, default_weights, states, vocabulary_of
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.sampler import Sampling
from thinker_svc.minicpmo45.session import Overflow
from thinker_svc.minicpmo45.stepper import NotFinite
from thinker_svc.minicpmo45.template import EMBEDDED
from thinker_svc.minicpmo45.unit import UnitRules
from thinker_svc.minicpmo45.voice import VoiceRecording
from thinker_svc.minicpmo45.window import WindowRules
from torch_kit.decoder import rms_norm

HIDDEN = tiny().llm.hidden_size
UNIT_END, UNIT = 151_684, 151_683
GREEDY = Sampling(greedy=True)
FREE = -1
PHASES = ((SPEAK, FREE, FREE, TURN_EOS, CHUNK_EOS), (LISTEN,), (SPEAK, FREE, CHUNK_EOS), (FREE, FREE, FREE, FREE, TURN_EOS, CHUNK_EOS))


def _quiet(**fields: Any) -> SessionConfig:
    return SessionConfig(**{"force_listen_count": 0, "sampling": GREEDY, **fields})


def _sound(slot: int, unit: int) -> Tensor:
    return embeddings(HIDDEN, "audio", 1000 * slot + unit)


CONFIGS = (
    _quiet(),
    _quiet(sampling=Sampling(temperature=0.4), rules=UnitRules(4, 28), voice=VoiceRecording(b"", 16_000)),
    _quiet(sampling=Sampling(top_k=5), window=WindowRules("basic", 130, 70), force_listen_count=1),
    _quiet(window=WindowRules("context", units=2, previous_tokens=5), previous="Before."),
)


def _story(house: House, rows: list[int]) -> list[Talk]:
    """Sessions that begin one after the other, hear at their own pace, see now and then; one is interrupted."""
    talks = {row: house.open(CONFIGS[row], seed=10 + row, row=row) for row in rows}
    for tick in range(7):
        for row, talk in talks.items():
            if tick < row:
                continue
            if (tick + row) % 3 == 1 and tick > row:
                talk.see([embeddings(HIDDEN, "picture", row, tick, 1 + tick % 2)])
            if row == 0 and tick == 5:
                talk.session.break_off()
            talk.hear(1 + (row == 1 and tick == 3))
        # some wait a step longer than others, so that no phase keeps step
        for _ in range(5):
            ready = [talk.slot for talk in talks.values() if talk.session.next() is not None]
            if ready:
                house.stepper.step(ready[: 1 + tick % 4])
        house.run(talks.values())
    return list(talks.values())


@pytest.mark.behaviour("S1", "N44")
def test_sessions_in_all_phases_of_one_batch_are_what_they_are_alone(tiny_checkpoint: Path) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)
    together = _story(House(vocabulary, script=PHASES, repeat=True, stagger=1, sound=_sound, pages=12), [0, 1, 2, 3])
    for row, talk in enumerate(together):
        (alone,) = _story(House(vocabulary, script=PHASES, repeat=True, stagger=1, sound=_sound, pages=12), [row])
        assert talk.kinds() == alone.kinds() and talk.text() == alone.text() and talk.session.close == alone.session.close
        assert [list(thought.token_ids) for thought in talk.thoughts()] == [list(thought.token_ids) for thought in alone.thoughts()]
        for ours, theirs in zip(talk.thoughts(), alone.thoughts(), strict=True):
            assert not ours.token_ids or (states(ours) - states(theirs)).abs().max() < 1e-5
    assert {"listen", "speak", "text", "thought", "turn_end", "unit_done"} == {kind for talk in together for kind in talk.kinds()}


def test_hidden_states_belong_to_the_tokens_that_were_fed(tiny_checkpoint: Path) -> None:
    """Spy weights: nothing is added to an embedding on its way, so the state of a token is its own embedding, and names it."""
    weights = {
        name: torch.zeros_like(tensor) if "o_proj" in name or "down_proj" in name else tensor for name, tensor in default_weights().items()
    }
    script = [(SPEAK, 65, 66, 67, CHUNK_EOS), (SPEAK, 68, TURN_EOS, CHUNK_EOS), (SPEAK, *range(64, 84)), (SPEAK, CHUNK_EOS)]
    house = House(vocabulary_of(tiny_checkpoint), weights=weights, script=script, sound=_sound, slots=2)
    talks = [house.open(_quiet()), house.open(_quiet(force_listen_count=1))]
    for talk in talks:
        talk.hear(4)
    house.run(talks)
    embedding, norm = weights["llm.model.embed_tokens.weight"], weights["llm.model.norm.weight"]
    said = [list(thought.token_ids) for talk in talks for thought in talk.thoughts()]
    assert said == [[65, 66, 67], [68, TURN_EOS], list(range(64, 82)), [], [68, TURN_EOS], list(range(64, 82)), []]
    for talk in talks:
        for thought in talk.thoughts():
            if thought.token_ids:
                named = rms_norm(embedding[list(thought.token_ids)], norm, house.config.llm.rms_eps)
                assert torch.allclose(states(thought), named, atol=1e-6)
    assert [thought.turn_end for thought in talks[0].thoughts()] == [False, True, False, False]


def test_what_a_turn_makes_in_which_order_and_under_which_label(tiny_checkpoint: Path) -> None:
    script = [(LISTEN,), (SPEAK, 65, 66, CHUNK_EOS), (SPEAK, 67, TURN_EOS, CHUNK_EOS), (LISTEN,), (SPEAK, TURN_EOS, CHUNK_EOS)]
    house = House(vocabulary_of(tiny_checkpoint), script=script, sound=_sound)
    talk = house.open(_quiet())
    talk.slot.epoch = talk.session.epoch = 3
    talk.hear(5)
    house.run([talk])
    assert talk.kinds() == [
        *(
            "listen",
            "unit_done",
            "speak",
            "text",
            "text",
            "thought",
            "unit_done",
            "speak",
            "text",
            "text",
            "thought",
            "turn_end",
            "unit_done",
        ),
        *("listen", "unit_done", "speak", "text", "thought", "turn_end", "unit_done"),
    ]

    def labels(notes: bool) -> list[tuple[int, int, str]]:
        chosen = [output.label for output in talk.outputs if (output.kind == "unit_note") == notes]
        return [(label.epoch, label.turn, label.response_id) for label in chosen]

    assert labels(notes=False) == [(3, 0, "")] * 2 + [(3, 1, "t1")] * 11 + [(3, 1, "")] * 2 + [(3, 2, "t2")] * 5
    assert labels(notes=True) == [(3, turn, "") for turn in (0, 1, 1, 1, 2)]
    kinds = [output.kind for output in talk.outputs]
    assert [index + 1 for index, kind in enumerate(kinds) if kind == "unit_note"] == [
        index for index, kind in enumerate(kinds) if kind == "unit_done"
    ]
    assert [output.kind for output in talk.outputs if output.last] == ["text", "thought"] * 2
    units = [output.unit for output in talk.outputs if output.unit is not None]
    assert [unit.unit for unit in units] == [0, 1, 2, 3, 4] and [unit.consumed_ms for unit in units] == [1030, *[1000] * 4]
    times = [output.payload.decision for output in talk.outputs if output.payload is not None and output.kind == "decision"]
    assert [(each.t_ms, each.decided_at_ms) for each in times[:2]] == [(0, 1030), (1030, 2030)]


def test_a_prefix_exists_once_and_as_long_as_somebody_reads_it(tiny_checkpoint: Path) -> None:
    house = House(vocabulary_of(tiny_checkpoint), sound=_sound, slots=4, pages=8)
    config, other = _quiet(instructions="word " * 40, voice=VoiceRecording(b"", 16_000)), _quiet()
    talks = [house.open(config), house.open(config), house.open(other)]
    house.run(talks)
    first, second, third = (talk.session for talk in talks)
    assert first.shared is second.shared is not third.shared and len(house.prefixes) == 2
    assert first.shared is not None and len(first.shared.pages) > 1 and house.pool.held == len(first.shared.pages) + 2 + 2
    talks[0].close()
    late = house.open(config, row=3)
    house.run([late])
    assert late.session.shared is second.shared and house.pool.free == 8 + len(first.shared.pages)
    for talk in (*talks[1:], late):
        talk.close()
    assert house.pool.held == 0 and house.pool.free == 32 and len(house.prefixes) == 0


def test_an_interruption_ends_the_turn_inside_the_model_and_the_next_unit_listens(tiny_checkpoint: Path) -> None:
    script = [(SPEAK, 65, 66, CHUNK_EOS), (SPEAK, 67, 68, 69, CHUNK_EOS), (SPEAK, 70, CHUNK_EOS), (SPEAK, 71, CHUNK_EOS)]
    house = House(vocabulary_of(tiny_checkpoint), script=script, sound=_sound)
    talk = house.open(_quiet())
    talk.hear(2)
    session, fed = talk.session, house.model.fed
    while session.number == 0 or session.unit is None or len(session.unit.tokens) < 3:
        house.stepper.step([talk.slot])
    fed[session.row].clear()
    unit = session.break_off()
    assert unit is not None and unit.tokens == [SPEAK, 67, 68] and session.unit is None
    before = len(talk.outputs)
    talk.hear(2)
    house.run([talk])
    audio = [EMBEDDED] * 10
    # 68 was decided and not fed yet
    assert fed[session.row] == [
        *(TURN_EOS, CHUNK_EOS, UNIT_END, UNIT, *audio),
        *(LISTEN, UNIT_END, UNIT, *audio, SPEAK, 71),
    ]
    assert [output.label.turn for output in talk.outputs[before:] if output.kind != "unit_note"] == [1, 1, 2, 2, 2, 2]
    session.break_off()
    talk.hear()
    fed[session.row].clear()
    house.run([talk])
    assert fed[session.row] == [CHUNK_EOS, UNIT_END, UNIT, *audio, TURN_EOS], "in mid-turn between units"


def test_a_failed_forward_changes_nothing(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)

    def run(fails: bool) -> list[Talk]:
        house = House(vocabulary, script=PHASES, repeat=True, stagger=1, sound=_sound, pages=12)
        talks = [house.open(config, row=row) for row, config in enumerate(CONFIGS)]
        whole, count = house.model.step, 0

        def step(rows: Any, *rest: Any) -> Any:
            nonlocal count
            count += 1
            if fails and count % 3 == 0:
                raise RuntimeError("out of memory")
            return whole(rows, *rest)

        monkeypatch.setattr(house.model, "step", step)
        for talk in talks:
            talk.hear(3)
            talk.see([embeddings(HIDDEN, "picture", 1, 1, 1)])
        while ready := [talk.slot for talk in talks if talk.session.next() is not None]:
            try:
                house.stepper.step(ready)
            except RuntimeError:
                continue
        return talks

    for broken, whole in zip(run(True), run(False), strict=True):
        assert broken.kinds() == whole.kinds() and broken.session.table.length == whole.session.table.length
        assert [thought.hidden.data for thought in broken.thoughts()] == [thought.hidden.data for thought in whole.thoughts()]


@pytest.mark.behaviour("S2")
def test_logits_that_are_not_finite_end_one_session_only(tiny_checkpoint: Path) -> None:
    def sound(slot: int, unit: int) -> Tensor:
        return torch.full((10, HIDDEN), torch.nan) if (slot, unit) == (1, 1) else _sound(slot, unit)

    house = House(vocabulary_of(tiny_checkpoint), script=[(LISTEN,), (SPEAK, TURN_EOS, CHUNK_EOS)], repeat=True, sound=sound)
    talks = [house.open(_quiet(), row=row) for row in range(3)]
    for talk in talks:
        talk.hear(4)
    house.run(talks)
    assert isinstance(talks[1].session.failure, NotFinite) and talks[1].kinds() == ["listen", "unit_done"]
    assert talks[0].session.failure is None and talks[0].kinds() == talks[2].kinds() and talks[0].session.number == 4


@pytest.mark.behaviour("S2")
def test_a_context_that_overflows_ends_one_session_only(tiny_checkpoint: Path) -> None:
    house = House(vocabulary_of(tiny_checkpoint), script=[(LISTEN,)], repeat=True, sound=_sound, slots=3, pages=5)
    talks = [house.open(_quiet(window=WindowRules(mode))) for mode in ("off", "basic", "context")]  # type: ignore[arg-type]
    for _ in range(30):
        for talk in talks:
            talk.hear()
        house.run(talks)
    off, basic, context = (talk.session for talk in talks)
    assert isinstance(off.failure, Overflow) and 10 < off.number < 25 and off.table.page_count <= 5
    assert basic.failure is None and context.failure is None and basic.number == context.number == 30
    talks[1].see([embeddings(HIDDEN, "picture", 0, 0, 5)])
    talks[1].hear()
    house.run(talks)
    assert isinstance(basic.failure, Overflow), "a unit that no window of this size can hold"


@pytest.mark.behaviour("X9")
@pytest.mark.parametrize("mode", ["basic", "context"])
def test_a_conversation_goes_on_past_its_window(mode: Any, tiny_checkpoint: Path) -> None:
    """60 units in a window of about 20; the prefix stays, pages and positions in use are bounded, the recap holds the newest words."""
    script = [(LISTEN,), (SPEAK, 65, 66, TURN_EOS, CHUNK_EOS)]
    house = House(vocabulary_of(tiny_checkpoint), script=script, repeat=True, sound=_sound, slots=1, pages=8)
    rules = WindowRules(mode, 300, 200, units=15, previous_tokens=40)
    talk = house.open(_quiet(window=rules))
    session, pages = talk.session, set()
    house.run([talk])
    shared = session.shared
    for _ in range(60):
        talk.hear()
        house.run([talk])
        pages.add(house.pool.held)
        assert session.shared is shared and session.table.length <= 320
    assert session.failure is None and session.number == 60 and max(pages) <= 8
    assert session.table.gap > 600
    if mode == "context":
        assert len(session.window.spans) == 15 and session.window.previous == (65, 66) * 20
        assert talk.thoughts()[-1].token_ids[:2] == [65, 66]


def test_work_is_ordered_by_when_its_sound_is_needed(tiny_checkpoint: Path) -> None:
    script = [(SPEAK, 65, 66, CHUNK_EOS), (SPEAK, 67, 68, CHUNK_EOS)]
    house = House(vocabulary_of(tiny_checkpoint), script=script, sound=_sound)
    house.now = 100.0
    talk = house.open(_quiet())
    assert talk.session.urgency(100.0) == 100.5
    house.run([talk])
    assert talk.session.urgency(100.0) is None
    house.now = 101.0
    talk.hear()
    assert talk.session.urgency(101.0) == 101.3, "undecided: as if it listened"
    house.stepper.step([talk.slot])
    assert talk.session.urgency(101.0) == 101.0, "the first unit of a turn: now"
    house.now = 101.2
    house.run([talk])
    talk.hear()
    assert talk.session.urgency(101.2) == pytest.approx(102.12), "when the sound of the unit before is over"
