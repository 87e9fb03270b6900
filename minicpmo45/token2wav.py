"""The vocoder's assets: `flow.pt`, `hift.pt` in either generation (told apart by shapes), and the files beside them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from minicpmo45.config import FlowConfig, HiftConfig
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import DIRECTION, GAIN, Shape, compare, flow_layout, hift_layout, modern_name

ASSETS = Path("assets/token2wav")
FLOW_FILE = "flow.pt"
HIFT_FILES = ("hift.pt", "hift_original.pt")
SPEAKER_FILE = "campplus.onnx"
SPEECH_TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
VOICES = ("assets/HT_ref_audio.wav", "assets/system_ref_audio.wav")
PRE = f"conv_pre{DIRECTION}"


def speaker_model(path: Path) -> Path:
    """The ONNX file of CAM++: `input` fp32 [B, T, 80] to [B, 192]. Raises CheckpointError if it is not there."""
    return _present(path, ASSETS / SPEAKER_FILE)


def speech_tokenizer(path: Path) -> Path:
    """The ONNX file of the S3 tokenizer: fp32 [1, 128, T] and int32 [1] to codes, 25 a second. Raises CheckpointError if missing."""
    return _present(path, ASSETS / SPEECH_TOKENIZER_FILE)


def voice_files(path: Path) -> list[Path]:
    """All WAV files of voices that come with the checkpoint."""
    return sorted((path / "assets").glob("*.wav"))


def default_voice(path: Path) -> Path:
    """The WAV file of the voice that speaks unless another is named. Raises CheckpointError if there is none."""
    for name in VOICES:
        if (path / name).is_file():
            return path / name
    raise CheckpointError(VOICES[0], "missing, and no other default voice is there")


def read_flow(path: Path, config: FlowConfig) -> dict[str, Tensor]:
    """`flow.pt` as stored, fp32, mapped from the file. Raises CheckpointError that names a missing, surplus or misshapen tensor."""
    found = stored_tensors(path, FLOW_FILE)
    compare(flow_layout(config), shapes(found), FLOW_FILE)
    return found


def read_hift(path: Path, config: HiftConfig) -> dict[str, Tensor]:
    """The generator of the generation that `config.causal` names, as stored (weight norm not folded), without the prefix `generator.`.

    Raises CheckpointError when no file holds that generation, or a tensor is missing, surplus or misshapen.
    """
    name, found = stored_hift(path, config.causal)
    compare(hift_layout(config), shapes(found), name)
    return found


def stored_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Everything in one of the vocoder's files, mapped, by modern names without `generator.`. Raises CheckpointError if it is missing or no
    plain file of tensors."""
    stored = _read(_present(path, ASSETS / name))
    return {modern_name(tensor.removeprefix("generator.")): value for tensor, value in stored.items()} if name in HIFT_FILES else stored


def hift_config(path: Path, causal: bool | None = None) -> HiftConfig:
    """Sizes of the generator, by the shapes of its tensors. `causal` chooses where both generations lie; None takes `hift.pt`."""
    name, found = stored_hift(path, causal)
    sizes = shapes(found)

    def shape(tensor: str, dims: int) -> Shape:
        if len(sizes.get(tensor, ())) != dims:
            raise CheckpointError(tensor, f"missing from {name}, or not of {dims} dimensions")
        return sizes[tensor]

    channels, mels, kernel = shape(PRE, 3)
    defaults = HiftConfig()
    return HiftConfig(
        mels=mels,
        channels=channels,
        f0_channels=shape("f0_predictor.classifier.weight", 2)[1],
        upsample_kernels=tuple(shape(f"ups.{stage}{DIRECTION}", 3)[2] for stage in range(len(defaults.upsample_rates))),
        resblock_kernels=tuple(shape(f"resblocks.{n}.convs1.0{DIRECTION}", 3)[2] for n in range(len(defaults.resblock_kernels))),
        source_kernels=tuple(shape(f"source_resblocks.{n}.convs1.0{DIRECTION}", 3)[2] for n in range(len(defaults.source_kernels))),
        n_fft=shape(f"conv_post{DIRECTION}", 3)[0] - 2,
        harmonics=shape("m_source.l_linear.weight", 2)[1] - 1,
        causal=_is_causal(name, sizes, kernel),
    )


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replaces each pair of gain g and direction v by `weight` = g * v / |v|, the length over all dimensions but the first.

    Both spellings (`parametrizations.weight.original0/1`, `weight_g`/`weight_v`) are folded, in fp32; other tensors pass through.
    Raises CheckpointError for half a pair, and for a direction of length 0, whose weight would be NaN.
    """
    folded: dict[str, Tensor] = {}
    modern = {modern_name(name): tensor for name, tensor in tensors.items()}
    for name, tensor in modern.items():
        if name.endswith(DIRECTION):
            stem = name.removesuffix(DIRECTION)
            if stem + GAIN not in modern:
                raise CheckpointError(stem + GAIN, "missing beside its direction")
            direction, gain = tensor.float(), modern[stem + GAIN].float()
            length = torch.linalg.vector_norm(direction, dim=tuple(range(1, direction.dim())), keepdim=True)
            if not bool((length > 0).all()):
                raise CheckpointError(name, "a row of length 0 under weight norm")
            folded[f"{stem}.weight"] = (direction * (gain / length)).to(tensor.dtype)
        elif name.endswith(GAIN):
            if name.removesuffix(GAIN) + DIRECTION not in modern:
                raise CheckpointError(name.removesuffix(GAIN) + DIRECTION, "missing beside its gain")
        else:
            folded[name] = tensor
    return folded


def stored_hift(path: Path, causal: bool | None) -> tuple[str, dict[str, Tensor]]:
    """Name and tensors of the file that holds the wanted generation (None: whichever is in `hift.pt`). Raises CheckpointError."""
    _present(path, ASSETS / HIFT_FILES[0])
    for name in HIFT_FILES:
        if (path / ASSETS / name).is_file():
            found = stored_tensors(path, name)
            sizes = shapes(found)
            if causal is None or _is_causal(name, sizes, sizes.get(PRE, (0,))[-1]) is causal:
                return name, found
    raise CheckpointError(HIFT_FILES[0], f"no file holds the {'causal' if causal else 'first'} generation of the generator")


def _is_causal(file: str, sizes: Mapping[str, Shape], kernel: int) -> bool:
    """By the kernel of `conv_pre`: 7 round the middle, or 5 with 4 of look-ahead."""
    if kernel not in (5, 7):
        raise CheckpointError(PRE, f"kernel {kernel} in {file} belongs to no known generation" if PRE in sizes else f"missing from {file}")
    return kernel == 5


def _read(file: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(file.name, f"no plain tensor file: {why}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(file.name, "holds something other than named tensors")
    for name, tensor in found.items():
        if not isinstance(name, str):
            raise CheckpointError(file.name, "holds something other than named tensors")
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(name, f"in {file.name}, but no dense tensor of floating point numbers")
    return found


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _present(root: Path, relative: Path) -> Path:
    if not (root / relative).is_file():
        raise CheckpointError(str(relative), "missing")
    return root / relative
