"""Moonshine tiny on onnxruntime: one utterance of 16 kHz audio to English text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from thinker_svc.embedded.models import locate

RATE = 16_000
LEAST_SAMPLES = RATE // 10
"""The encoder's convolutions need a little under 0.1 s."""
_FOLDER = "moonshine-tiny"
_BEGIN, _END = 1, 2
_TOKENS_PER_S = 6.5
_HEADS, _HEAD_WIDTH = 8, 36
_WORD_START = "\u2581"
_SPECIALS = 3


class Heard(NamedTuple):
    """A decode. Confidence is the mean log probability of its tokens; capped says that the token bound ended it."""

    text: str
    tokens: tuple[int, ...]
    confidence: float
    capped: bool


class Vocabulary:
    """Token id -> bytes. The file is one entry after the other: a length of one or two bytes, then that many bytes."""

    def __init__(self, content: bytes) -> None:
        """Raises ValueError when the file ends inside an entry."""
        self._pieces: list[bytes] = []
        at = 0
        while at < len(content):
            length, at = content[at], at + 1
            if length >= 0x80:
                if at >= len(content):
                    raise ValueError("the vocabulary file ends inside an entry")
                length, at = (length & 0x7F) + 0x80 * content[at], at + 1
            if at + length > len(content):
                raise ValueError("the vocabulary file ends inside an entry")
            self._pieces.append(content[at : at + length])
            at += length

    def __len__(self) -> int:
        return len(self._pieces)

    def text(self, tokens: tuple[int, ...]) -> str:
        """Joins pieces, single bytes too; what is no UTF-8 becomes the replacement character."""
        joined = b"".join(self._pieces[token] for token in tokens if token >= _SPECIALS)
        return joined.decode("utf-8", "replace").replace(_WORD_START, " ").strip()


class Moonshine:
    """Encoder and key-value cached decoder, greedy. Not thread-safe. Raises ModelMissing."""

    def __init__(self, root: Path | None = None) -> None:
        self.vocabulary = Vocabulary(locate(f"{_FOLDER}/tokenizer.bin", root).read_bytes())
        self._encoder = _open(locate(f"{_FOLDER}/encoder_model.ort", root))
        self._decoder = _open(locate(f"{_FOLDER}/decoder_model_merged.ort", root))
        outputs = [output.name for output in self._decoder.get_outputs()]
        self._cache = [(at, name.replace("present", "past_key_values")) for at, name in enumerate(outputs) if name.startswith("present")]

    def transcribe(self, samples: NDArray[np.float32]) -> Heard:
        """Float32 [n] at 16 kHz, n at least LEAST_SAMPLES, or ValueError. Time grows faster than length: cut what is over 15 s."""
        if samples.size < LEAST_SAMPLES:
            raise ValueError("too short for the recognizer")
        values = np.ascontiguousarray(samples, np.float32)[None]
        mask = np.ones(values.shape, np.int64)
        hidden = self._encoder.run(None, {"input_values": values, "attention_mask": mask})[0]
        past = {
            name: np.zeros((1, _HEADS, 0 if ".decoder." in name else hidden.shape[1], _HEAD_WIDTH), np.float32) for _, name in self._cache
        }
        # the decoder thins the mask by 384 itself: it wants the samples' mask, not that of the hidden states
        feed: dict[str, Any] = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        tokens: list[int] = []
        confidence, token, bound = 0.0, _BEGIN, max(1, int(samples.size / RATE * _TOKENS_PER_S))
        for step in range(bound):
            feed["input_ids"] = np.array([[token]], np.int64)
            feed["use_cache_branch"] = np.array([step > 0])
            outputs = self._decoder.run(None, feed | past)
            for at, name in self._cache:
                if step == 0 or ".decoder." in name:
                    past[name] = outputs[at]
            token, log_probability = _best(outputs[0][0, -1])
            confidence += log_probability
            if token == _END:
                return self._heard(tokens, confidence / (step + 1), False)
            tokens.append(token)
        return self._heard(tokens, confidence / bound, True)

    def _heard(self, tokens: list[int], confidence: float, capped: bool) -> Heard:
        return Heard(self.vocabulary.text(tuple(tokens)), tuple(tokens), confidence, capped)


def _best(logits: NDArray[np.float32]) -> tuple[int, float]:
    token = int(logits.argmax())
    return token, -math.log(float(np.exp(logits - logits[token]).sum()))


def _open(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
