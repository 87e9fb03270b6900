"""Profiles of native models: the one that is shipped, one of a made-up model, and what they are refused for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.graph import Graph, Profile, ProfileError, load_profile
from gateway.profile_file import load_profile_file

Load = Callable[[dict[str, Any]], Profile]
ROOT = Path(__file__).parents[3]
SHIPPED = (ROOT / "profiles" / "minicpmo45.yaml").read_text(encoding="utf-8")


@pytest.fixture
def native() -> dict[str, Any]:
    """profiles/minicpmo45.yaml, parsed anew for each test."""
    parsed: dict[str, Any] = yaml.safe_load(SHIPPED)
    return parsed


def problems(load: Load, document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ProfileError) as refused:
        load(document)
    return [(problem.path, problem.message) for problem in refused.value.problems]


def test_the_shipped_profile_is_a_model_with_a_detector_beside_it(profiles: Path) -> None:
    profile = load_profile_file(profiles / "minicpmo45.yaml")
    graph = Graph(profile)
    assert graph.dialog is None and (graph.model_stage, graph.decision_stage, graph.transcript_stage) == ("thinker", "turn", "")
    assert (graph.text_stage, graph.audio_stage, graph.last_stage) == ("thinker", "vocoder", "vocoder")
    assert graph.response_stages == ("thinker", "talker", "vocoder")
    assert graph.readers("client", "audio") == ("turn", "thinker") and graph.readers("camera", "image") == ("thinker",)
    assert graph.readers("thinker", "text") == () and graph.readers("thinker", "thought") == ("talker",)
    assert graph.lane("camera", "image", "thinker") == graph.lane("core", "control", "thinker") == "input"
    assert (graph.native.unit_ms, graph.native.first_ms) == (1000, 1030)
    assert profile.instructions == "Streaming Omni Conversation."


def test_the_order_of_nodes_and_their_names_say_nothing(native: dict[str, Any], load: Load) -> None:
    native["nodes"] = dict(reversed(native["nodes"].items()))
    graph = Graph(load(native))
    assert (graph.model_stage, graph.decision_stage) == ("thinker", "turn")


def test_a_model_without_a_detector_bounds_no_turns_of_the_users(native: dict[str, Any], load: Load) -> None:
    del native["nodes"]["turn"], native["publish"]["turn"]
    graph = Graph(load(native))
    assert (graph.model_stage, graph.decision_stage) == ("thinker", "")


def test_a_dialog_has_no_model_that_decides(embedded: Graph) -> None:
    assert embedded.model_stage == "" and embedded.mappings == {}


@pytest.mark.parametrize(
    ("path", "value", "where", "message"),
    [
        (("configure", "ghost"), {}, "configure", "no node holds the stage 'ghost'"),
        (("configure", "talker", "session"), {"x": "shoe_size"}, "configure.talker.session.x", "Input should be"),
        (("configure", "talker", "values"), {"seed": 1}, "configure.talker", "fields ['seed'] come from two places"),
        (("configure", "talker", "options"), 7, "configure.talker.options", "Input should be a valid dictionary"),
        (("native", "unit_ms"), 19, "native.unit_ms", "greater than or equal to 20"),
        (("native", "frozen"), ["history!"], "native.frozen.0", "Input should be"),
        (("native", "overlap"), {"policy": "shout"}, "native.overlap.policy", "Input should be"),
        (("native", "wings"), 2, "native.wings", "Extra inputs are not permitted"),
        (("services", "talker"), {"PATH": "/tmp"}, "services.talker.PATH", "String should match pattern"),
        (
            ("session", "turn_detection", "create_response"),
            False,
            "session.turn_detection.create_response",
            "a native model itself decides when it replies",
        ),
        (
            ("session", "turn_detection", "idle_timeout_ms"),
            6000,
            "session.turn_detection.idle_timeout_ms",
            "nobody can make a native model speak",
        ),
    ],
)
def test_what_a_native_profile_is_refused_for(
    native: dict[str, Any], load: Load, path: tuple[str, ...], value: Any, where: str, message: str
) -> None:
    place = native
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    found = problems(load, native)
    assert len(found) == 1 and found[0][0].startswith(where) and message in found[0][1], found


def test_native_settings_need_a_native_model(document: dict[str, Any], native: dict[str, Any], load: Load) -> None:
    document["native"] = {}
    assert problems(load, document) == [("native", "a profile with a dialog has no native model")]
    native["stages"] = {"thinker": {"makes": ["text", "thought"]}}
    native["publish"]["thinker"] = ["text"]
    assert problems(load, native) == [("native", "no stage makes both decision and text")]


def test_the_camera_is_no_name_of_a_stage(native: dict[str, Any], load: Load) -> None:
    native["stages"] = {"camera": {"reads": ["audio"], "makes": ["decision"]}}
    native["nodes"]["eye"] = {"stages": ["camera"], "inputs": ["input:audio"]}
    assert ("nodes.eye.stages", "'camera' names a source of edges, not a stage") in problems(load, native)


def test_no_word_of_the_gateway_names_a_model() -> None:
    """A second native model needs new engines and a profile, and nothing here."""
    words = re.compile("minicpm|qwen|siglip", re.IGNORECASE)
    files = [file for file in (ROOT / "gateway").rglob("*") if file.suffix in (".py", ".html", ".md")]
    assert len(files) > 80 and not [file.name for file in files if words.search(file.read_text(encoding="utf-8"))]


def test_a_profile_without_a_section_for_it_has_the_defaults(load: Load, native: dict[str, Any]) -> None:
    del native["native"], native["configure"]
    graph = Graph(load(native))
    assert graph.native.unit_ms == graph.native.first_ms == 1000 and graph.native.overlap.policy == "interrupt"
    assert graph.mappings == {} and load_profile(yaml.safe_dump(native), "plain").native is None
