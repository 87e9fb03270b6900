"""Each network of the model by itself: wall time of one call, kernels in it, the floor."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from parley_stage.v1 import stage_pb2

from benchmarks.native.floors import Floor, Floors
from benchmarks.native.house import Recording
from benchmarks.native.material import SPEAK, TEXT_TOKENS, VOICE, Bench, picture, sound
from benchmarks.native.precision import exact
from benchmarks.native.preload import PreloadedTalker, fill
from benchmarks.native.timing import graphed, kernels, once, timed
from minicpmo45.config import Config
from stage_kit import Append, Label
from talker_svc.minicpmo45.settings import BURST
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.frames import read_picture
from thinker_svc.minicpmo45.mel import UNIT_SAMPLES
from thinker_svc.minicpmo45.row import Row
from thinker_svc.minicpmo45.template import EMBEDDED
from thinker_svc.minicpmo45.vision_encoder import PatchBatch
from torch_kit.page_table import PageTable
from torch_kit.ragged import RaggedBatch
from vocoder_svc.minicpmo45.caches import Piece, Prompt
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.model import Vocoder
from vocoder_svc.minicpmo45.stream import CHUNK
from vocoder_svc.minicpmo45.voice import Recording as Recorded

REPEATS = 6
AGE = 700
"""Frames in the audio encoder's cache, on average."""


class Stage(msgspec.Struct, frozen=True):
    """One line of the table."""

    stage: str
    sessions: int
    ms: float
    """As the engine without graphs calls it, uploads and answers included."""
    floor: Floor
    ran: tuple[int, float | None] = (0, None)
    """Kernels and copies, and their own milliseconds."""
    graph_ms: float | None = None
    """The same kernels replayed from a graph."""
    served: bool = False
    """The engine does so."""


