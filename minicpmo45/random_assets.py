"""Random stand-ins for the vocoder's two ONNX networks and its default voice: the real names, shapes, dtypes and rates."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicpmo45.config import SAMPLE_RATE_IN

FBANK_BINS = 80
"""Log-mel bins that CAM++ reads."""
TOKENIZER_MELS = 128
FSQ_DIGITS, FSQ_BASE = 8, 3
"""The S3 quantiser: 8 digits of 3 levels, 6561 codes."""
HIDDEN = 16


def write_speaker_model(file: Path, seed: int, speaker_dim: int) -> None:
    """`input` fp32 [B, T, 80] to `output` fp32 [B, speaker_dim]. Features come mean-subtracted: hence a rectifier before the mean."""
    import onnx
    from onnx import TensorProto, helper

    draw = np.random.default_rng((seed, 1))
    constants = {
        "first": draw.normal(0, FBANK_BINS**-0.5, (FBANK_BINS, HIDDEN)),
        "second": draw.normal(0, HIDDEN**-0.5, (HIDDEN, speaker_dim)),
    }
    nodes = [
        helper.make_node("MatMul", ["input", "first"], ["projected"]),
        helper.make_node("Relu", ["projected"], ["positive"]),
        helper.make_node("ReduceMean", ["positive"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["pooled", "second"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "campplus",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["B", "T", FBANK_BINS])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["B", speaker_dim])],
        [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    _save(file, graph)


def write_speech_tokenizer(file: Path, seed: int) -> None:
    """`feats` fp32 [1, 128, T], 100 frames a second, and `feats_length` int32 [1] to `indices` int32 [1, (feats_length + 3) // 4].

    Two convolutions of stride 2, then the quantiser as in S3TokenizerV2: tanh, round to -1, 0, 1, and base-3 digits to 0..6560.
    """
    import onnx
    from onnx import TensorProto, helper

    draw = np.random.default_rng((seed, 2))
    values: dict[str, NDArray[Any]] = {
        "conv1": draw.normal(0, (3 * TOKENIZER_MELS) ** -0.5, (HIDDEN, TOKENIZER_MELS, 3)),
        "conv2": draw.normal(0, 2 * (3 * HIDDEN) ** -0.5, (FSQ_DIGITS, HIDDEN, 3)),
        "one": np.ones(1),
        "nearly": np.array([0.999]),
        "digits": np.power(float(FSQ_BASE), np.arange(FSQ_DIGITS)).reshape(1, FSQ_DIGITS, 1),
    }
    constants = {name: value.astype(np.float32) for name, value in values.items()}
    constants |= {name: np.array([value], np.int32) for name, value in (("three", 3), ("four", 4), ("start", 0), ("axis", 1))}
    stride: dict[str, Any] = {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}
    nodes = [
        helper.make_node("Conv", ["feats", "conv1"], ["half"], **stride),
        helper.make_node("Tanh", ["half"], ["bent"]),
        helper.make_node("Conv", ["bent", "conv2"], ["quarter"], **stride),
        helper.make_node("Tanh", ["quarter"], ["bounded"]),
        helper.make_node("Mul", ["bounded", "nearly"], ["below"]),
        helper.make_node("Round", ["below"], ["levels"]),
        helper.make_node("Add", ["levels", "one"], ["digit"]),
        helper.make_node("Mul", ["digit", "digits"], ["placed"]),
        helper.make_node("ReduceSum", ["placed", "axis64"], ["codes"], keepdims=0),
        helper.make_node("Cast", ["codes"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Add", ["feats_length", "three"], ["padded"]),
        helper.make_node("Div", ["padded", "four"], ["length"]),
        helper.make_node("Slice", ["whole", "start", "length", "axis"], ["indices"]),
    ]
    graph = helper.make_graph(
        nodes,
        "speech_tokenizer_v2_25hz",
        [
            helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, TOKENIZER_MELS, "T"]),
            helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1]),
        ],
        [helper.make_tensor_value_info("indices", TensorProto.INT32, [1, "N"])],
        [onnx.numpy_helper.from_array(value, name) for name, value in (constants | {"axis64": np.array([1], np.int64)}).items()],
    )
    _save(file, graph)


def write_voice(file: Path, seed: int, seconds: float = 3.0) -> None:
    """A WAV file, 16 kHz mono PCM16: a gliding, breathing buzz of six harmonics, voiced and unvoiced by turns."""
    draw = np.random.default_rng((seed, 3))
    t = np.arange(int(seconds * SAMPLE_RATE_IN)) / SAMPLE_RATE_IN
    pitch = 140 + 40 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE_IN
    buzz = sum(np.sin(n * phase) / n for n in range(1, 7))
    voiced = np.sin(2 * np.pi * 2.3 * t) > -0.5
    sound = np.where(voiced, 0.2 * buzz, 0.02 * draw.normal(size=t.size)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3.1 * t))
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE_IN)
        out.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def _save(file: Path, graph: Any) -> None:
    import onnx
    from onnx import helper

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="parley")
    onnx.checker.check_model(model)
    file.write_bytes(model.SerializeToString(deterministic=True))
