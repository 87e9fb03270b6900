"""What the measured engines are given: a random checkpoint, a script of decisions, a voice, sound and pictures."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from minicpmo45.config import Config, tiny
from minicpmo45.layout import GAIN
from minicpmo45.random_assets import write_voice
from minicpmo45.random_checkpoint import INDEX, write
from minicpmo45.shard import read_header
from minicpmo45.weights import DTYPES
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

LOUDER = 8.0
"""Than in a random checkpoint, where they spread like 1, are the logits of all codes but the end."""
VOICE = "bench_voice"
VOICE_S = 5.0
"""250 mel frames."""
SPEAK = ["speak", 872, 873, 874, "chunk_eos"]
LISTEN = ["listen"]
TEXT_TOKENS = len(SPEAK) - 2
SIDE = 448
Samples = NDArray[np.float32]


class Bench(msgspec.Struct, frozen=True):
    """One run: where the checkpoint lies, on what it runs, and how full sessions are."""

    checkpoint: Path
    device: str
    context: int
    """Tokens that each session's window is filled with before its first unit."""
    held: int
    """Tokens of a talker's turn before its first unit."""
    slots: int

    @property
    def on(self) -> torch.device:
        return torch.device(self.device)

    def thinker(self, **settings: Any) -> MiniCpmThinkerSettings:
        script = script_file(self.checkpoint)
        common: dict[str, Any] = {"checkpoint": self.checkpoint, "device": self.device, "slots": self.slots, "script": script}
        return MiniCpmThinkerSettings(**{**common, **settings})

    def talker(self, **settings: Any) -> MiniCpmTalkerSettings:
        common: dict[str, Any] = {"checkpoint": self.checkpoint, "device": self.device, "slots": self.slots}
        return MiniCpmTalkerSettings(**{**common, **settings})

    def vocoder(self, **settings: Any) -> MiniCpmVocoderSettings:
        common: dict[str, Any] = {"checkpoint": self.checkpoint, "device": self.device, "slots": self.slots, "batch": self.slots}
        common |= {"voices_bytes": 1_000_000_000 if self.on.type == "cuda" else 60_000_000}
        return MiniCpmVocoderSettings(**{**common, **settings})


def checkpoint(path: Path, *, full: bool, seed: int = 45) -> float:
    """Makes what is missing; seconds that it took."""
    began = time.monotonic()
    if not path.exists():
        write(path, Config() if full else tiny(), seed)
        _mute_end_code(path)
    voice = path / "assets" / f"{VOICE}.wav"
    if not voice.exists():
        write_voice(voice, seed, VOICE_S)
    script_file(path).write_text(json.dumps({"units": [SPEAK]}))
    return time.monotonic() - began


def _mute_end_code(path: Path) -> None:
    """Its logit is 0, far below those that are drawn, since all others spread more widely: as they are written a code in 7000 would be
    the end. An opening unit that has none or few codes is heard with the next one, and all behind it is counted a unit late."""
    name = f"tts.head_code.0{GAIN}"
    shard = path / json.loads((path / INDEX).read_text())["weight_map"][name]
    stored = read_header(shard)[name]
    with shard.open("r+b") as file:
        file.seek(stored.begin)
        gains = torch.frombuffer(bytearray(file.read(stored.end - stored.begin)), dtype=DTYPES[stored.dtype])
        gains *= LOUDER
        gains[-1] = 0
        file.seek(stored.begin)
        file.write(gains.view(torch.uint8).numpy().tobytes())


def script_file(path: Path) -> Path:
    """Every unit speaks: the worst case."""
    return path / "bench_script.json"


def sound(samples: int, seed: int) -> Samples:
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def picture(seed: int = 0) -> bytes:
    """A JPEG of 448 x 448 that compresses as a photograph does."""
    coarse = np.random.default_rng(seed).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
