"""What the parity tests of the language side share with the script that ran the reference: weights, embeddings and a conversation, from
seeds."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minicpmo45.config import Config
from minicpmo45.layout import safetensors_layout, select

FIXTURES = Path(__file__).parent / "fixtures" / "language"
INSTRUCTIONS = "You talk to me."
VOICE_ROWS = 12
QUERIES = 64
COLUMNS = np.concatenate([np.arange(0, 151_748, 1499), np.arange(151_700, 151_723), np.arange(64, 92)])
"""Columns of the logits that fixtures hold."""
SPEAK, LISTEN, TURN_EOS, CHUNK_EOS, TTS_BOS = 151_706, 151_705, 151_717, 151_718, 151_703
LONG = 30_000
"""An ordinary token of three letters."""


class UnitScript(NamedTuple):
    """A unit of the conversation. frames: slices of each frame. forced: the client interrupts before it."""

    drawn: tuple[int, ...]
    frames: tuple[int, ...] = ()
    forced: bool = False


CONVERSATION = (
    UnitScript((LISTEN,)),
    UnitScript((SPEAK, 65, 66, 67, CHUNK_EOS)),
    UnitScript((SPEAK, 70, CHUNK_EOS), (1,)),
    UnitScript((LISTEN, 71, 72, CHUNK_EOS), (3, 1)),
    UnitScript((SPEAK, 73, TURN_EOS, CHUNK_EOS)),
    UnitScript((LISTEN,)),
    UnitScript((SPEAK, 74, 75, CHUNK_EOS)),
    UnitScript((), forced=True),
    UnitScript((SPEAK, *range(64, 88))),
    UnitScript((SPEAK, *[LONG] * 12)),
    UnitScript((SPEAK, 65, TURN_EOS, CHUNK_EOS), (2,)),
    UnitScript((LISTEN,)),
    UnitScript((SPEAK, 80, 81, CHUNK_EOS)),
    UnitScript((CHUNK_EOS,)),
    UnitScript((SPEAK, 82, TURN_EOS, CHUNK_EOS)),
    UnitScript((LISTEN,)),
)
WINDOWS: dict[str, dict[str, Any]] = {
    "off": {"sliding_window_mode": "off"},
    "basic": {"sliding_window_mode": "basic", "basic_window_high_tokens": 300, "basic_window_low_tokens": 120},
    "context": {"sliding_window_mode": "context", "context_max_units": 3, "context_previous_max_tokens": 9},
}


def llm_weights(config: Config) -> dict[str, Tensor]:
    """fp32 `llm.*`, each tensor from a seed of its own, so spread that every part matters."""
    return {name: _tensor(name, spec.shape) for name, spec in select(safetensors_layout(config), ("llm.",)).items()}


def _tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if len(shape) == 1:
        return torch.from_numpy(1.0 + 0.1 * values)
    return torch.from_numpy(values * np.float32(0.5 if "embed_tokens" in name else 1.2 / math.sqrt(shape[1])))


def embeddings(hidden: int, *key: int | str) -> Tensor:
    """fp32 [n, hidden] for ("voice",), ("audio", unit) or ("picture", unit, frame, slices): of a picture [slices, QUERIES, hidden]."""
    seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    shape = {"voice": (VOICE_ROWS, hidden), "audio": (10, hidden)}.get(str(key[0])) or (int(key[-1]), QUERIES, hidden)
    return torch.from_numpy(0.5 * np.random.default_rng(seed).standard_normal(shape, np.float32))


def fixture(name: str) -> dict[str, NDArray[Any]]:
    with np.load(FIXTURES / f"{name}.npz") as content:
        return dict(content)
