"""A step of each engine as it is served, at many sessions: wall time from an idle device to its answer, beside the floor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import numpy as np
import torch

from benchmarks.native.floors import BF16, Floor, Floors
from benchmarks.native.house import Recording
from benchmarks.native.material import SPEAK, TEXT_TOKENS, Bench, picture, sound
from benchmarks.native.preload import PreloadedTalker, PreloadedThinker, fill
from benchmarks.native.stages import AGE, _slot, _thought
from benchmarks.native.timing import kernels, once, timed
from minicpmo45.config import Config
from stage_kit import Append, Label
from thinker_svc.minicpmo45.frames import read_picture
from thinker_svc.minicpmo45.mel import UNIT_SAMPLES
from thinker_svc.minicpmo45.row import Row
from thinker_svc.minicpmo45.template import EMBEDDED
from torch_kit.page_table import PageTable
from vocoder_svc.minicpmo45.caches import Piece, Prompt
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.stream import CHUNK

CLOSE, UNIT = [151_718, 151_684], 151_683
REPEATS = 12


class Step(msgspec.Struct, frozen=True):
    """One line of the table."""

    step: str
    sessions: int
    ms: float
    """Median, uploads and answers included."""
    worst_ms: float
    floor: Floor
    ran: tuple[int, float | None] = (0, None)
    """Kernels and copies, and their own milliseconds."""


def thinker(bench: Bench, engine: PreloadedThinker, config: Config, sessions: int, *, draft: bool, seen: bool) -> Iterator[Step]:
    """Sound, pictures (`seen`), the prefill of a unit that speaks, a step that feeds a token of each. `draft`: as the engine is set."""
    weight = 1 if engine._settings.weights_dtype == "fp8" else BF16
    floors, slots, device = Floors(config, sessions, bench.context, weight=weight), list(range(sessions)), bench.on
    perception, model = engine._perception, engine._model
    for slot in slots:
        perception.open(slot)
        perception._units[slot] = 5
        perception.cache[:, slot].normal_()
        engine._tune(_slot(slot), engine.validate({}))
    heard, ages = [sound(UNIT_SAMPLES, slot) for slot in slots], [50 * (AGE // 50 + slot % 2) for slot in slots]

    def hear() -> torch.Tensor:
        perception._cached[slots] = ages
        return perception.hear(slots, heard, [False] * sessions)

    yield _step("hear a unit", sessions, device, hear, floors.hearing(AGE))
    audio = hear()
    if seen:
        pictures = [read_picture(picture(slot), "image/jpeg", 1, config.vision) for slot in slots]
        yield _step("see a picture", sessions, device, lambda: perception.see(pictures), floors.seeing(len(pictures[0].slices[0].patches)))
    tables = [PageTable(engine._pool, engine._reserve) for _ in slots]
    try:
        for table in tables:
            fill(table, bench.context)
        opening, tokens = partial(_unit, tables, audio, draft=draft), 3 + len(audio[0]) + draft

        def unit() -> None:
            model.step(opening())
            for table in tables:
                table.rewind(tokens)

        name = "prefill a unit, two decisions" if draft else "prefill a unit, one decision"
        yield _step(name, sessions, device, unit, floors.forward(tokens))
        model.step(opening())

        def token() -> None:
            model.step([Row(slot, table.append(1), np.array([872], np.int64), unit=3) for slot, table in enumerate(tables)])

        # a unit has no more tokens than these: the next one begins then
        times: list[float] = []
        for _ in range(REPEATS):
            times += [once(device, token) for _ in range(len(SPEAK) - 2 - draft)]
            ran = kernels(device, token) if not times[1:] else (0, None)
            for table in tables:
                table.rewind(table.window_length - bench.context)
            model.step(opening())
        yield Step("decode a token", sessions, statistics.median(times), max(times), floors.forward(1), ran)
    finally:
        for table in tables:
            table.release()
        for slot in slots:
            perception.close(slot)


def _unit(tables: list[PageTable], audio: torch.Tensor, *, draft: bool) -> list[Row]:
    ids = np.array([*CLOSE, UNIT, *[EMBEDDED] * len(audio[0]), *[151_706] * draft], np.int64)
    return [
        Row(slot, table.append(len(ids)), ids, (heard,), unit=3, opens=True, draft=draft)
        for slot, (table, heard) in enumerate(zip(tables, audio, strict=True))
    ]


def talker(bench: Bench, engine: PreloadedTalker, config: Config, sessions: int) -> Iterator[Step]:
    """A burst with conditions, and one of codes alone, by the code."""
    floors, burst = Floors(config, sessions, bench.context), engine._speaker.burst
    slots = [Recording(f"talker {row}", engine.validate({}), lambda: None) for row in range(sessions)]
    for slot in slots:
        engine.open(slot)
    first: list[float] = []
    later: list[float] = []
    ran: tuple[int, float | None] = (0, None)
    for unit in range(6):
        for slot in slots:
            engine.receive(slot, Append("thinker", unit + 1, Label(0, 1, "t1"), False, _thought(config, unit)))
        step = 0
        while ready := [slot for slot in slots if engine.ready(slot) is not None]:
            call = partial(engine.step, ready)
            if unit == 4 and step == 2:
                ran = kernels(bench.on, call)
            elif unit > 1:
                (later if step else first).append(once(bench.on, call))
            else:
                call()
            step += 1
    for slot in slots:
        engine.close(slot)
    floor = floors.speaking(TEXT_TOKENS + 2, bench.held) + floors.speaking(1, bench.held) * (burst - 1)
    yield Step(f"talker, condition and {burst - 1} codes", sessions, statistics.median(first), max(first), floor)
    share = [ms / burst for ms in later]
    own = None if ran[1] is None else ran[1] / burst
    yield Step(
        f"talker, a code of {burst}", sessions, statistics.median(share), max(share), floors.speaking(1, bench.held), (ran[0] // burst, own)
    )


def vocoder(bench: Bench, engine: MiniCpmVocoderEngine, prompt: Prompt, config: Config, sessions: int) -> Iterator[Step]:
    """A chunk of 25 codes in mid-turn: flow and generator."""
    networks, device = engine._vocoder, bench.on
    settings = engine._settings
    floors, draw, slots = Floors(config, sessions, bench.context), np.random.default_rng(5), list(range(sessions))
    for slot in slots:
        networks.begin(slot, prompt)
    pieces = [Piece(tuple(draw.integers(0, config.flow.codes, 28).tolist()), CHUNK, False) for _ in slots]
    for _ in range(4):
        networks.step(slots, pieces)
    kind = {"bfloat16": "bf16", "float16": "fp16"}.get(settings.flow_dtype, "tf32" if settings.flow_tf32 else "fp32")
    # both half precisions run on the same units
    element, unit = (2, "bf16") if kind in ("bf16", "fp16") else (4, kind)
    cached = networks.arena.dit.element_size()
    flow = floors.flow(settings.flow_steps, prompt.span.frames, element=element, cached=cached, kind=unit)
    window = networks._sound.kept + 2 * CHUNK
    name = f"a chunk of sound, T={settings.flow_steps}, {kind}, prompt {prompt.span.frames}"
    yield _step(name, sessions, device, lambda: networks.step(slots, pieces), flow + floors.sounding(window, "tf32"))


def _step(name: str, sessions: int, device: torch.device, call: Callable[[], object], floor: Floor) -> Step:
    times = timed(device, call, REPEATS)
    return Step(name, sessions, statistics.median(times), max(times), floor, kernels(device, call))
