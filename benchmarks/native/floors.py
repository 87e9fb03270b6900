"""The least that a stage must read and compute, from the model's own sizes: each weight, key and value read once."""

from __future__ import annotations

import math

import msgspec

from benchmarks.native.card import Card
from minicpmo45.config import Config
from minicpmo45.layout import Layout, flow_layout, hift_layout, safetensors_layout

BF16 = 2
WIDENED_TOKENS = 128
"""Up to so many tokens matrices in e4m3 are widened, and products are those of bf16; see `torch_kit/fused_decoder.py`."""


class Floor(msgspec.Struct, frozen=True):
    """`kind`: on which units the products run."""

    nbytes: float
    flops: float
    kind: str = "bf16"

    def ms(self, card: Card) -> float:
        return max(self.nbytes / card.copy_bytes_s, self.flops / card.flops(self.kind)) * 1000

    def __add__(self, other: Floor) -> Floor:
        return Floor(self.nbytes + other.nbytes, self.flops + other.flops, self.kind)

    def __mul__(self, times: float) -> Floor:
        return Floor(self.nbytes * times, self.flops * times, self.kind)


class Floors:
    """Of `sessions` sessions that do the same thing at once. `context`: tokens before the unit. `weight`: bytes of a weight of the
    thinker's blocks; if 1, products of more than WIDENED_TOKENS tokens are those of fp8."""

    def __init__(self, config: Config, sessions: int, context: int, *, weight: int = BF16) -> None:
        self._config, self._sessions, self._context, self._weight = config, sessions, context, weight
        layout = safetensors_layout(config)
        self._blocks = _parameters(layout, "llm.model.layers.")
        self._head = config.llm.vocab_size * config.llm.hidden_size
        self._audio = _parameters(layout, "apm.", "audio_projection_layer.")
        self._audio_blocks = _parameters(layout, "apm.layers.", "audio_projection_layer.")
        self._vision = _parameters(layout, "vpm.", "resampler.")
        self._vision_blocks = _parameters(layout, "vpm.encoder.layers.")
        self._talker = _parameters(layout, "tts.model.layers.") + config.talker.codes * config.talker.hidden_size
        flow = flow_layout(config.flow)
        self._dit = _parameters(flow, "decoder.estimator.", without="adaLN_modulation")
        self._conformer = sum(spec.parameters for spec in flow.values()) - _parameters(flow, "decoder.estimator.")
        self._hift = sum(spec.parameters for spec in hift_layout(config.hift).values())

    def forward(self, tokens: int) -> Floor:
        """`tokens` new tokens of each session; one row of logits each."""
        llm = self._config.llm
        cached = self._context * llm.layers * 2 * llm.kv_heads * llm.head_dim * BF16
        attention = 4 * llm.heads * llm.head_dim * llm.layers * (self._context + tokens / 2)
        each = tokens * (2 * self._blocks + attention) + 2 * self._head
        kind = "fp8" if self._weight == 1 and self._sessions * tokens > WIDENED_TOKENS else "bf16"
        return Floor(self._blocks * self._weight + self._head * BF16 + self._sessions * cached, self._sessions * each, kind)

    def head(self) -> Floor:
        """Logits of one row of each session; the draws read them once."""
        logits = self._sessions * self._config.llm.vocab_size * 4
        return Floor(self._head * BF16 + logits, 2 * self._head * self._sessions)

    def hearing(self, cached: float) -> Floor:
        """Encoder of one unit; `cached`: frames before it, on average."""
        audio = self._config.audio
        keys = cached * audio.layers * 2 * audio.d_model * BF16
        attention = 4 * audio.d_model * audio.layers * 50 * (cached + 50)
        return Floor(self._audio * BF16 + self._sessions * keys, self._sessions * (2 * self._audio_blocks * 50 + attention))

    def seeing(self, patches: int) -> Floor:
        """Encoder and resampler of one picture of each session."""
        vision = self._config.vision
        width = self._config.llm.hidden_size
        attention = 4 * vision.hidden_size * vision.layers * patches**2
        resampler = 2 * patches * (vision.hidden_size + 2 * width) * width + 6 * vision.queries * width**2
        each = 2 * self._vision_blocks * patches + attention + resampler
        return Floor(self._vision * BF16, self._sessions * each)

    def speaking(self, tokens: int, held: int) -> Floor:
        """`tokens` of each session through the talker, `held` before them."""
        talker = self._config.talker
        keys = held * talker.layers * 2 * talker.hidden_size * BF16
        return Floor(self._talker * BF16 + self._sessions * keys, self._sessions * tokens * 2 * self._talker)

    def flow(self, steps: int, prompt: int, *, element: int, cached: int, kind: str) -> Floor:
        """A chunk of 50 frames; `prompt` frames are read once for all, 100 of each session. `element`, `cached`: bytes of a number."""
        flow = self._config.flow
        frame = 4 * flow.dit_heads * flow.dit_head_dim * flow.dit_depth * cached
        keys = steps * frame * (prompt + 100 * self._sessions)
        attention = 2 * 4 * flow.dit_depth * flow.dit_hidden * 50 * (prompt + 150)
        each = steps * (2 * 50 * 2 * self._dit + attention) + 2 * 50 * self._conformer
        return Floor((steps * self._dit + self._conformer) * element + keys, self._sessions * each, kind)

    def sounding(self, frames: int, kind: str) -> Floor:
        """The generator over a window of `frames`: its transposed and residual convolutions at their own rates."""
        hift = self._config.hift
        total, width, rate = 2 * frames * 7 * hift.mels * hift.channels, hift.channels, 1
        for stage, (up, kernel) in enumerate(zip(hift.upsample_rates, hift.upsample_kernels, strict=True)):
            total += 2 * frames * rate * kernel * width * (width // 2)
            width, rate = width // 2, rate * up
            blocks = [*hift.resblock_kernels, hift.source_kernels[stage]]
            total += sum(2 * frames * rate * size * width**2 * 2 * len(hift.resblock_dilations) for size in blocks)
        return Floor(self._hift * 4, self._sessions * total, kind)


def _parameters(layout: Layout, *prefixes: str, without: str = "\0") -> int:
    return sum(math.prod(spec.shape) for name, spec in layout.items() if name.startswith(prefixes) and without not in name)
