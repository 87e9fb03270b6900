"""`check` reads what it accounts for: values of every tensor, networks in ONNX, voices; and says all that is wrong."""

from __future__ import annotations

import tracemalloc
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from minicpmo45 import networks
from minicpmo45.account import check, examine
from minicpmo45.config import tiny
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import TensorSpec
from minicpmo45.random_assets import write_speaker_model, write_speech_tokenizer
from minicpmo45.random_checkpoint import write_hift
from minicpmo45.recordings import LONGEST_S, check_recording
from minicpmo45.shard import StoredTensor, write_header
from minicpmo45.token2wav import ASSETS
from minicpmo45.values import PIECE_BYTES, bad_shards, bad_tensors
from minicpmo45.weights import Place, find_tensors, flow_weights, hift_weights, talker_weights, thinker_weights
from tests.minicpmo45.test_account import rewrite_shard
from tests.support.checkpoint import copy_checkpoint
from thinker_svc.minicpmo45.__main__ import main

SPEAKER, TOKENIZER = "campplus.onnx", "speech_tokenizer_v2_25hz.onnx"


def own(folder: Path, file: str | Path) -> Path:
    """The copy's own file in place of a link."""
    path = folder / file
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    return path


def spoil(folder: Path, tensor: str, at: int, bits: bytes) -> None:
    place = find_tensors(folder, (tensor,))[tensor]
    own(folder, place.file.name)
    with (folder / place.file.name).open("r+b") as file:
        file.seek(place.tensor.begin + at * len(bits) if at >= 0 else place.tensor.end + at * len(bits))
        file.write(bits)


def named(folder: Path) -> list[str]:
    return [error.item for error in examine(folder).faults]


@pytest.mark.behaviour("N47")
def test_a_whole_checkpoint_has_nothing_wrong_in_it(tiny_checkpoint: Path) -> None:
    examined = examine(tiny_checkpoint)
    assert examined.faults == () and examined.account == check(tiny_checkpoint)