def thinker(bench: Bench, engine: MiniCpmThinkerEngine, config: Config, sessions: int) -> Iterator[Stage]:
    """Encoders, prefill, decoding steps, head and draws. The engine is loaded and holds no session."""
    floors, slots, device = Floors(config, sessions, bench.context), list(range(sessions)), bench.on
    perception, model = engine._perception, engine._model
    for slot in slots:
        perception.open(slot)
        perception._units[slot] = 5
        perception.cache[:, slot].normal_()
    heard, ages = [sound(UNIT_SAMPLES, slot) for slot in slots], [50 * (AGE // 50 + slot % 2) for slot in slots]

    def hear() -> torch.Tensor:
        perception._cached[slots] = ages
        return perception.hear(slots, heard, [False] * sessions)

    upload = perception._upload(sessions, np.array([slots, [5] * sessions, ages]), slots, heard)

    def replayed() -> torch.Tensor:
        return perception._heard(upload, sessions, 1000)

    before, perception.graphs.on = perception.graphs.on, False
    found = _stage("mel and audio encoder", sessions, device, hear, floors.hearing(AGE), replayed)
    yield msgspec.structs.replace(found, served=True)
    audio = hear()
    seen = [read_picture(picture(slot), "image/jpeg", 1, config.vision) for slot in slots]
    patches = PatchBatch.of([each.slices[0] for each in seen], device)
    found = _stage(
        "vision and resampler",
        sessions,
        device,
        lambda: perception.see(seen),
        floors.seeing(patches.patches.shape[1]),
        lambda: perception._resampler(patches, perception._vision(patches)),
    )
    yield msgspec.structs.replace(found, served=True)
    pictures = [each.flatten(0, 1) for each in perception.see(seen)]
    perception.graphs.on = before
    for slot in slots:
        perception.close(slot)
        engine._tune(_slot(slot), engine.validate({}))
    tables = [PageTable(engine._pool, engine._reserve) for _ in slots]
    try:
        for table in tables:
            fill(table, bench.context)
        only, both = [(each,) for each in audio], list(zip(pictures, audio, strict=True))
        yield _prefill("prefill, audio", engine, tables, only, floors.forward(13))
        yield _prefill("prefill, audio and picture", engine, tables, both, floors.forward(79))
        yield _decode(engine, tables, only, floors.forward(1))
    finally:
        for table in tables:
            table.release()
    hidden = torch.randn(sessions, config.llm.hidden_size, device=device).to(model.dtype)
    numbers, manner = model._upload([(slot, 0, False, True) for slot in slots]), model.sampler.manner(slots)

    def decide() -> torch.Tensor:
        return model._decide(numbers, hidden, manner)

    found = _stage("head, draws, unit rules", sessions, device, decide, floors.head(), decide)
    yield msgspec.structs.replace(found, served=True)


def _unit(tables: list[PageTable], given: Any) -> list[Row]:
    """The rows of a unit, as after a unit that spoke: two that close it, one that opens, what was seen and heard."""
    rows = []
    for slot, (table, embeddings) in enumerate(zip(tables, given, strict=True)):
        inner: list[int] = []
        for each in embeddings[:-1]:
            inner += [151_669, *[EMBEDDED] * len(each), 151_670]
        ids = np.array([151_718, 151_684, 151_683, *inner, *[EMBEDDED] * len(embeddings[-1])], np.int64)
        rows.append(Row(slot, table.append(len(ids)), ids, tuple(embeddings), unit=3, opens=True))
    return rows


def _rewind(tables: list[PageTable], tokens: int) -> None:
    for table in tables:
        table.rewind(tokens)


def _prefill(name: str, engine: MiniCpmThinkerEngine, tables: list[PageTable], given: Any, floor: Floor) -> Stage:
    """Of a unit, with the decision of its first token."""
    model, count = engine._model, 3 + sum(len(each) for each in given[0]) + 2 * (len(given[0]) - 1)

    def step() -> None:
        model.step(_unit(tables, given))
        _rewind(tables, count)

    before, model.graphs.on = model.graphs.on, False
    rows = _unit(tables, given)
    batch, states = RaggedBatch.of([row.appended for row in rows]), model._embed(rows)
    states = torch.nn.functional.pad(states, (0, 0, 0, batch.size - batch.count))
    numbers = model._upload([(row.slot, row.unit, False, True) for row in rows])

    def replayed() -> torch.Tensor:
        return model._decide(numbers, model._decoder.forward(states, batch)[batch.sampled], model._manner(rows))

    graph = graphed(engine._device, replayed)
    _rewind(tables, count)
    made = _stage(name, len(tables), engine._device, step, floor)
    model.graphs.on = before
    return msgspec.structs.replace(made, graph_ms=graph)


def _decode(engine: MiniCpmThinkerEngine, tables: list[PageTable], audio: Any, floor: Floor) -> Stage:
    """A step of a speaking unit: units of a prefill, which is not counted, and as many steps as one takes."""
    graphs, count = engine._model.graphs, len(SPEAK) - 1

    def step() -> None:
        engine._model.step([Row(slot, table.append(1), np.array([872], np.int64), unit=3) for slot, table in enumerate(tables)])

    def median() -> float:
        times: list[float] = []
        for _ in range(4):
            engine._model.step(_unit(tables, audio))
            times += [once(engine._device, step) for _ in range(count)]
            _rewind(tables, count + 3 + len(audio[0][0]))
        return statistics.median(times[count:])

    replayed = median() if graphs.on else None
    before, graphs.on = graphs.on, False
    plain = median()
    engine._model.step(_unit(tables, audio))
    ran = kernels(engine._device, step)
    _rewind(tables, 1 + 3 + len(audio[0][0]))
    graphs.on = before
    return Stage("decode step", len(tables), plain, floor, ran, replayed, served=True)


class Spoken(msgspec.Struct, frozen=True):
    """Medians of a talker's steps."""

    first: float
    """Of a step with conditions."""
    code: float
    """Of the others, a code's share."""
    ran: tuple[int, float | None]
    """What ran in one of the others."""


def talker(bench: Bench, engine: PreloadedTalker, config: Config, sessions: int) -> Iterator[Stage]:
    """A unit in mid-turn, one code a step: the conditions' step, then the others; then a code's share of a step that draws several."""
    floors, held, speaker = Floors(config, sessions, bench.context), bench.held, engine._speaker
    graphs, chosen = speaker.graphs, (speaker.graphs.on, speaker.burst)
    spoken = {}
    for on, burst in ((on, burst) for on in {False, graphs.on} for burst in (1, BURST)):
        graphs.on, speaker.burst = on, burst
        spoken[on, burst] = _speak(bench, engine, config, sessions)
    graphs.on, speaker.burst = chosen
    alone, replayed, together = spoken[False, 1], spoken.get((True, 1)), spoken.get((True, BURST))
    is_fused = engine._settings.kernels == "fused"
    first = replayed.first if replayed is not None and is_fused else None
    code = None if replayed is None else replayed.code
    share = None if together is None else together.code
    yield Stage("talker, condition", sessions, alone.first, floors.speaking(TEXT_TOKENS + 2, held), graph_ms=first, served=is_fused)
    yield Stage("talker, one code", sessions, alone.code, floors.speaking(1, held), alone.ran, code)
    yield Stage(f"talker, one of {BURST} codes", sessions, spoken[False, BURST].code, floors.speaking(1, held), graph_ms=share, served=True)


def _speak(bench: Bench, engine: PreloadedTalker, config: Config, sessions: int) -> Spoken:
    slots = [Recording(f"talker {row}", engine.validate({}), lambda: None) for row in range(sessions)]
    for slot in slots:
        engine.open(slot)
    first: list[float] = []
    later: list[float] = []
    ran: tuple[int, float | None] = (0, None)
    for unit in range(5):
        for slot in slots:
            engine.receive(slot, Append("thinker", unit + 1, Label(0, 1, "t1"), False, _thought(config, unit)))
        step = 0
        while ready := [slot for slot in slots if engine.ready(slot) is not None]:
            call = partial(engine.step, ready)
            if unit == 3 and step == 2:
                ran = kernels(bench.on, call)
            else:
                ms = once(bench.on, call)
                if unit:
                    (later if step else first).append(ms)
            step += 1
    for slot in slots:
        engine.close(slot)
    return Spoken(statistics.median(first), statistics.median(later) / engine._speaker.burst, ran)


def vocoder(bench: Bench, config: Config, counts: Iterable[int], steps: int, dtype: str) -> Iterator[Stage]:
    """Flow and generator on the fifth chunk of a turn; the generator and the whole step with the default settings alone."""
    default = steps == 5 and dtype == "float32"
    engine = MiniCpmVocoderEngine(bench.vocoder(flow_steps=steps, flow_dtype=dtype, plain=not default))
    engine.load()
    networks, device, prompt = engine._vocoder, bench.on, voice_prompt(engine)
    networks.warm_up(max(counts), [prompt.span.frames])
    kind, element = ("bf16", 2) if dtype == "bfloat16" else ("fp32", 4)
    for sessions in counts:
        floors, draw, slots = Floors(config, sessions, bench.context), np.random.default_rng(5), list(range(sessions))
        for slot in slots:
            networks.begin(slot, prompt)
        pieces = [Piece(tuple(draw.integers(0, config.flow.codes, 28).tolist()), CHUNK, False) for _ in slots]
        for _ in range(4):
            networks.step(slots, pieces)
        cached = networks.arena.dit.element_size()
        floor = floors.flow(steps, prompt.span.frames, element=element, cached=cached, kind=kind)
        rows = torch.tensor(networks._caches.rows(slots, pieces, CHUNK)).to(device)
        attention = networks._retention.plan(slots, [CHUNK] * sessions, CHUNK)
        yield _stage(
            f"flow, {steps} steps, {kind}",
            sessions,
            device,
            lambda slots=slots, pieces=pieces: networks._caches.run(slots, pieces, CHUNK),  # type: ignore[misc]
            floor,
            lambda rows=rows, attention=attention: networks._caches.forward(rows, attention),  # type: ignore[misc]
        )
        if default:
            yield from _sounding(networks, floors, slots, pieces, floor, device)
    engine._voices.close()


def _sounding(
    networks: Vocoder, floors: Floors, slots: list[int], pieces: list[Piece], flow: Floor, device: torch.device
) -> Iterator[Stage]:
    mel, _ = networks._caches.run(slots, pieces, CHUNK)
    cuts = [networks._sound.cut(slot, 2 * CHUNK, False) for slot in slots]
    rows = torch.tensor(networks._sound.rows(slots, cuts)).to(device)
    window, sessions = networks._sound.kept + 2 * CHUNK, len(slots)

    def eager() -> object:
        return networks._sound.run(slots, cuts, mel)

    def replayed() -> object:
        return networks._sound.forward(rows, mel)

    yield _stage("HiFT, TF32 convolutions", sessions, device, eager, floors.sounding(window, "tf32"), replayed)
    with exact():
        yield _stage("HiFT, fp32 convolutions", sessions, device, eager, floors.sounding(window, "fp32"), replayed)

    def step() -> object:
        return networks.step(slots, pieces)

    graphs, both = networks._graphs, flow + floors.sounding(window, "fp32")
    served = statistics.median(timed(device, step, REPEATS)) if graphs.on else None
    before, graphs.on = graphs.on, False
    made = _stage("vocoder, whole step", sessions, device, step, both)
    graphs.on = before
    yield msgspec.structs.replace(made, graph_ms=served, served=True)


def voice_prompt(engine: MiniCpmVocoderEngine) -> Prompt:
    """The voice of 250 frames, set up."""
    ready, recording = threading.Event(), engine._named[VOICE]
    assert isinstance(recording, Recorded)
    voice = engine._voices.hold(recording, ready.set)
    ready.wait()
    if voice.prompt is None:
        raise RuntimeError(f"the voice was not set up: {voice.error}")
    return voice.prompt


def _stage(
    name: str, sessions: int, device: torch.device, call: Callable[[], object], floor: Floor, replayed: Callable[[], object] | None = None
) -> Stage:
    ms = statistics.median(timed(device, call, REPEATS))
    return Stage(name, sessions, ms, floor, kernels(device, call), None if replayed is None else graphed(device, replayed))


def _thought(config: Config, seed: int) -> Any:
    hidden = np.random.default_rng(seed).standard_normal((TEXT_TOKENS, config.llm.hidden_size)).astype("<f4")
    tensor = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=hidden.shape, data=hidden.tobytes())
    return stage_pb2.Payload(thought=stage_pb2.Thought(token_ids=[872, 873, 874][:TEXT_TOKENS], hidden=tensor))


def _slot(row: int) -> Any:
    """What `tune` reads of a slot."""
    return SimpleNamespace(session_id=f"bench {row}", state=SimpleNamespace(row=row))
