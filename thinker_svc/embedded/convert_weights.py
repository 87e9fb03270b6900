"""A Llama model's weights, dequantised from a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

Array = npt.NDArray[np.float32]


class UnsupportedModel(Exception):
    """The GGUF is not of a kind that this converter reads."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    layers: int
    heads: int
    heads_kv: int
    rope_base: float
    rms_epsilon: float
    context_tokens: int


@dataclass
class Layer:
    """Matrices are [out, in], norms [size], float32. Queries and keys hold each head's rotated dimensions as two halves."""

    attention_norm: Array
    query: Array
    key: Array
    value: Array
    output: Array
    feed_norm: Array
    gate: Array
    up: Array
    down: Array


@dataclass
class Weights:
    """The whole model. The output projection is the embeddings' transpose."""

    shape: Shape
    embeddings: Array  # [vocabulary, width]
    layers: list[Layer]
    final_norm: Array


class Gguf:
    """Metadata and tensors of one file. Raises UnsupportedModel."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(str(path))
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise UnsupportedModel(f"architecture '{architecture}' is not supported; expected 'llama'")
        if "output.weight" in self._tensors:
            raise UnsupportedModel("a separate output matrix is not supported")

    def field(self, name: str) -> Any:
        """Raises UnsupportedModel when the file lacks it."""
        found = self._reader.fields.get(name)
        if found is None:
            raise UnsupportedModel(f"metadata '{name}' is missing")
        return found.contents()

    def weights(self) -> Weights:
        """Everything at once: four bytes a parameter."""
        shape = Shape(
            layers=self.field("llama.block_count"),
            heads=self.field("llama.attention.head_count"),
            heads_kv=self.field("llama.attention.head_count_kv"),
            rope_base=self.field("llama.rope.freq_base"),
            rms_epsilon=self.field("llama.attention.layer_norm_rms_epsilon"),
            context_tokens=self.field("llama.context_length"),
        )
        layers = [self._layer(f"blk.{index}.", shape) for index in range(shape.layers)]
        return Weights(shape, self._tensor("token_embd.weight"), layers, self._tensor("output_norm.weight"))

    def _layer(self, prefix: str, shape: Shape) -> Layer:
        return Layer(
            attention_norm=self._tensor(prefix + "attn_norm.weight"),
            query=_in_halves(self._tensor(prefix + "attn_q.weight"), shape.heads),
            key=_in_halves(self._tensor(prefix + "attn_k.weight"), shape.heads_kv),
            value=self._tensor(prefix + "attn_v.weight"),
            output=self._tensor(prefix + "attn_output.weight"),
            feed_norm=self._tensor(prefix + "ffn_norm.weight"),
            gate=self._tensor(prefix + "ffn_gate.weight"),
            up=self._tensor(prefix + "ffn_up.weight"),
            down=self._tensor(prefix + "ffn_down.weight"),
        )

    def _tensor(self, name: str) -> Array:
        found = self._tensors.get(name)
        if found is None:
            raise UnsupportedModel(f"tensor '{name}' is missing")
        values: Array = dequantize(found.data, found.tensor_type)
        return values.astype(np.float32)


def _in_halves(weight: Array, heads: int) -> Array:
    # GGUF holds the rotated dimensions as neighbouring pairs
    out, width = weight.shape
    return weight.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)
