"""The decoder half of a Piper voice on onnxruntime: latents to samples, one thread for all sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHANNELS = 192
HOP_SAMPLES = 256
RATE_HZ = 22050
CONTEXT_FRAMES = 32
"""Frames on either side beyond which the decoder does not look: with them a stretch decodes as it would within the whole."""
_DECODER = "decoder.onnx"


class VoiceMissing(FileNotFoundError):
    """The decoder is not in the cache folder."""


class PiperDecoder:
    """Deterministic; keeps nothing between calls."""

    def __init__(self, folder: Path) -> None:
        """Reads the decoder from `folder`. Raises VoiceMissing."""
        if not (folder / _DECODER).is_file():
            raise VoiceMissing(f"{folder.name}/{_DECODER} is not in the models folder; run: parley models fetch")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(str(folder / _DECODER), options, providers=["CPUExecutionProvider"])

    def decode(self, latents: NDArray[np.float32]) -> NDArray[np.float32]:
        """Latents float32 [192, frames], at least one frame, to samples float32 [256 * frames] at 22050 Hz, within [-1, 1]."""
        mask = np.ones((1, 1, latents.shape[1]), np.float32)
        samples: NDArray[np.float32] = self._session.run(["output"], {"latents": latents[np.newaxis], "mask": mask})[0].reshape(-1)
        return samples
