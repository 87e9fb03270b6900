"""What a session with a native model may be set to, when, and what its stages are told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.checkpoint import Checkpointer
from gateway.conversation.config import ReferenceVoice, SemanticVad, ServerVad, Tool, Transcription
from gateway.conversation.overlap import Over
from gateway.graph import Graph, load_profile

from .duplex import CONFIG, DUPLEX, PROFILE, WORDY, Duplex
from .support import World

VOICE = ReferenceVoice(b"\x01\x02" * 16_000, 16_000)


def told(world: Duplex, stage: str) -> dict[str, Any]:
    """The configuration that the stage was sent last."""
    found: dict[str, Any] = json.loads([order for name, order in world.told_stages() if name == stage][-1].config_json)
    return found


@pytest.mark.behaviour("W21")
def test_each_stage_is_told_what_the_profile_maps_to_it_and_nothing_else() -> None:
    world = Duplex()
    world.update(instructions="Be brief.", model_options={"temperature": 0.4, "top_k": 7})
    assert told(world, "seer") == {"mode": "duplex", "system": "Be brief.", "heat": 0.4, "k": 7}
    assert told(world, "singer") == {"temperature": 0.4}
    assert not [name for name, _ in world.told_stages() if name in ("sounder", "turn")]
    world.update(model_options={"top_k": None})
    assert "k" not in told(world, "seer") and told(world, "seer")["heat"] == 0.4


@pytest.mark.behaviour("W23")
def test_a_voice_to_speak_like_takes_the_place_of_a_named_one() -> None:
    world = Duplex()
    world.update(voice="ada")
    assert told(world, "seer")["sounds_like"] == told(world, "sounder")["sounds_like"] == "ada"
    world.update(reference_voice=VOICE)
    seer = told(world, "seer")
    assert "sounds_like" not in seer and "sounds_like" not in told(world, "sounder")
    assert len(seer["sample"]) == -(-len(VOICE.pcm) // 3) * 4 and seer["sample_hz"] == 16_000
    updated = world.of(events.SessionUpdated)[-1].config.reference_voice
    assert updated == ReferenceVoice(b"", 16_000, 1000), "clients and the journal have its length"
    assert world.c.config.reference_voice == VOICE
    world.update(reference_voice=None)
    assert told(world, "seer")["sounds_like"] == "ada" and "sample" not in told(world, "seer")


@pytest.mark.behaviour("W21")
@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"instructions": "Be rude."}, "session.instructions"),
        ({"voice": "eve"}, "session.audio.output.voice"),
        ({"reference_voice": VOICE}, "session.audio.output.reference_voice"),
    ],
)
def test_what_the_model_began_with_holds_from_the_first_unit_on(patch: dict[str, Any], param: str) -> None:
    world = Duplex()
    world.append(1029)
    world.update(**patch)
    assert not world.of(events.Error)
    world.append(1)
    held = world.c.config
    world.update(**{name: type(value)() if isinstance(value, str) else None for name, value in patch.items()}, model_options={"top_k": 3})
    assert (world.error.code, world.error.param) == ("frozen_after_first_unit", param)
    assert world.c.config is held, "all of it is refused"
    world.update(**patch)
    assert len(world.of(events.Error)) == 1, "the same again is no change"
    world.update(model_options={"top_k": 3})
    assert world.c.config.model_options == {"top_k": 3}, "how it draws may change"


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"tools": (Tool("clock"),)}, "session.tools"),
        ({"max_output_tokens": 10}, "session.max_output_tokens"),
        ({"speed": 1.2}, "session.audio.output.speed"),
        ({"turn_detection": ServerVad(create_response=False)}, "session.audio.input.turn_detection.create_response"),
        ({"turn_detection": SemanticVad(create_response=False)}, "session.audio.input.turn_detection.create_response"),
        ({"turn_detection": ServerVad(idle_timeout_ms=6000)}, "session.audio.input.turn_detection.idle_timeout_ms"),
        ({"model_options": {"colour": "red"}}, "session.model_options"),
        ({"model_options": {"top_k": {"deep": 1}}}, "session.model_options.top_k"),
    ],
)
def test_what_no_native_model_does_is_refused_by_type_and_named(patch: dict[str, Any], param: str) -> None:
    world = Duplex()
    held = world.c.config
    world.do(commands.SessionUpdate(patch=commands.SessionPatch(**patch), event_id="mine"))
    assert (world.error.code, world.error.param, world.error.client_event_id) == ("unsupported_value", param, "mine")
    assert world.c.config is held and not world.told_stages()


def test_what_a_profile_offers_is_taken() -> None:
    wordless = Duplex()
    wordless.update(transcription=Transcription("any"), model_options={"top_k": 2})
    told = wordless.of(events.SessionUpdated)[-1].config
    assert told.transcription is None and told.model_options == {"top_k": 2}, (
        "clients that always ask for words are told that there are none"
    )
    wordy = Duplex(graph=WORDY)
    wordy.update(transcription=Transcription("any"))
    assert wordy.c.config.transcription == Transcription("any") and not wordy.of(events.Error)
    deaf = Graph(load_profile(PROFILE.replace("publish: {turn: [decision], ", "publish: {"), "deaf"))
    world = Duplex(msgspec.structs.replace(CONFIG, turn_detection=None), graph=deaf)
    world.update(turn_detection=ServerVad())
    assert (world.error.code, world.error.param) == ("unsupported_value", "session.audio.input.turn_detection")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("heat", "session.model_options.temperature"),
        ("system", "session.instructions"),
        ("sample", "session.audio.output.reference_voice"),
        ("mode", "session.mode"),
    ],
)
def test_what_a_stage_refuses_is_named_as_the_client_knows_it(field: str, param: str) -> None:
    world = Duplex()
    world.update(answer=(), model_options={"temperature": 99})
    updating = world.c.state.updating
    assert updating is not None
    world.do(commands.StageUpdated("seer", updating.generation, "too hot", field))
    assert (world.error.code, world.error.param) == ("update_refused", param)
    assert world.c.config.model_options == {}


@pytest.mark.parametrize("patch", [{"overlap": msgspec.UNSET, "model_options": {"top_k": 1}}, {"reference_voice": VOICE}])
def test_a_conversation_with_a_dialog_has_none_of_it(patch: dict[str, Any]) -> None:
    world = World()
    world.update(**patch)
    assert world.error.code == "unsupported_value"


def test_the_hot_part_stays_small() -> None:
    world = Duplex(graph=WORDY)
    c = world.c
    c.native.turn, c.native.boundary_ms, c.native.submitted_at, c.native.heard_at = 10**6, 4 * 10**6, 4 * 10**6, 4 * 10**6
    c.native.units = c.native.base = c.native.epoch = 10**6
    c.native.over = Over(c.make_id("item_u", 10**5), 4 * 10**6)
    c.state.lost, c.state.bases = list(WORDY.stages), dict.fromkeys(WORDY.stages, 10**9)
    c.state.consumed = dict.fromkeys(WORDY.stages, 10**9)
    c.input.generations = dict.fromkeys(("turn", "asr", "seer"), 10**6)
    c.state.deadlines = {"session": 3_600_000}
    assert len(Checkpointer(c).take().hot) < 1000


def test_the_profiles_own_words_are_the_defaults() -> None:
    assert DUPLEX.native.first_ms == 1030 and DUPLEX.native.overlap.policy == "interrupt"
