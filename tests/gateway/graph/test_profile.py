"""Reading profiles: what ships, what defaults say, and text that is not one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.graph import ChatOptions, Graph, Profile, ProfileError, SemanticVadDefaults, ServerVadDefaults, load_profile
from gateway.profile_file import load_profile_file

Load = Callable[[dict[str, Any]], Profile]


def test_every_shipped_profile_makes_a_graph(profiles: Path) -> None:
    files = sorted(profiles.glob("*.yaml"))
    assert [file.stem for file in files] == ["chat", "embedded", "minicpmo45"]
    for file in files:
        profile = load_profile_file(file)
        assert profile.name == file.stem and Graph(profile).audio_stage == "vocoder"
    assert len({load_profile_file(file).model for file in files}) == len(files)


def test_defaults_are_the_general_ones(document: dict[str, Any], load: Load) -> None:
    del document["session"], document["pacing"], document["languages"]
    profile = load(document)
    assert profile.session.turn_detection == ServerVadDefaults(type="server_vad")
    assert (profile.pacing.max_output_lead_ms, profile.pacing.credit_extra_ms) == (1000, 500)
    assert profile.session.voice == "default" and profile.languages == ()


def test_turn_detection_may_be_semantic_or_off(document: dict[str, Any], load: Load) -> None:
    document["session"] = {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}
    assert load(document).session.turn_detection == SemanticVadDefaults(type="semantic_vad", eagerness="high")
    document["session"] = {"turn_detection": None}
    assert load(document).session.turn_detection is None


def test_a_chat_kind_holds_its_options(document: dict[str, Any], load: Load) -> None:
    chat = {"kind": "openai_chat", "inputs": ["dialog"], "base_url": "http://localhost:8003/v1", "model": "m", "extra_body": {"seed": 1}}
    document["nodes"]["llm"] = chat
    graph = Graph(load(document))
    assert graph.stages == ("turn", "asr", "llm", "talker", "vocoder")
    assert graph.options("llm") == ChatOptions(base_url="http://localhost:8003/v1", model="m", extra_body={"seed": 1})


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("a: [", "line 1, column 5", "expected the node content, but found '<stream end>'"),
        ("model: a\nmodel: b", "line 2, column 1", "'model' is written twice"),
        ("nodes:\n  llm: {}\n  llm: {}", "line 3, column 3", "'llm' is written twice"),
        ("model: &m !!python/name:os.system", "line 1, column 8", None),
        ("just words", "", "a profile is a mapping"),
        ("", "", "a profile is a mapping"),
        ("\x07", "", "the text is not YAML"),
    ],
)
def test_text_that_is_no_profile(text: str, path: str, message: str | None) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(text, "odd")
    (problem,) = caught.value.problems
    assert problem.path == path
    assert message is None or problem.message == message


def test_missing_parts_are_named() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("description: nothing else", "bare")
    assert [(problem.path, problem.message) for problem in caught.value.problems] == [
        ("model", "Field required"),
        ("nodes", "Field required"),
        ("publish", "Field required"),
    ]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="profile 'absent' is refused: the file cannot be read: No such file or directory"):
        load_profile_file(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xff")
    with pytest.raises(ProfileError, match="the file is not UTF-8"):
        load_profile_file(tmp_path / "latin.yaml")
