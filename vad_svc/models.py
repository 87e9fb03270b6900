"""Where the listening service finds its model files, and how it opens them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import onnxruntime

SILERO = "silero/silero_vad.onnx"
SMART_TURN = "smart-turn/smart-turn-v3.2-cpu.onnx"
SHA256 = {
    SILERO: "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    SMART_TURN: "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
}


class ModelMissing(OSError):
    """A model file is not in the cache. One line, with what to do."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"model file {path} is missing; run: parley models fetch")
        self.path = path


class ModelMismatch(OSError):
    """A model file is not the pinned one. One line, with what to do."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"model file {path} is not the pinned one; remove it, then: parley models fetch")
        self.path = path


def models_root() -> Path:
    """The cache folder: `PARLEY_MODELS`, else the user's cache folder."""
    if chosen := os.environ.get("PARLEY_MODELS"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "parley" / "models"


def open_model(name: str, root: Path | None = None) -> Any:
    """An onnxruntime session on one thread that does not spin. Raises ModelMissing, ModelMismatch."""
    path = (root or models_root()) / name
    if not path.exists():
        raise ModelMissing(path)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise ModelMismatch(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
