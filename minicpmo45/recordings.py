"""The WAV files of voices: what a service takes for one."""

from __future__ import annotations

import wave
from pathlib import Path

from minicpmo45.errors import CheckpointError

RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
SHORTEST_MS = 500
LONGEST_S = 17.0
"""Of a voice that services take unless they are told otherwise."""


def check_recording(file: Path, longest_s: float | None = None) -> None:
    """Opens a voice's file and reads it to its end. Raises CheckpointError that names it: it is no PCM16 WAV at a usual rate, or too short,
    too long, silent, or cut short."""
    try:
        with wave.open(str(file), "rb") as opened:
            width, rate, channels, stated = opened.getsampwidth(), opened.getframerate(), opened.getnchannels(), opened.getnframes()
            held = 0
            loud = False
            while piece := opened.readframes(1 << 16):
                held += len(piece)
                loud = loud or any(piece)
    except OSError as error:
        raise CheckpointError(file.name, error.strerror or str(error)) from None
    except (EOFError, wave.Error, ValueError) as error:
        raise CheckpointError(file.name, f"no WAV file: {error or type(error).__name__}") from None
    frames = held // (width * channels)
    if width != 2:
        raise CheckpointError(file.name, f"has samples of {8 * width} bits, not PCM16")
    if rate not in RATES:
        raise CheckpointError(file.name, f"its rate is {rate} Hz, none of {', '.join(map(str, RATES))}")
    if frames < stated:
        raise CheckpointError(file.name, f"is cut short: {frames} of {stated} samples")
    if frames * 1000 < SHORTEST_MS * rate:
        raise CheckpointError(file.name, f"is shorter than {SHORTEST_MS} ms")
    if longest_s is not None and frames > longest_s * rate:
        raise CheckpointError(file.name, f"is longer than {longest_s:g} s")
    if not loud:
        raise CheckpointError(file.name, "holds nothing but silence")
