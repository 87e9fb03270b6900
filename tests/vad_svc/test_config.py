"""What a session may ask of stage `turn`."""

from __future__ import annotations

from typing import Any

import pytest

from stage_kit import InvalidConfig
from vad_svc.config import PATIENCE, TurnConfig, parse
from vad_svc.engine import TurnEngine
from vad_svc.settings import TurnSettings


def test_defaults() -> None:
    assert parse({}, TurnSettings()) == TurnConfig("server_vad", 0.5, 300, 500, "auto")


@pytest.mark.behaviour("U42")
def test_eagerness_table() -> None:
    assert PATIENCE["auto"] == PATIENCE["medium"]
    rows = {name: tuple(patience) for name, patience in PATIENCE.items() if name != "auto"}
    assert rows == {
        "low": (0.92, 0.99, 1200, 500, 3000, 800),
        "medium": (0.88, 0.97, 640, 250, 2000, 640),
        "high": (0.80, 0.93, 320, 200, 1200, 512),
    }


@pytest.mark.behaviour("U42")
@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"mode": "psychic"}, "mode"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": -0.1}, "threshold"),
        ({"threshold": "half"}, "threshold"),
        ({"prefix_padding_ms": -1}, "prefix_padding_ms"),
        ({"prefix_padding_ms": 10_001}, "prefix_padding_ms"),
        ({"silence_duration_ms": -1}, "silence_duration_ms"),
        ({"silence_duration_ms": 60_001}, "silence_duration_ms"),
        ({"threshold": float("nan")}, "threshold"),
        ({"silence_duration_ms": 1.5}, "silence_duration_ms"),
        ({"eagerness": "extreme"}, "eagerness"),
        ({"create_response": True}, "create_response"),
    ],
)
def test_refusals_name_the_field(config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse(config, TurnSettings())
    assert refused.value.param == param


@pytest.mark.behaviour("U42")
def test_without_smart_turn_semantic_vad_is_not_offered() -> None:
    engine = TurnEngine(TurnSettings(semantic=False))
    assert engine.card.capabilities == ("server_vad",)
    with pytest.raises(InvalidConfig) as refused:
        engine.validate({"mode": "semantic_vad"})
    assert refused.value.param == "mode"
    assert TurnEngine(TurnSettings()).card.capabilities == ("server_vad", "semantic_vad")
