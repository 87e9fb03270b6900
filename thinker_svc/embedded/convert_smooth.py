"""Makes a Llama model fit for int8 activations without changing what it computes.

A few channels of this model's activations are far larger than the others, so that one int8 scale for all of them rounds the others away
and the answers get worse than those of the four-bit file. Here each channel is divided by a factor where it is made (norm, value or up
matrix) and the reading matrix multiplied by it: the difficulty moves into the weights, which have a scale for every row
(SmoothQuant, arXiv 2211.10438).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .convert_weights import Array, Layer, Shape, Weights

MIGRATION = 0.6
FLOOR = 1e-5


@dataclass
class Ranges:
    """Largest magnitude of each channel that a layer's matrices read."""

    attention_in: Array
    output_in: Array
    feed_in: Array
    down_in: Array


def smooth(weights: Weights, sample: list[int]) -> None:
    """Rescales in place. `sample`: token ids of a typical conversation."""
    for layer, ranges in zip(weights.layers, _measure(weights, sample), strict=True):
        _smooth_layer(layer, ranges, weights.shape)


def _smooth_layer(layer: Layer, ranges: Ranges, shape: Shape) -> None:
    factor = _factor(ranges.attention_in, layer.query, layer.key, layer.value)
    layer.attention_norm = layer.attention_norm / factor
    layer.query, layer.key, layer.value = layer.query * factor, layer.key * factor, layer.value * factor

    factor = _factor(ranges.feed_in, layer.gate, layer.up)
    layer.feed_norm = layer.feed_norm / factor
    layer.gate, layer.up = layer.gate * factor, layer.up * factor

    factor = _factor(ranges.down_in, layer.down)
    layer.up, layer.down = layer.up / factor[:, None], layer.down * factor

    # heads of a group read the same values, so they share their factors
    group = shape.heads // shape.heads_kv
    per_head = _factor(ranges.output_in, layer.output).reshape(shape.heads_kv, group, -1).max(axis=1)
    layer.value = layer.value / per_head.reshape(-1, 1)
    layer.output = layer.output * per_head.repeat(group, axis=0).reshape(-1)


def _factor(range_in: Array, *readers: Array) -> Array:
    weight_range = np.max([np.abs(reader).max(axis=0) for reader in readers], axis=0)
    factor: Array = np.maximum(range_in, FLOOR) ** MIGRATION / np.maximum(weight_range, FLOOR) ** (1 - MIGRATION)
    return factor


def _measure(weights: Weights, sample: list[int]) -> list[Ranges]:
    shape = weights.shape
    x = weights.embeddings[sample]
    measured = []
    for layer in weights.layers:
        attention_in = _norm(x, layer.attention_norm, shape.rms_epsilon)
        output_in = _attention(attention_in, layer, shape)
        x = x + output_in @ layer.output.T
        feed_in = _norm(x, layer.feed_norm, shape.rms_epsilon)
        gate = feed_in @ layer.gate.T
        down_in = gate / (1 + np.exp(-gate)) * (feed_in @ layer.up.T)
        x = x + down_in @ layer.down.T
        measured.append(Ranges(*(np.abs(each).max(axis=0) for each in (attention_in, output_in, feed_in, down_in))))
    return measured


def _norm(x: Array, gamma: Array, epsilon: float) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gamma
    return normed


def _attention(x: Array, layer: Layer, shape: Shape) -> Array:
    """[tokens, width] of the joined heads, before the output matrix."""
    length, group = len(x), shape.heads // shape.heads_kv
    query = _rotate((x @ layer.query.T).reshape(length, shape.heads, -1), shape.rope_base)
    key = _rotate((x @ layer.key.T).reshape(length, shape.heads_kv, -1), shape.rope_base).repeat(group, axis=1)
    value = (x @ layer.value.T).reshape(length, shape.heads_kv, -1).repeat(group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[-1])
    scores += np.triu(np.full((length, length), -np.inf, np.float32), 1)
    attention = np.exp(scores - scores.max(-1, keepdims=True))
    attention /= attention.sum(-1, keepdims=True)
    joined: Array = np.einsum("hqk,khd->qhd", attention, value).reshape(length, -1)
    return joined


def _rotate(x: Array, base: float) -> Array:
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = (each.astype(np.float32)[:, None, :] for each in (np.cos(angles), np.sin(angles)))
    first, second = x[..., :half], x[..., half:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
