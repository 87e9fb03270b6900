"""Thoughts as they come over the wire, checked and turned into tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from parley_stage.v1 import stage_pb2
from torch import Tensor

from minicpmo45.config import TalkerConfig

_DTYPES = {
    stage_pb2.D_TYPE_F32: torch.float32,
    stage_pb2.D_TYPE_F16: torch.float16,
    stage_pb2.D_TYPE_BF16: torch.bfloat16,
}


class BadThought(ValueError):
    """A thought cannot be spoken: `param` names the field at fault."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param


@dataclass(frozen=True, slots=True)
class Words:
    """What one unit is to say."""

    token_ids: tuple[int, ...]
    hidden: Tensor
    """[n, llm_dim] on the host, of the network's element type."""
    turn_end: bool


def words(thought: stage_pb2.Thought, config: TalkerConfig, most_tokens: int, dtype: torch.dtype = torch.float32) -> Words:
    """With hidden states of `dtype`. Raises BadThought."""
    ids = tuple(thought.token_ids)
    if len(ids) > most_tokens:
        raise BadThought("thought.token_ids", f"{len(ids)} tokens, {most_tokens} are allowed")
    if any(not 0 <= token < config.text_tokens for token in ids):
        raise BadThought("thought.token_ids", f"not from 0 to {config.text_tokens - 1}")
    return Words(ids, _hidden(thought.hidden, (len(ids), config.llm_dim)).to(dtype), thought.turn_end)


def _hidden(tensor: stage_pb2.Tensor, shape: tuple[int, int]) -> Tensor:
    if not shape[0]:
        if tensor.data:
            raise BadThought("thought.hidden", "states without tokens")
        return torch.zeros(shape)
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadThought("thought.hidden.dtype", "unknown")
    if tuple(tensor.shape) != shape:
        raise BadThought("thought.hidden.shape", f"{tuple(tensor.shape)}, not {shape}")
    if len(tensor.data) != math.prod(shape) * dtype.itemsize:
        raise BadThought("thought.hidden.data", f"{len(tensor.data)} bytes do not fit the shape")
    hidden = torch.frombuffer(bytearray(tensor.data), dtype=dtype).view(shape)
    if not bool(hidden.isfinite().all()):
        raise BadThought("thought.hidden.data", "holds NaN or infinity")
    return hidden
