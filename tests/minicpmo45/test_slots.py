"""How many sessions a service lends: by the plan, by name, and refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from minicpmo45.config import Config, tiny
from minicpmo45.memory_plan import STAGES, Dtypes, PlanError, Stage, memory_plan
from minicpmo45.slots import MOST_PLANNED, UNPLANNED_SESSIONS, PlanSettings, planned
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

H200 = 149_000_000_000
SETTINGS: dict[Stage, type[BaseSettings]] = {
    "thinker": MiniCpmThinkerSettings,
    "talker": MiniCpmTalkerSettings,
    "vocoder": MiniCpmVocoderSettings,
}


def settings(stage: Stage, **options: Any) -> Any:
    return SETTINGS[stage](**({"checkpoint": Path("here"), "device": "cuda"} | options))


def lent(stage: Stage, card_bytes: int = H200, config: Config = Config(), **options: Any) -> tuple[int, dict[str, Any]]:
    found, told = planned(stage, settings(stage, **options), config, measure=lambda device: card_bytes)
    return found.slots, told


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PARLEY_STAGES_ON_CARD", "PARLEY_DTYPE", *(f"PARLEY_{stage.upper()}_SLOTS" for stage in STAGES)):
        monkeypatch.delenv(name, raising=False)


def test_three_services_on_one_card_lend_alike() -> None:
    plan = memory_plan(H200, STAGES, 8192, 5)
    for stage in STAGES:
        slots, told = lent(stage)
        assert slots == told["sessions"] == plan.sessions and told["planned_bytes"] == plan.nbytes <= H200
        assert told["stage_bytes"] == plan.stage(stage).nbytes
        assert sum(told["once_bytes"].values()) + slots * sum(told["session_bytes"].values()) == told["stage_bytes"]


@pytest.mark.behaviour("X14")
def test_a_number_up_to_the_plan_is_taken_and_one_more_refused() -> None:
    most, _ = lent("thinker")
    for stage in STAGES:
        assert lent(stage, slots=most)[0] == most and lent(stage, slots=1)[0] == 1
        with pytest.raises(PlanError, match=f"slots: {most + 1} are more than the {most} sessions") as error:
            lent(stage, slots=most + 1)
        assert error.value.param == "slots"
    assert lent("thinker", slots=2)[1]["planned_bytes"] < lent("thinker")[1]["planned_bytes"]


@pytest.mark.behaviour("X14")
def test_what_the_plan_depends_on_is_read_from_the_environment_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    before = lent("talker")[0]
    assert memory_plan(H200, STAGES, 8192, 5, positions=2048).sessions < before
    for name, value, plan in (
        ("PARLEY_THINKER_WINDOW_TOKENS", "4096", memory_plan(H200, STAGES, 4096, 5)),
        ("PARLEY_VOCODER_FLOW_STEPS", "10", memory_plan(H200, STAGES, 8192, 10)),
        ("PARLEY_TALKER_POSITIONS", "2048", memory_plan(H200, STAGES, 8192, 5, positions=2048)),
        ("PARLEY_VOCODER_VOICES_BYTES", "40000000000", memory_plan(H200, STAGES, 8192, 5, voice_bytes=40_000_000_000)),
        ("PARLEY_VOCODER_CACHE_DTYPE", "float32", memory_plan(H200, STAGES, 8192, 5, Dtypes(flow_cache="fp32"))),
        ("PARLEY_VOCODER_FLOW_DTYPE", "float32", memory_plan(H200, STAGES, 8192, 5, Dtypes(flow="fp32"))),
        ("PARLEY_VOCODER_KERNELS", "plain", memory_plan(H200, STAGES, 8192, 5, Dtypes(flow="fp32"))),
        ("PARLEY_THINKER_KV_DTYPE", "fp8", memory_plan(H200, STAGES, 8192, 5, Dtypes(kv="fp8"))),
        ("PARLEY_THINKER_KV_DTYPE", "float32", memory_plan(H200, STAGES, 8192, 5, Dtypes(kv="fp32"))),
        ("PARLEY_THINKER_WEIGHTS_DTYPE", "fp8", memory_plan(H200, STAGES, 8192, 5, Dtypes(matrices="fp8"))),
        ("PARLEY_DTYPE", "float32", memory_plan(H200, STAGES, 8192, 5, Dtypes("fp32", "fp32", "fp32", "fp32"))),
        ("PARLEY_STAGES_ON_CARD", "thinker, talker,vocoder", memory_plan(H200, STAGES, 8192, 5)),
    ):
        with monkeypatch.context() as scope:
            scope.setenv(name, value)
            assert {lent(stage)[1]["planned_bytes"] for stage in STAGES} == {plan.nbytes}, name


def test_what_an_engine_was_told_itself_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_THINKER_WINDOW_TOKENS", "8192")
    assert lent("thinker", window_tokens=4096)[0] == memory_plan(H200, STAGES, 4096, 5).sessions
    assert lent("thinker", window_tokens=4096, kv_dtype="fp8")[0] == memory_plan(H200, STAGES, 4096, 5, Dtypes(kv="fp8")).sessions >= 190
    assert (
        lent("thinker", weights_dtype="fp8")[0] == memory_plan(H200, STAGES, 8192, 5, Dtypes(matrices="fp8")).sessions > lent("thinker")[0]
    )
    assert lent("vocoder", flow_steps=10)[0] == memory_plan(H200, STAGES, 8192, 10).sessions


def test_the_defaults_of_the_plan_are_those_of_the_engines() -> None:
    for stage in STAGES:
        assert PlanSettings.of(stage, settings(stage)).plan(H200, Config(), 256) == PlanSettings().plan(H200, Config(), 256)


def test_a_card_of_its_own_holds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_STAGES_ON_CARD", "thinker")
    assert lent("thinker")[0] == memory_plan(H200, ["thinker"], 8192, 5).sessions > memory_plan(H200, STAGES, 8192, 5).sessions
    with pytest.raises(PlanError) as error:
        lent("talker")
    assert error.value.param == "stages_on_card"
    monkeypatch.setenv("PARLEY_STAGES_ON_CARD", "talker")
    assert lent("talker")[0] == MOST_PLANNED, "more than its arithmetic serves is not set aside by itself"
    assert lent("talker", slots=MOST_PLANNED + 1)[0] == MOST_PLANNED + 1


def test_a_stage_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_STAGES_ON_CARD", "thinker,singer")
    with pytest.raises(ValidationError, match="stages_on_card"):
        lent("thinker")


def test_a_card_that_is_too_small_is_refused_even_for_one() -> None:
    for slots in (0, 1):
        with pytest.raises(PlanError) as error:
            lent("vocoder", 24_000_000_000, slots=slots)
        assert error.value.param == "card_bytes"


def test_on_the_cpu_and_with_a_reference_s_trim_nothing_is_planned() -> None:
    for stage in STAGES:
        slots, told = lent(stage, 0, device="cpu")
        assert slots == UNPLANNED_SESSIONS and not told["planned"]
        assert lent(stage, 0, device="cpu", slots=500)[0] == 500
    found, told = planned("vocoder", settings("vocoder", trim="reference"), tiny(), has_plan=False, measure=lambda device: 0)
    assert (found.slots, told["planned"]) == (UNPLANNED_SESSIONS, False)


@pytest.mark.parametrize(("text", "slots"), [("auto", 0), ("0", 0), ("7", 7)])
def test_auto_is_a_word_for_it(text: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in STAGES:
        monkeypatch.setenv(f"PARLEY_{stage.upper()}_SLOTS", text)
        assert settings(stage).slots == slots
        monkeypatch.setenv(f"PARLEY_{stage.upper()}_SLOTS", "many")
        with pytest.raises(ValidationError):
            settings(stage)


def test_an_engine_lends_what_was_decided_and_says_so_when_it_loads(tiny_checkpoint: Path) -> None:
    from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine

    engine = MiniCpmTalkerEngine(MiniCpmTalkerSettings(checkpoint=tiny_checkpoint))
    assert engine.card.slots == UNPLANNED_SESSIONS and engine.card.kv_bytes == UNPLANNED_SESSIONS * engine.card.kv_bytes_per_session
    with structlog.testing.capture_logs() as lines:
        engine.load()
    [line] = [line for line in lines if line["event"] == "memory plan"]
    assert (line["stage"], line["sessions"], line["planned"]) == ("talker", UNPLANNED_SESSIONS, False)


@pytest.mark.parametrize("stage", STAGES)
def test_a_service_that_cannot_hold_what_it_should_ends_in_one_line(stage: Stage, tiny_checkpoint: Path) -> None:
    """The service's own start, with a card that says how large it is."""
    code = (
        "import torch, runpy; torch.cuda.mem_get_info = lambda device: (0, 18_000_000_000);"
        f"runpy.run_module('{stage}_svc', run_name='__main__', alter_sys=True)"
    )
    name = stage.upper()
    env = {
        f"PARLEY_{name}": "minicpmo45",
        "PARLEY_CHECKPOINT": str(tiny_checkpoint),
        "PARLEY_DEVICE": "cuda",
        f"PARLEY_{name}_SLOTS": "1000",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**env, "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{stage}: slots: 1000 are more than the ")
