"""How many sessions fit on a card, and what each stage takes of it. Pure: all services compute the same plan, each allocates its lines."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

import msgspec

from minicpmo45.config import Config
from minicpmo45.layout import (
    TALKER_PREFIXES,
    THINKER_PREFIXES,
    UNUSED_PREFIXES,
    Layout,
    flow_layout,
    hift_layout,
    safetensors_layout,
    select,
)

Stage = Literal["thinker", "talker", "vocoder"]
STAGES: tuple[Stage, ...] = get_args(Stage)
DType = Literal["fp32", "bf16", "fp8"]
ELEMENT: dict[DType, int] = {"fp32": 4, "bf16": 2, "fp8": 1}

PAGE = 64
"""Tokens of a page of keys and values."""
SCALE_BYTES = 4
"""fp8 keys and values have one fp32 scale a token, head, and kind; fp8 matrices one a row."""
BLOCKS_PREFIX = "llm.model.layers."
TALKER_POSITIONS = 1024
"""Of one session: a longer turn keeps its last 20 s."""
RING_FRAMES = 150
"""Mel frames of a session's own: the newest 100 and a chunk of 50."""
VOICE_BYTES = 4_000_000_000
"""What set-up voices may take together."""
PROMPT_FRAMES = 840
"""Of a reference voice of 16.8 s, about the longest that the model takes."""
CONTEXT_BYTES = 1_100_000_000
"""A CUDA context with its kernels and graphs, a process: at most so much was seen beside what torch holds (H200, 128 sessions, MPS)."""
WORKSPACE_BYTES: dict[Stage, int] = {"thinker": 3_700_000_000, "talker": 1_100_000_000, "vocoder": 2_500_000_000}
"""Activations of the largest step and of captures: the most that was seen there while loading."""
MARGIN = 0.02
"""Share of the card that stays free: driver, fragments."""


class PlanError(ValueError):
    """The plan cannot be made. `param` names the argument at fault."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param


class Dtypes(msgspec.Struct, frozen=True):
    """Element types of what is kept. `kv` and `matrices` are the thinker's; fp8 is for them alone."""

    weights: DType = "bf16"
    """Of thinker and talker."""
    kv: DType = "bf16"
    audio_kv: DType = "bf16"
    talker_kv: DType = "bf16"
    flow: DType = "bf16"
    """Weights of the flow and its convolution contexts; the generator is fp32."""
    flow_cache: DType = "bf16"
    matrices: DType | None = None
    """Of the blocks of the thinker's language model; None: as `weights`. fp8 has an fp32 scale a row."""


class Line(msgspec.Struct, frozen=True):
    """One allocation: `nbytes` a session (`each`), or once."""

    name: str
    nbytes: int
    each: bool


class StagePlan(msgspec.Struct, frozen=True):
    """The lines of one stage for `sessions` sessions."""

    stage: Stage
    sessions: int
    lines: tuple[Line, ...]

    @property
    def fixed(self) -> int:
        """Bytes that the stage takes with no session at all."""
        return sum(line.nbytes for line in self.lines if not line.each)

    @property
    def per_session(self) -> int:
        return sum(line.nbytes for line in self.lines if line.each)

    @property
    def nbytes(self) -> int:
        return self.fixed + self.sessions * self.per_session


class MemoryPlan(msgspec.Struct, frozen=True):
    """What the card holds. Admission lends exactly `sessions`; a session's maximum is reserved, so none can run out later."""

    card_bytes: int
    sessions: int
    stages: tuple[StagePlan, ...]
    kv_pages: int
    """Pages of the thinker's pool, the sink included; 0 where the thinker is elsewhere."""
    voices: int
    """Reference voices of `prompt_frames` that are kept at once; 0 where the vocoder is elsewhere."""

    @property
    def per_session(self) -> int:
        return sum(stage.per_session for stage in self.stages)

    @property
    def nbytes(self) -> int:
        return sum(stage.nbytes for stage in self.stages)

    def stage(self, name: Stage) -> StagePlan:
        """Raises PlanError for a stage that is not on this card."""
        for stage in self.stages:
            if stage.stage == name:
                return stage
        raise PlanError("stage", f"{name} is not on this card")

    def __str__(self) -> str:
        rows = [("stage", "what", "a session", "once", "all")]
        for stage in self.stages:
            for line in stage.lines:
                each, once = (_gb(line.nbytes), "") if line.each else ("", _gb(line.nbytes))
                rows.append((stage.stage, line.name, each, once, _gb(line.nbytes * (self.sessions if line.each else 1))))
            rows.append((stage.stage, "sum", _gb(stage.per_session), _gb(stage.fixed), _gb(stage.nbytes)))
        rows.append(("card", f"{self.sessions} sessions", _gb(self.per_session), _gb(self.card_bytes), _gb(self.nbytes)))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )


