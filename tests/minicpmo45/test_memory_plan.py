"""How many sessions fit: the figures of the model, the goals of issue 5, and the plan's own arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from minicpmo45.config import Config, tiny
from minicpmo45.memory_plan import (
    MARGIN,
    PAGE,
    STAGES,
    Dtypes,
    PlanError,
    Stage,
    flow_frame_bytes,
    memory_plan,
    session_pages,
)

H200 = 149_000_000_000
FP8 = Dtypes(kv="fp8")


def line(name: str, stage: Stage, **options: object) -> int:
    plan = memory_plan(H200, [stage], **({"window": 4096, "steps": 5} | options))  # type: ignore[arg-type]
    return next(one.nbytes for one in plan.stage(stage).lines if one.name == name)


@pytest.mark.parametrize(("dtypes", "each", "sessions"), [(Dtypes(), 0.88, 128), (FP8, 0.58, 190)], ids=["bf16", "fp8"])
def test_the_goals_for_one_card(dtypes: Dtypes, each: float, sessions: int) -> None:
    plan = memory_plan(H200, STAGES, window=4096, steps=5, dtypes=dtypes)
    assert round(plan.per_session / 1e9, 2) == each
    assert plan.sessions >= sessions


def test_a_thinker_alone_at_its_longest_window() -> None:
    """The facts say about 89 sessions at 8192 tokens with a full audio cache."""
    assert memory_plan(H200, ["thinker"], window=8192, steps=5).sessions == pytest.approx(89, abs=3)


def test_what_a_token_a_frame_and_a_position_take() -> None:
    assert line("keys and values", "thinker") == session_pages(4096) * PAGE * 147_456
    assert line("keys and values", "thinker", dtypes=FP8) * 2 == line("keys and values", "thinker")
    assert line("scales of keys and values", "thinker", dtypes=FP8) == session_pages(4096) * PAGE * 36 * 2 * 8 * 4
    assert line("audio encoder cache", "thinker") == 1500 * 98_304
    assert line("keys and values", "talker") == 1024 * 61_440
    assert line("weights", "thinker") == 2 * (9_371_787_666 - 347_696_290)
    assert line("weights", "talker") == 2 * (347_696_290 - 24_576_000 - 3_737_088)
    assert line("weights of the flow", "vocoder") == 2 * 155_802_352
    assert line("weights of the generator", "vocoder") == 4 * 20_821_295


def test_matrices_in_fp8_are_half_and_have_a_scale_a_row() -> None:
    """Of the 36 blocks: queries 4096, keys and values 1024 each, out 4096, gate and up 12,288 each, down 4096 rows."""
    matrices = 36 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12_288)
    fp8, whole = Dtypes(matrices="fp8"), 9_371_787_666 - 347_696_290
    assert line("matrices of the blocks", "thinker", dtypes=fp8) == matrices + 4 * 36 * (2 * 4096 + 2 * 1024 + 2 * 12_288 + 4096)
    assert line("weights", "thinker", dtypes=fp8) == 2 * (whole - matrices)
    bf16 = [line(name, "thinker", dtypes=Dtypes(matrices="bf16")) for name in ("weights", "matrices of the blocks")]
    assert sum(bf16) == line("weights", "thinker")
    sessions = [memory_plan(H200, STAGES, 4096, 5, Dtypes(kv="fp8", matrices=each)).sessions for each in (None, "fp8")]
    assert sessions[1] - sessions[0] == pytest.approx(matrices / 0.58e9, abs=2)
    with pytest.raises(PlanError, match="weights"):
        memory_plan(H200, STAGES, 4096, 5, Dtypes(weights="fp8"))


def test_the_flow_takes_its_bytes_by_the_step() -> None:
    """131,072 bytes a frame and step in fp32; the conformer's 28,672 do not depend on the steps (half of it at the codes' rate)."""
    fp32 = Dtypes(flow_cache="fp32")
    assert flow_frame_bytes(Config(), 10, fp32) == 10 * 131_072 + 28_672
    assert flow_frame_bytes(Config(), 5, Dtypes()) == (5 * 131_072 + 28_672) // 2
    assert line("contexts of the convolutions", "vocoder", steps=10) == (10 * 262_144 + 512 * 6 * 4) // 2


def test_the_plan_fits_and_one_more_session_does_not() -> None:
    for stages in (STAGES, ("thinker",), ("talker", "vocoder"), ("vocoder",)):
        plan = memory_plan(H200, stages, window=4096, steps=10)
        room = H200 * (1 - MARGIN)
        assert plan.nbytes <= room < plan.nbytes + plan.per_session
        assert plan.nbytes == sum(stage.nbytes for stage in plan.stages)
        assert [stage.stage for stage in plan.stages] == list(stages)


def test_every_service_computes_the_same_plan() -> None:
    plans = [memory_plan(H200, order, window=4096, steps=5) for order in (STAGES, tuple(reversed(STAGES)), frozenset(STAGES))]
    assert plans[0] == plans[1] == plans[2]


def test_pages_and_voices_are_what_the_lines_hold() -> None:
    plan = memory_plan(H200, STAGES, window=4096, steps=5)
    assert plan.kv_pages == plan.sessions * 65 + 1
    assert plan.voices == 4_000_000_000 // (840 * flow_frame_bytes(Config(), 5, Dtypes()))
    alone = memory_plan(H200, ["talker"], window=4096, steps=5)
    assert (alone.kv_pages, alone.voices) == (0, 0)


def test_a_window_that_is_not_page_aligned_takes_one_page_more() -> None:
    assert [session_pages(window) for window in (1, 64, 65, 4096)] == [2, 2, 3, 65]


def test_fewer_sessions_are_lent_when_fewer_are_wanted() -> None:
    plan = memory_plan(H200, STAGES, window=4096, steps=5, at_most=16)
    assert plan.sessions == 16
    assert plan.nbytes < memory_plan(H200, STAGES, window=4096, steps=5).nbytes


def test_a_tiny_model_is_planned_as_well() -> None:
    plan = memory_plan(20_000_000_000, STAGES, 512, 2, Dtypes(*["fp32"] * 6), tiny(), prompt_frames=50, voice_bytes=10_000_000, at_most=4)
    assert plan.sessions == 4
    assert plan.stage("thinker").lines[1].nbytes == 9 * 64 * 2 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stages_on_card": []}, "stages_on_card"),
        ({"stages_on_card": ["llm"]}, "stages_on_card"),
        ({"window": 0}, "window"),
        ({"steps": 0}, "steps"),
        ({"prompt_frames": -1}, "prompt_frames"),
        ({"at_most": 0}, "at_most"),
        ({"card_bytes": 24_000_000_000}, "card_bytes"),
        ({"voice_bytes": 1_000_000}, "voice_bytes"),
        ({"dtypes": Dtypes(talker_kv="fp8")}, "talker_kv"),
        ({"dtypes": Dtypes(kv="int4")}, "kv"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_made_names_the_argument(options: dict[str, object], param: str) -> None:
    arguments: dict[str, object] = {"card_bytes": H200, "stages_on_card": STAGES, "window": 4096, "steps": 5} | options
    with pytest.raises(PlanError) as failure:
        memory_plan(**arguments)  # type: ignore[arg-type]
    assert failure.value.param == param


def test_the_plan_is_printed_line_by_line() -> None:
    plan = memory_plan(H200, STAGES, window=4096, steps=5)
    shown = str(plan).splitlines()
    assert len(shown) == 2 + sum(len(stage.lines) + 1 for stage in plan.stages)
    assert shown[-1].split() == ["card", str(plan.sessions), "sessions", "0.876", "149.000", f"{plan.nbytes / 1e9:.3f}"]
    assert len({len(row) for row in shown}) == 1


def test_a_stage_elsewhere_is_not_in_the_plan() -> None:
    plan = memory_plan(H200, ["talker"], window=4096, steps=5)
    with pytest.raises(PlanError, match="vocoder"):
        plan.stage("vocoder")
    assert msgspec.json.decode(msgspec.json.encode(plan), type=type(plan)) == plan
