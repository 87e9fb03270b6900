"""The two ONNX networks that hear a reference voice: opened, held against what they are called with, and tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minicpmo45.errors import CheckpointError

if TYPE_CHECKING:
    import onnxruntime

CODES = 6561
"""Of the S3 tokenizer."""
_FRAMES = 100
"""Of the sound that a network is tried with: a second."""


class Port(NamedTuple):
    """An input. None is a dimension that the caller chooses; a network that fixes it must fix it to 1 (the first), or not at all."""

    dtype: str
    shape: tuple[int | None, ...]


TOKENIZER = (Port("tensor(float)", (1, 128, None)), Port("tensor(int32)", (1,)))
SPEAKER = (Port("tensor(float)", (None, None, 80)),)


def open_speech_tokenizer(file: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """fp32 [1, 128, T] and int32 [1] to codes. Raises CheckpointError that names the file."""
    return _open(file, TOKENIZER, threads)


def open_speaker_model(file: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """fp32 [B, T, 80] to [B, 192]. Raises CheckpointError that names the file."""
    return _open(file, SPEAKER, threads)


def try_speech_tokenizer(file: Path) -> None:
    """A second of silence becomes 25 codes. Raises CheckpointError that names the file."""
    session = open_speech_tokenizer(file)
    answer = _run(file, session, [np.zeros((1, 128, _FRAMES), np.float32), np.array([_FRAMES], np.int32)])
    if not np.issubdtype(answer.dtype, np.integer) or answer.size != _FRAMES // 4:
        raise CheckpointError(file.name, f"answers {answer.dtype} {list(answer.shape)} to a second of sound, not {_FRAMES // 4} codes")
    if answer.min() < 0 or answer.max() >= CODES:
        raise CheckpointError(file.name, f"answers codes that are not from 0 to {CODES - 1}")


def try_speaker_model(file: Path, speaker_dim: int) -> None:
    """A second of sound becomes `speaker_dim` finite numbers. Raises CheckpointError that names the file."""
    session = open_speaker_model(file)
    sound = np.random.default_rng(0).standard_normal((1, _FRAMES, 80)).astype(np.float32)
    answer = _run(file, session, [sound])
    if answer.dtype != np.float32 or answer.size != speaker_dim:
        raise CheckpointError(file.name, f"answers {answer.dtype} {list(answer.shape)} to one voice, not {speaker_dim} numbers")
    if not np.isfinite(answer).all():
        raise CheckpointError(file.name, "answers NaN or infinity")


def _open(file: Path, ports: tuple[Port, ...], threads: int) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(file), sess_options=options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base
        raise CheckpointError(file.name, f"no network that onnxruntime opens: {_line(error)}") from None
    inputs = session.get_inputs()
    if len(inputs) != len(ports):
        raise CheckpointError(file.name, f"has {len(inputs)} inputs, not {len(ports)}")
    for given, port in zip(inputs, ports, strict=True):
        if given.type != port.dtype or not _fits(given.shape, port.shape):
            wanted = f"{port.dtype} {['any' if size is None else size for size in port.shape]}"
            raise CheckpointError(file.name, f"its input {given.name} is {given.type} {given.shape}, not {wanted}")
    return session


def _fits(given: list[Any], wanted: tuple[int | None, ...]) -> bool:
    if len(given) != len(wanted):
        return False
    return all(
        not isinstance(size, int) or size == (want if want is not None else 1 if at == 0 else None)
        for at, (size, want) in enumerate(zip(given, wanted, strict=True))
    )


def _run(file: Path, session: onnxruntime.InferenceSession, inputs: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    names = [each.name for each in session.get_inputs()]
    try:
        return np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])
    except Exception as error:  # its exceptions have no common base
        raise CheckpointError(file.name, f"fails on a second of sound: {_line(error)}") from None


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