def memory_plan(
    card_bytes: int,
    stages_on_card: Collection[Stage],
    window: int,
    steps: int,
    dtypes: Dtypes = Dtypes(),
    config: Config = Config(),
    prompt_frames: int = PROMPT_FRAMES,
    voice_bytes: int = VOICE_BYTES,
    at_most: int | None = None,
    positions: int = TALKER_POSITIONS,
) -> MemoryPlan:
    """Sessions that fit on a card of `card_bytes` that holds `stages_on_card`, and every stage's bytes, line by line.

    window: most tokens a session has in the thinker, prefix included. steps: Euler steps of the flow. prompt_frames: mel frames of the
    longest voice. at_most: sessions that are wanted at most. positions: tokens of a turn that the talker holds. Raises PlanError that names
    an argument which is out of range, or `card_bytes` when not one session fits.
    """
    _check(
        stages_on_card,
        dtypes,
        window=window,
        steps=steps,
        prompt_frames=prompt_frames,
        positions=positions,
        at_most=1 if at_most is None else at_most,
    )
    voice = prompt_frames * flow_frame_bytes(config, steps, dtypes)
    if "vocoder" in stages_on_card and voice > voice_bytes:
        raise PlanError("voice_bytes", f"{_gb(voice_bytes)} GB do not hold one voice of {prompt_frames} frames ({_gb(voice)} GB)")
    makers = {
        "thinker": lambda: _thinker(config, window, dtypes),
        "talker": lambda: _talker(config, dtypes, positions),
        "vocoder": lambda: _vocoder(config, steps, dtypes, voice_bytes),
    }
    lines = {stage: (*makers[stage](), *_overhead(stage)) for stage in STAGES if stage in stages_on_card}
    fixed = sum(line.nbytes for stage in lines.values() for line in stage if not line.each)
    each = sum(line.nbytes for stage in lines.values() for line in stage if line.each)
    room = int(card_bytes * (1 - MARGIN)) - fixed
    sessions = max(0, room) // each
    if sessions < 1:
        raise PlanError(
            "card_bytes", f"{_gb(card_bytes)} GB hold no session: {_gb(fixed)} GB are taken without one, each takes {_gb(each)}"
        )
    sessions = min(sessions, at_most or sessions)
    return MemoryPlan(
        card_bytes,
        sessions,
        tuple(StagePlan(stage, sessions, tuple(found)) for stage, found in lines.items()),
        sessions * session_pages(window) + 1 if "thinker" in lines else 0,
        voice_bytes // voice if "vocoder" in lines else 0,
    )


