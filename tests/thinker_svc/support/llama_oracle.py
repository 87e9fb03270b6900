"""A plain float32 forward pass of a Llama GGUF in numpy, written from the architecture and not from the converter: the tests' oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

Array = npt.NDArray[np.float32]


class LlamaOracle:
    """Logits for a whole prompt at once; rotates pairs of neighbours, as the GGUF lays queries and keys out."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(str(path))
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        field = {name: reader.fields[name].contents for name in reader.fields}
        self._layers = field["llama.block_count"]()
        self._heads = field["llama.attention.head_count"]()
        self._heads_kv = field["llama.attention.head_count_kv"]()
        self._base = field["llama.rope.freq_base"]()
        self._epsilon = field["llama.attention.layer_norm_rms_epsilon"]()
        self.tokens: list[str] = field["tokenizer.ggml.tokens"]()

    def logits(self, ids: list[int]) -> Array:
        """[tokens, vocabulary], float32."""
        embeddings = self._weight("token_embd.weight")
        x = embeddings[ids]
        for layer in range(self._layers):
            x = x + self._attention(f"blk.{layer}.", x)
            x = x + self._feed_forward(f"blk.{layer}.", x)
        return self._norm(x, "output_norm.weight") @ embeddings.T

    def _attention(self, prefix: str, x: Array) -> Array:
        normed = self._norm(x, prefix + "attn_norm.weight")
        query = self._rotate(self._heads_of(normed @ self._weight(prefix + "attn_q.weight").T, self._heads))
        key = self._rotate(self._heads_of(normed @ self._weight(prefix + "attn_k.weight").T, self._heads_kv))
        value = self._heads_of(normed @ self._weight(prefix + "attn_v.weight").T, self._heads_kv)
        group = self._heads // self._heads_kv
        key, value = key.repeat(group, axis=0), value.repeat(group, axis=0)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        scores += np.triu(np.full(scores.shape[-2:], -np.inf, np.float32), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ value).swapaxes(0, 1).reshape(len(x), -1)
        return mixed @ self._weight(prefix + "attn_output.weight").T

    def _feed_forward(self, prefix: str, x: Array) -> Array:
        normed = self._norm(x, prefix + "ffn_norm.weight")
        gate = normed @ self._weight(prefix + "ffn_gate.weight").T
        up = normed @ self._weight(prefix + "ffn_up.weight").T
        return (gate / (1 + np.exp(-gate)) * up) @ self._weight(prefix + "ffn_down.weight").T

    def _rotate(self, x: Array) -> Array:
        _, length, size = x.shape
        angles = np.arange(length)[:, None] * self._base ** (-np.arange(0, size, 2) / size)[None, :]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1).reshape(x.shape)

    def _heads_of(self, x: Array, heads: int) -> Array:
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)

    def _norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self._epsilon) * self._weight(name)

    def _weight(self, name: str) -> Array:
        tensor = self._tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