@pytest.mark.behaviour("N47")
@pytest.mark.parametrize("bits", [b"\xc0\x7f", b"\x80\x7f", b"\x80\xff", b"\x01\x7f\x80\x7f"], ids=["nan", "inf", "-inf", "later"])
@pytest.mark.parametrize("tensor", ["llm.model.embed_tokens.weight", "tts.projector_spk.linear1.weight"])
def test_one_number_that_is_none_is_found_with_its_tensor_and_file(tensor: str, bits: bytes, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    spoil(folder, tensor, -1, bits)
    file = find_tensors(folder, (tensor,))[tensor].file.name
    [fault] = examine(folder).faults
    assert (fault.item, fault.why) == (tensor, f"holds NaN or infinity, in {file}")
    assert check(folder).part("llm.").tensors == 25, "headers alone show nothing"


@pytest.mark.behaviour("N47")
def test_all_that_is_wrong_is_said_and_not_the_first_alone(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(tensors: dict[str, Tensor]) -> None:
        del tensors["apm.layers.1.fc2.bias"]
        tensors["apm.extra"] = torch.zeros(1)

    folder = rewrite_shard(copy_checkpoint(tiny_checkpoint, tmp_path), "apm.layers.1.fc2.bias", lose)
    spoil(folder, "llm.model.norm.weight", 0, b"\xc0\x7f")
    spoil(folder, "tts.model.norm.weight", 3, b"\x80\xff")
    for file, tensor in (("flow.pt", "encoder_proj.bias"), ("hift.pt", "generator.conv_post.bias")):
        stored = torch.load(folder / ASSETS / file, weights_only=True)
        stored[tensor][-1] = float("nan")
        (folder / ASSETS / file).unlink()
        torch.save(stored, folder / ASSETS / file)
    own(folder, ASSETS / SPEAKER).write_bytes(b"no network")
    own(folder, "assets/HT_ref_audio.wav").write_bytes(b"RIFF")
    expected = [
        *("apm.layers.1.fc2.bias", "apm.extra", SPEAKER, "HT_ref_audio.wav"),
        *("llm.model.norm.weight", "tts.model.norm.weight", "encoder_proj.bias", "conv_post.bias"),
    ]
    assert main(["check", str(folder)]) == 1
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == "" and sorted(line.split(": ")[1] for line in lines) == sorted(expected)
    assert main(["check", "--fast", str(folder)]) == 1
    assert {line.split(": ")[1] for line in capsys.readouterr().err.splitlines()} == {
        *("apm.layers.1.fc2.bias", "apm.extra", "HT_ref_audio.wav")
    }


def test_a_shard_that_cannot_be_read_is_one_error_and_the_others_are_read_on(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    (folder / "model-00003-of-00004.safetensors").unlink()
    elsewhere = next(name for name, place in find_tensors(tiny_checkpoint, ("llm.",)).items() if "00003" not in place.file.name)
    spoil_elsewhere = find_tensors(tiny_checkpoint, (elsewhere,))[elsewhere]
    own(folder, spoil_elsewhere.file.name)
    with (folder / spoil_elsewhere.file.name).open("r+b") as file:
        file.seek(spoil_elsewhere.tensor.begin)
        file.write(b"\xc0\x7f")
    assert named(folder) == ["model-00003-of-00004.safetensors", elsewhere]


def test_without_sizes_the_values_are_read_all_the_same(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    spoil(folder, "apm.layer_norm.bias", 0, b"\xc0\x7f")
    (folder / "config.json").unlink()
    assert named(folder) == ["config.json", "apm.layer_norm.bias"]


def test_the_generation_that_is_not_used_is_read_too(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    other = msgspec.structs.replace(tiny().hift, causal=True)
    write_hift(folder / ASSETS / "hift_original.pt", other, seed=3)
    assert named(folder) == []
    stored = torch.load(folder / ASSETS / "hift_original.pt", weights_only=True)
    name = next(iter(stored))
    stored[name].view(-1)[0] = float("inf")
    torch.save(stored, folder / ASSETS / "hift_original.pt")
    [fault] = examine(folder).faults
    assert "hift_original.pt" in fault.why and name.endswith(fault.item)


@pytest.mark.parametrize(("dtype", "kind"), [("BF16", torch.bfloat16), ("F16", torch.float16), ("F32", torch.float32)])
def test_every_value_is_judged_as_torch_judges_it(dtype: str, kind: torch.dtype, tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    for case in range(40):
        raw = draw.integers(0, 256, 64 * kind.itemsize, dtype=np.uint8)
        values = torch.from_numpy(raw).view(kind)
        if case % 2:
            raw[:] = torch.where(torch.isfinite(values), values, torch.zeros((), dtype=kind)).view(torch.uint8).numpy()
        file = tmp_path / f"{case}.bin"
        file.write_bytes(bytes(3) + raw.tobytes())
        place = Place(file, StoredTensor("x", dtype, (64,), 3, 3 + raw.size))
        assert bool(list(bad_shards([place], lambda size: None))) != bool(torch.isfinite(values).all())


def test_a_large_tensor_takes_a_piece_of_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.safetensors"
    count = 8 * PIECE_BYTES // 2 + 5
    [stored] = write_header(file, {"x": TensorSpec((count,), "BF16")}).values()
    with file.open("r+b") as writing:
        writing.seek(stored.end - 2)
        writing.write(b"\x80\x7f")
    read: list[int] = []
    tracemalloc.start()
    try:
        [fault] = bad_shards([Place(file, stored)], read.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fault.item == "x" and sum(read) == 2 * count and peak < 3 * PIECE_BYTES


def test_a_file_that_shrinks_is_said(tmp_path: Path) -> None:
    file = tmp_path / "short.bin"
    file.write_bytes(bytes(10))
    places = [Place(file, StoredTensor("x", "BF16", (8,), 0, 16)), Place(tmp_path / "gone", StoredTensor("y", "F32", (1,), 0, 4))]
    assert [(error.item, error.why) for error in bad_shards(places, lambda size: None)] == [
        ("gone", "No such file or directory"),
        ("x", "short.bin ended early"),
    ]


def test_mapped_tensors_are_read_a_piece_at_a_time() -> None:
    good = torch.zeros(PIECE_BYTES // 4 + 3)
    bad = good.clone()
    bad[-1] = float("nan")
    [fault] = bad_tensors(Path("some.pt"), {"good": good, "bad": bad, "empty": torch.zeros(0)}, lambda size: None)
    assert fault.item == "bad" and "some.pt" in fault.why


@pytest.mark.parametrize(
    ("load", "tensor"),
    [(thinker_weights, "apm.layer_norm.bias"), (talker_weights, "tts.model.norm.weight")],
)
def test_a_service_refuses_it_when_it_loads(load: Callable[..., Any], tensor: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    spoil(folder, tensor, 1, b"\xc0\x7f")
    file = find_tensors(folder, (tensor,))[tensor].file.name
    with pytest.raises(CheckpointError, match=f"NaN or infinity, in {file}") as error:
        load(folder)
    assert error.value.item == tensor


@pytest.mark.parametrize(("load", "file"), [(flow_weights, "flow.pt"), (hift_weights, "hift.pt")])
def test_the_vocoder_refuses_it_when_it_loads(load: Callable[..., Any], file: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    stored = torch.load(folder / ASSETS / file, weights_only=True)
    name = list(stored)[-1]
    stored[name].view(-1)[0] = float("nan")
    (folder / ASSETS / file).unlink()
    torch.save(stored, folder / ASSETS / file)
    with pytest.raises(CheckpointError, match="NaN or infinity") as error:
        load(folder)
    assert name.endswith(error.value.item)


# networks


def test_the_other_network_is_none_of_the_two(tmp_path: Path) -> None:
    write_speaker_model(tmp_path / SPEAKER, 1, 192)
    write_speech_tokenizer(tmp_path / TOKENIZER, 1)
    networks.try_speaker_model(tmp_path / SPEAKER, 192)
    networks.try_speech_tokenizer(tmp_path / TOKENIZER)
    with pytest.raises(CheckpointError, match="has 1 inputs, not 2") as error:
        networks.open_speech_tokenizer(tmp_path / SPEAKER)
    assert error.value.item == SPEAKER
    with pytest.raises(CheckpointError, match="has 2 inputs, not 1"):
        networks.open_speaker_model(tmp_path / TOKENIZER)
    with pytest.raises(CheckpointError, match=r"\[1, 192\] to one voice, not 256 numbers"):
        networks.try_speaker_model(tmp_path / SPEAKER, 256)


def write_network(file: Path, shape: list[Any], *, kind: str = "FLOAT", scale: float = 1.0) -> None:
    """The mean over time, times scale."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["input"], ["plain"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["plain"], ["pooled"], axes=[1], keepdims=0),
            helper.make_node("Mul", ["pooled", "scale"], ["output"]),
        ],
        "some",
        [helper.make_tensor_value_info("input", getattr(TensorProto, kind), shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([scale], np.float32), "scale")],
    )
    file.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString())


@pytest.mark.parametrize(
    ("shape", "options", "why"),
    [
        (["B", "T", 64], {}, r"input is tensor\(float\) \['B', 'T', 64\], not tensor\(float\) \['any', 'any', 80\]"),
        ([1, 200, 80], {}, r"\[1, 200, 80\]"),
        ([4, "T", 80], {}, r"\[4, 'T', 80\]"),
        (["T", 80], {}, r"\['T', 80\]"),
        (["B", "T", 80], {"kind": "DOUBLE"}, r"tensor\(double\)"),
        (["B", "T", 80], {"scale": float("nan")}, "answers NaN or infinity"),
        ([1, "T", "F"], {}, ""),
    ],
)
def test_a_network_of_another_shape_or_with_bad_numbers(shape: list[Any], options: dict[str, Any], why: str, tmp_path: Path) -> None:
    write_network(tmp_path / "some.onnx", shape, **options)
    if not why:
        networks.try_speaker_model(tmp_path / "some.onnx", 80)
        return
    with pytest.raises(CheckpointError, match=why) as error:
        networks.try_speaker_model(tmp_path / "some.onnx", 80)
    assert error.value.item == "some.onnx"


@pytest.mark.parametrize("size", [0, 100, 4000])
def test_a_network_that_is_cut_short_is_said_in_one_line(size: int, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    file = own(folder, ASSETS / TOKENIZER)
    file.write_bytes(file.read_bytes()[:size])
    [fault] = examine(folder).faults
    assert fault.item == TOKENIZER and "\n" not in str(fault)


# voices


def record(file: Path, seconds: float = 1.0, rate: int = 16_000, width: int = 2, channels: int = 1, level: int = 1) -> None:
    with wave.open(str(file), "wb") as out:
        out.setparams((channels, width, rate, 0, "NONE", ""))
        out.writeframes(bytes([level]) * (int(seconds * rate) * width * channels))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seconds": 0.4}, "shorter than 500 ms"),
        ({"rate": 11_025}, "its rate is 11025 Hz"),
        ({"width": 1}, "8 bits"),
        ({"width": 3}, "24 bits"),
        ({"level": 0}, "silence"),
        ({"seconds": 0}, "shorter"),
        ({"seconds": 17.1}, "longer than 17 s"),
    ],
)
def test_a_voice_of_another_kind_is_said(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    record(tmp_path / "voice.wav", **options)
    with pytest.raises(CheckpointError, match=why) as error:
        check_recording(tmp_path / "voice.wav", LONGEST_S)
    assert error.value.item == "voice.wav"


def test_voices_at_the_bounds_are_taken(tmp_path: Path) -> None:
    for seconds, channels in ((0.5, 1), (17.0, 1), (1.0, 2)):
        record(tmp_path / "voice.wav", seconds=seconds, channels=channels)
        check_recording(tmp_path / "voice.wav", LONGEST_S)
    record(tmp_path / "voice.wav", seconds=30)
    check_recording(tmp_path / "voice.wav")


def test_a_recording_that_is_cut_short_is_said(tmp_path: Path) -> None:
    record(tmp_path / "voice.wav", seconds=2)
    content = (tmp_path / "voice.wav").read_bytes()
    (tmp_path / "voice.wav").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"cut short: \d+ of 32000 samples"):
        check_recording(tmp_path / "voice.wav")


def test_another_voice_of_the_checkpoint_may_be_long_but_not_broken(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    record(folder / "assets" / "long.wav", seconds=40)
    assert named(folder) == []
    (folder / "assets" / "broken.wav").write_bytes(b"ID3")
    assert named(folder) == ["broken.wav"]


def test_a_row_without_a_direction_is_said_as_services_say_it(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Its values are all finite; folded under weight norm they are none."""
    folder = copy_checkpoint(tiny_checkpoint, tmp_path / "shard")
    name = "tts.head_code.0.parametrizations.weight.original1"
    place = find_tensors(folder, (name,))[name]
    spoil(folder, name, 0, bytes((place.tensor.end - place.tensor.begin) // place.tensor.shape[0]))
    assert named(folder) == [name]
    with pytest.raises(CheckpointError, match="length 0"):
        talker_weights(folder)
    folder = copy_checkpoint(tiny_checkpoint, tmp_path / "hift")
    file = own(folder, ASSETS / "hift.pt")
    tensors = torch.load(file)
    next(value for key, value in tensors.items() if key.endswith("original1"))[0] = 0
    torch.save(tensors, file)
    assert len(named(folder)) == 1
    with pytest.raises(CheckpointError, match="length 0"):
        hift_weights(folder)
