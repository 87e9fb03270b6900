"""Kinds of kernels that are compiled ahead, and those that a start launches, on a pretended card: prints both."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import torch
import triton
from structlog.testing import capture_logs
from torch import Tensor

from minicpmo45.config import FlowConfig, HiftConfig, tiny
from stage_kit import Label
from tests.support.graphs import RehearsedGraphs
from tests.support.pretended_card import PretendedCard
from tests.vocoder_svc.minicpmo45.weights import flow_weights, hift_weights
from vocoder_svc.minicpmo45 import fused_hift
from vocoder_svc.minicpmo45.compiling import compile_kernels
from vocoder_svc.minicpmo45.model import Vocoder
from vocoder_svc.minicpmo45.retention import Span
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings
from vocoder_svc.minicpmo45.stream import CHUNK, Turn
from vocoder_svc.minicpmo45.voice import SILENCE_CODE, Ear, Heard

FLOW = FlowConfig(hidden_size=32, heads=2, linear_units=64, blocks=3, up_blocks=3, dit_hidden=32, dit_depth=4, dit_heads=2, dit_head_dim=16)
PROMPTS = (110, 150)
kinds: dict[str, list[Any]] = {}
"""By name and Triton's key: name, all that is chosen, dtypes, but not the numbers that a launch is told."""


def _note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
    """Neither compiled nor launched."""
    signature, constants = compile["signature"], compile["constants"]
    names = list(signature)
    chosen = {names[path[0]]: str(value) for path, value in constants.items() if names[path[0]].isupper()}
    pointers = {name: kind for name, kind in signature.items() if kind.startswith("*")}
    kinds[f"{fn.name} {compile['key']}"] = [fn.name, chosen, pointers, compile["num_warps"], compile["num_stages"]]
    return True


def _vocoder(hift: HiftConfig) -> tuple[Vocoder, MiniCpmVocoderSettings]:
    settings = MiniCpmVocoderSettings(checkpoint=Path(), kernels="plain", slots=3, batch=3, flow_steps=3, voices_bytes=1 << 22)
    # the settings refuse these kernels on the CPU, where no other test runs them without the interpreter
    settings = settings.model_copy(update={"kernels": "fused", "flow_dtype": "float16", "hift_dtype": "float16"})
    return Vocoder(flow_weights(FLOW), hift_weights(hift), FLOW, hift, _Deaf(), settings), settings


class _Deaf(Ear):
    """Nobody asks it."""

    def __init__(self) -> None:
        pass


def _zeros(*size: Any, **options: Any) -> Tensor:
    made: Tensor = torch.zeros(*size, **options)
    return made


def _zeros_like(like: Tensor, **options: Any) -> Tensor:
    return torch.zeros_like(like, **options)


# what no kernel wrote is finite
@patch.multiple(torch, empty=_zeros, empty_like=_zeros_like)
def _start(vocoder: Vocoder) -> None:
    """As the engine does it."""
    vocoder._graphs = RehearsedGraphs()
    draw = np.random.default_rng(0)
    for frames in PROMPTS:
        codes, mel = np.full(frames // 2, SILENCE_CODE), draw.standard_normal((frames, FLOW.mels), np.float32)
        prompt = vocoder.set_up(Heard(codes, mel, draw.standard_normal(192, np.float32)), Span(vocoder.voice_room.start, frames))
    turn = Turn(Label())
    turn.push([SILENCE_CODE] * CHUNK, last=True)
    vocoder.begin(0, prompt)
    for piece in turn.pieces:
        vocoder.step([0], [piece])
    vocoder.warm_up(3, PROMPTS)


def _kinds_of(run: Callable[[], None]) -> dict[str, Any]:
    """And what was logged."""
    kinds.clear()
    with capture_logs() as logs:
        run()
    return {"kinds": dict(kinds), "logs": logs}


def main() -> None:
    PretendedCard().install()
    triton.knobs.runtime.jit_cache_hook = _note
    # batches of four are decoded in two parts
    fused_hift.ROWS_AT_ONCE = 2
    told: dict[str, Any] = {}
    for name in ("first", "causal"):
        hift = HiftConfig(channels=256, f0_channels=32, causal=name == "causal")
        vocoder, settings = _vocoder(hift)
        given = vocoder, settings.model_copy(update={"device": "cuda"}), msgspec.structs.replace(tiny(), flow=FLOW, hift=hift)
        told[name] = [_kinds_of(partial(compile_kernels, *given, PROMPTS)), _kinds_of(partial(_start, vocoder))]
        told["no voice"] = _kinds_of(partial(compile_kernels, *given, ()))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