def session_pages(window: int) -> int:
    """Pages that a session of at most `window` tokens can touch: units are not page-aligned, so a cut leaves one partly used in front."""
    return -(-window // PAGE) + 1


def flow_frame_bytes(config: Config, steps: int, dtypes: Dtypes) -> int:
    """Keys and values of one mel frame: the DiT's, guided and not, for every step; the conformer's, half of them at the codes' rate."""
    flow = config.flow
    dit = steps * flow.dit_depth * 2 * 2 * flow.dit_heads * flow.dit_head_dim
    conformer = 2 * flow.hidden_size * flow.up_blocks + flow.hidden_size * flow.blocks
    return (dit + conformer) * ELEMENT[dtypes.flow_cache]


def _thinker(config: Config, window: int, dtypes: Dtypes) -> list[Line]:
    llm, audio = config.llm, config.audio
    vectors = session_pages(window) * PAGE * llm.layers * 2 * llm.kv_heads
    cache = audio.layers * 2 * audio.d_model * audio.max_positions
    lines = [
        *_thinker_weights(config, dtypes),
        Line("keys and values", vectors * llm.head_dim * ELEMENT[dtypes.kv], each=True),
        Line("audio encoder cache", cache * ELEMENT[dtypes.audio_kv], each=True),
        Line("audio encoder cache, padding", cache * ELEMENT[dtypes.audio_kv], each=False),
    ]
    return [*lines, Line("scales of keys and values", vectors * SCALE_BYTES, each=True)] if dtypes.kv == "fp8" else lines


def _thinker_weights(config: Config, dtypes: Dtypes) -> list[Line]:
    layout = select(safetensors_layout(config), THINKER_PREFIXES)
    if dtypes.matrices is None:
        return [Line("weights", _parameters(layout) * ELEMENT[dtypes.weights], each=False)]
    blocks = {name: spec for name, spec in layout.items() if name.startswith(BLOCKS_PREFIX) and len(spec.shape) == 2}
    rest, scales = _parameters(layout) - _parameters(blocks), sum(spec.shape[0] for spec in blocks.values())
    taken = _parameters(blocks) * ELEMENT[dtypes.matrices] + scales * (SCALE_BYTES if dtypes.matrices == "fp8" else 0)
    return [Line("weights", rest * ELEMENT[dtypes.weights], each=False), Line("matrices of the blocks", taken, each=False)]


def _talker(config: Config, dtypes: Dtypes, positions: int) -> list[Line]:
    talker = config.talker
    positions = -(-positions // PAGE) * PAGE
    kept = select(safetensors_layout(config), TALKER_PREFIXES, UNUSED_PREFIXES)
    return [
        Line("weights", _parameters(kept) * ELEMENT[dtypes.weights], each=False),
        Line("keys and values", positions * talker.layers * 2 * talker.kv_heads * talker.head_dim * ELEMENT[dtypes.talker_kv], each=True),
    ]


def _vocoder(config: Config, steps: int, dtypes: Dtypes, voice_bytes: int) -> list[Line]:
    flow = config.flow
    dit = steps * flow.dit_depth * 2 * (2 * flow.dit_hidden) * 2
    contexts = dit + flow.hidden_size * (2 + 4)
    tails = HIFT_MEL_FRAMES * config.hift.mels + 2 * HIFT_TAIL_SAMPLES
    return [
        Line("weights of the flow", _parameters(flow_layout(flow)) * ELEMENT[dtypes.flow], each=False),
        Line("weights of the generator", _parameters(hift_layout(config.hift)) * ELEMENT["fp32"], each=False),
        Line("voices", voice_bytes, each=False),
        Line("ring of keys and values", RING_FRAMES * flow_frame_bytes(config, steps, dtypes), each=True),
        Line("contexts of the convolutions", contexts * ELEMENT[dtypes.flow], each=True),
        Line("tails of the generator", tails * ELEMENT["fp32"], each=True),
    ]


_ALLOWED: dict[str, tuple[DType | None, ...]] = {"kv": (*ELEMENT,), "matrices": (*ELEMENT, None)}
"""Types of what may be more than fp32 or bf16."""
HIFT_MEL_FRAMES = 8
HIFT_TAIL_SAMPLES = 3840
"""Of the source and of the speech, each: 160 ms."""


def _overhead(stage: Stage) -> list[Line]:
    return [Line("workspace", WORKSPACE_BYTES[stage], each=False), Line("context and graphs", CONTEXT_BYTES, each=False)]


def _parameters(layout: Layout) -> int:
    return sum(spec.parameters for spec in layout.values())


def _check(stages: Collection[Stage], dtypes: Dtypes, **counts: int) -> None:
    if not stages or not set(stages) <= set(STAGES):
        raise PlanError("stages_on_card", f"{sorted(stages)} are not some of {', '.join(STAGES)}")
    for name, value in counts.items():
        if value < 1:
            raise PlanError(name, f"{value} is below 1")
    for field in msgspec.structs.fields(dtypes):
        value = getattr(dtypes, field.name)
        if value not in _ALLOWED.get(field.name, ("fp32", "bf16")):
            raise PlanError(field.name, f"{value!r} is not supported here")


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f}"
