"""The duplex path and the sampler, number for number against the reference (fixtures/language/README.txt)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from minicpmo45.config import tiny
from minicpmo45.tokens import Tokens, resolve
from tests.thinker_svc.minicpmo45.language_support import COLUMNS, CONVERSATION, INSTRUCTIONS, WINDOWS, embeddings, fixture
from tests.thinker_svc.minicpmo45.thinking import House, Talk, states, vocabulary_of
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.sampler import Draws, Sampler, Sampling
from thinker_svc.minicpmo45.voice import VoiceRecording
from thinker_svc.minicpmo45.window import WindowRules

HIDDEN = tiny().llm.hidden_size
FREE = (-1,)


def _rules(mode: str) -> WindowRules:
    given = WINDOWS[mode]
    return WindowRules(
        mode=mode,  # type: ignore[arg-type]
        high_tokens=given.get("basic_window_high_tokens", 8000),
        low_tokens=given.get("basic_window_low_tokens", 6000),
        units=given.get("context_max_units", 24),
        previous_tokens=given.get("context_previous_max_tokens", 500),
    )


def _converse(checkpoint: Path, mode: str, *, early: bool) -> tuple[House, Talk, list[tuple[int, int, list[int]]]]:
    """The conversation of the fixtures; after each unit the length of the context, of the recap, and what the unit's tokens were."""
    house = House(vocabulary_of(checkpoint), script=[unit.drawn or FREE for unit in CONVERSATION], slots=2)
    house.model.columns = torch.from_numpy(COLUMNS)
    greedy = Sampling(greedy=True)
    config = SessionConfig(INSTRUCTIONS, VoiceRecording(b"", 16_000), sampling=greedy, window=_rules(mode), force_listen_count=0)
    talk = house.open(config, row=0)
    session = talk.session
    talk.slot.epoch = 0
    house.run([talk])
    found = []
    for number, unit in enumerate(CONVERSATION):
        if unit.forced:
            session.break_off()
        if number == 0:
            # frames belong to a unit whose sound has begun
            session.gather.push(np.zeros(0, np.float32), 0, 0, 0.0)
        talk.see([embeddings(HIDDEN, "picture", number, index, slices) for index, slices in enumerate(unit.frames)])
        if early:
            house.run([talk])
        talk.hear()
        house.run([talk])
        recap = session.window.previous
        length = session.table.length + len(session.close)
        found.append((length, len(recap), list(recap)))
    return house, talk, found


@pytest.mark.behaviour("N45")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("mode", list(WINDOWS))
def test_logits_hidden_states_and_lengths_are_those_of_the_reference(mode: str, early: bool, tiny_checkpoint: Path) -> None:
    """Over listening, speaking, pictures and slices, a rewritten listen, turn ends, an interruption, both bounds of a unit, cuts."""
    expected = fixture(mode)
    house, talk, found = _converse(tiny_checkpoint, mode, early=early)
    logits = torch.cat(house.model.seen).numpy()
    assert logits.shape == (len(logits), len(COLUMNS)) and len(logits) >= len(expected["logits"])
    assert [length for length, _, _ in found] == expected["length"].tolist()
    # where a unit's last token is decided without a draw, the reference makes no logits
    kept = _matching(logits, expected["logits"])
    assert np.abs(kept - expected["logits"]).max() < 1e-4
    hidden = torch.cat([states(thought) for thought in talk.thoughts() if thought.token_ids]).numpy()
    assert hidden.shape == expected["hidden"].shape and np.abs(hidden - expected["hidden"]).max() < 1e-4
    assert talk.text() == "".join(expected["text"])
    marker = len(house.vocabulary.encode("\n\nprevious: "))
    assert [recap + marker * (recap > 0) for _, recap, _ in found] == expected["previous_length"].tolist()
    if mode == "context":
        assert found[-1][2] == expected["previous"][marker:].tolist()


def _matching(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The rows of ours that theirs are about, in order: ours has some in between."""
    rows, at = [], 0
    for row in theirs:
        while np.abs(ours[at] - row).max() > 1e-2:
            at += 1
        rows.append(ours[at])
        at += 1
    return np.array(rows)


SETTINGS = (
    Sampling(),
    Sampling(greedy=True),
    Sampling(temperature=1.3, top_k=0, top_p=0.95),
    Sampling(top_k=5, top_p=0.0, repetition_penalty=1.3),
    Sampling(repetition_penalty=0.8, length_penalty=0.5),
    Sampling(listen_prob_scale=3.0),
    Sampling(listen_top_k=4),
    Sampling(greedy=True, listen_top_k=2, listen_prob_scale=0.5),
    Sampling(length_penalty=2.0, top_k=3, top_p=0.5),
)


@pytest.mark.behaviour("N44")
def test_draws_are_those_of_the_reference(tiny_checkpoint: Path) -> None:
    """All settings in one batch, row for row, with the exponentials of the reference's generator; its quirk of the listen id on."""
    expected = fixture("sampler")
    base = resolve(tiny_checkpoint, tiny().llm.vocab_size)
    tokens = Tokens(**{field: getattr(base, field) for field in base.__struct_fields__} | {
        "chunk_eos": 90, "chunk_tts_eos": 91, "turn_eos": 92, "speak": 93, "listen": 94, "tts_pad": 95, "im_end": 89
    })  # fmt: skip
    forbidden = torch.zeros(96, dtype=torch.bool)
    forbidden[[90, 95, 3, 4]] = True
    sampler = Sampler(tokens, forbidden, len(SETTINGS) + 1)
    slots = torch.arange(1, len(SETTINGS) + 1)
    for slot, setting in zip(slots.tolist(), SETTINGS, strict=True):
        fields = {name: getattr(setting, name) for name in setting.__struct_fields__} | {"listen_token": "im_end"}
        sampler.tune(slot, Sampling(**fields))
    zero = torch.zeros_like(slots)
    counted = torch.ones(len(slots), dtype=torch.bool)
    for step in range(expected["tokens"].shape[1]):
        injected = torch.from_numpy(expected["exponentials"][:, step]).transpose(0, 1)
        drawn = sampler.sample(slots, torch.from_numpy(expected["logits"][:, step]), Draws(zero, zero, zero, injected), counted)
        assert drawn.tolist() == expected["tokens"][:, step].tolist(), step
