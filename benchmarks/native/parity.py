"""The tiny model on the card against the same model on the CPU, before anything is timed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.native.house import House
from benchmarks.native.material import Bench
from benchmarks.native.precision import exact
from stage_kit import Engine
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from vocoder_svc.minicpmo45.caches import Piece
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.stream import CHUNK

UNITS = 4
GREEDY: list[dict[str, Any]] = [{"greedy": True}] * 3
FREE: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2, "top_k": 5}, {"seed": 3, "temperature": 0.4}]
FREE_CODES: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2, "temperature": 0.5}, {"seed": 3, "repetition_penalty": 1.3}]


class Said(msgspec.Struct, frozen=True):
    """What three sessions said, session by session."""

    tokens: list[list[list[int]]]
    hidden: list[NDArray[np.float32]]
    codes: list[list[list[int]]]
    sound: list[NDArray[np.float32]]


def say(bench: Bench, thinkers: list[dict[str, Any]], talkers: list[dict[str, Any]], dtype: str, *, plain: bool = True) -> Said:
    """Four units of three sessions; memory that nobody has written is NaN."""
    common = {"dtype": dtype, "plain": plain}
    # without a script random weights would listen; with one only the text is free
    free = bench.checkpoint / "parity_script.json"
    free.write_text('{"units": [["speak", null, null, null, "chunk_eos"], ["speak", null, null, "chunk_eos"]]}')
    thinker = MiniCpmThinkerEngine(bench.thinker(script=free, window_tokens=1024, **common))
    talker = MiniCpmTalkerEngine(bench.talker(**common))
    vocoder = MiniCpmVocoderEngine(bench.vocoder(flow_dtype=dtype, cache_dtype=dtype, flow_steps=5))
    engines: list[Engine] = [thinker, talker, vocoder]
    for engine in engines:
        engine.load()
    _poison(thinker, talker, vocoder)
    house = House(thinker, talker, vocoder)
    try:
        with house.open(3, thinkers, talkers) as lines:
            for _ in range(UNITS):
                house.unit(lines)
            return Said(
                tokens=[[list(thought.token_ids) for thought in line.thoughts] for line in lines],
                hidden=[np.concatenate([_states(thought) for thought in line.thoughts]) for line in lines],
                codes=[line.codes for line in lines],
                sound=[np.concatenate(line.slots["vocoder"].sound) for line in lines],
            )
    finally:
        vocoder._voices.close()


def compare(bench: Bench) -> list[dict[str, Any]]:
    """One row a comparison: what, the bound or rule, what was found, whether it holds."""
    cpu = msgspec.structs.replace(bench, device="cpu")
    with exact():
        truth = say(cpu, GREEDY, GREEDY, "float32")
        found = say(bench, GREEDY, GREEDY, "float32")
        rows = [
            _row("fp32, greedy text tokens", "equal", found.tokens == truth.tokens),
            _row("fp32, greedy speech codes", "equal", found.codes == truth.codes),
            _bound("fp32, hidden states", 1e-4, _error(found.hidden, truth.hidden)),
            _bound("fp32, waveform, of its peak", 1e-3, _error(found.sound, truth.sound)),
            *mels(cpu, bench),
        ]
    plain, graphs = (say(bench, FREE, FREE_CODES, "float32", plain=each) for each in (True, False))
    rows.append(_row("graphs against plain: drawn tokens and codes", "equal", (plain.tokens, plain.codes) == (graphs.tokens, graphs.codes)))
    rows.append(_bound("graphs against plain: hidden states", 1e-4, _error(graphs.hidden, plain.hidden)))
    half = say(bench, GREEDY, GREEDY, "bfloat16")
    finite = all(np.isfinite(each).all() for said in (found, plain, graphs, half) for each in (*said.hidden, *said.sound))
    rows.append(_row("NaN in unwritten memory reaches nothing", "finite", finite))
    same = np.mean([ours == theirs for ours, theirs in zip(_flat(half.tokens), _flat(truth.tokens), strict=False)])
    rows.append({"what": "bf16, greedy text tokens as fp32", "bound": "told", "found": f"{same:.0%}", "holds": True})
    return rows


def mels(cpu: Bench, bench: Bench) -> list[dict[str, Any]]:
    """The flow alone, chunk by chunk, on equal codes: fp32 on the card, then bf16."""
    truth = _mels(cpu, "float32")
    spread = float(np.std(truth))
    exactly, half = _mels(bench, "float32"), _mels(bench, "bfloat16")
    return [
        _bound("fp32, mel after 5 steps", 1e-4, float(np.abs(exactly - truth).max())),
        _bound("bf16, mel after 5 steps, rms error in parts of its spread", 0.1, float(np.sqrt(np.mean((half - truth) ** 2))) / spread),
    ]


def _mels(bench: Bench, dtype: str) -> NDArray[np.float32]:
    engine = MiniCpmVocoderEngine(bench.vocoder(flow_dtype=dtype, cache_dtype=dtype, flow_steps=5))
    engine.load()
    try:
        caches, prompt = engine._vocoder._caches, next(iter(engine._voices._known.values())).prompt
        assert prompt is not None
        draw, slots = np.random.default_rng(5), [0, 1]
        for slot in slots:
            caches.begin(slot, prompt)
        made = []
        for _ in range(5):
            pieces = [Piece(tuple(draw.integers(0, 6561, 28).tolist()), 25, False) for _ in slots]
            mel, after = caches.run(slots, pieces, CHUNK)
            caches.commit(slots, pieces, slots, after)
            made.append(mel.cpu().numpy())
        return np.concatenate(made, 1)
    finally:
        engine._voices.close()


def _poison(thinker: MiniCpmThinkerEngine, talker: MiniCpmTalkerEngine, vocoder: MiniCpmVocoderEngine) -> None:
    for pool in (thinker._pool, talker._pool):
        pool._poison = True
        pool.spoil(list(range(1, pool.pages)))
    thinker._perception.cache.fill_(torch.nan)
    arena, room = vocoder._vocoder.arena, vocoder._vocoder.voice_room
    for tensor, frames in ((arena.dit, room.start), (arena.mel, room.start), (arena.token, room.start // 2)):
        tensor[..., :frames, :] = torch.nan


def _states(thought: Any) -> NDArray[np.float32]:
    dtype = torch.bfloat16 if len(thought.hidden.data) == 2 * len(thought.token_ids) * thought.hidden.shape[1] else torch.float32
    return torch.frombuffer(bytearray(thought.hidden.data), dtype=dtype).float().view(*thought.hidden.shape).numpy()


def _error(found: list[NDArray[np.float32]], truth: list[NDArray[np.float32]]) -> float:
    """The largest difference, in parts of the largest value."""
    if any(ours.shape != theirs.shape for ours, theirs in zip(found, truth, strict=True)):
        return float("inf")
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in zip(found, truth, strict=True))


def _flat(tokens: list[list[list[int]]]) -> list[int]:
    return [token for session in tokens for unit in session for token in unit]


def _row(what: str, bound: str, holds: bool) -> dict[str, Any]:
    return {"what": what, "bound": bound, "found": bound if holds else "not", "holds": bool(holds)}


def _bound(what: str, bound: float, found: float) -> dict[str, Any]:
    return {"what": what, "bound": f"{bound:g}", "found": f"{found:.2g}", "holds": bool(found <= bound)}
