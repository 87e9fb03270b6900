"""Random checkpoints: the same bytes from the same seed, whatever the threads; small; and usable for what the services do with them."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from minicpmo45 import random_checkpoint, random_tensors
from minicpmo45.config import Config, HiftConfig, tiny
from minicpmo45.layout import TensorSpec, flow_layout, hift_layout, safetensors_layout
from minicpmo45.random_checkpoint import main, write
from minicpmo45.random_tensors import spread, tensor, write_shard
from minicpmo45.token2wav import default_voice, speaker_model, speech_tokenizer
from tests.support.checkpoint import SEED

SAMPLE = {"llm.model.norm.weight": TensorSpec((64,), "BF16"), "a.weight": TensorSpec((1000, 37), "BF16"), "b.bias": TensorSpec((5,), "F32")}


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*")) if file.is_file()
    }


def test_the_same_seed_gives_the_same_bytes_and_another_others(tiny_checkpoint: Path, tmp_path: Path) -> None:
    write(tmp_path / "same", tiny(), seed=SEED)
    assert digests(tmp_path / "same") == digests(tiny_checkpoint)
    layout = {"a": TensorSpec((9,), "F32")}
    assert not torch.equal(tensor("a", layout["a"], 1), tensor("a", layout["a"], 2))


def test_it_is_small_and_holds_the_released_files(tiny_checkpoint: Path) -> None:
    files = [file for file in tiny_checkpoint.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 60_000_000
    assert (tiny_checkpoint / "tokenizer.json").stat().st_size < 2_000_000
    assert {str(file.relative_to(tiny_checkpoint)) for file in files} == {
        *("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
        *("merges.txt", "added_tokens.json", "special_tokens_map.json", "model.safetensors.index.json"),
        *(f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)),
        *(f"assets/token2wav/{name}" for name in ("flow.yaml", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v2_25hz.onnx")),
        "assets/HT_ref_audio.wav",
    }


@pytest.mark.parametrize("workers", [1, 4])
def test_blocks_and_threads_do_not_show(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_tensors, "BLOCK", 1000)
    pieces: list[int] = []
    write_shard(tmp_path / "x.safetensors", SAMPLE, seed=5, workers=workers, made=pieces.append)
    found = load_file(tmp_path / "x.safetensors")
    assert {name: tuple(value.shape) for name, value in found.items()} == {name: spec.shape for name, spec in SAMPLE.items()}
    assert all(torch.equal(found[name], tensor(name, spec, 5)) for name, spec in SAMPLE.items())
    assert sum(pieces) == sum(spec.nbytes for spec in SAMPLE.values())
    assert max(pieces) <= 4 * 1000
    assert len({value.item() for value in found["a.weight"].flatten().float()[::1000]}) == 37


def test_activations_stay_near_one_at_any_width() -> None:
    everything = safetensors_layout(Config()) | flow_layout(Config().flow) | hift_layout(HiftConfig())
    for name, spec in everything.items():
        mean, std = spread(name, spec.shape)
        assert 0 < std <= 1.0 or name.startswith("f0_predictor.classifier")
        if len(spec.shape) == 1 and name.endswith("norm.weight"):
            assert mean == 1.0
        if "adaLN" in name and name.endswith("weight"):
            assert std == pytest.approx(0.5 / math.sqrt(512))
    assert spread("llm.model.layers.0.mlp.down_proj.weight", (4096, 12_288)).std == pytest.approx(12_288**-0.5)


def test_the_layers_speak_up(tiny_checkpoint: Path) -> None:
    """A vector of length-per-element 1 keeps it, within a factor of two, through a matrix of the language model."""
    weight = load_file(tiny_checkpoint / "model-00002-of-00004.safetensors")["llm.model.layers.1.mlp.up_proj.weight"].float()
    out = weight @ torch.ones(weight.shape[1])
    assert 0.5 < out.square().mean().sqrt() < 2


def test_the_speaker_network_hears_who_speaks(tiny_checkpoint: Path) -> None:
    session = onnxruntime.InferenceSession(speaker_model(tiny_checkpoint), providers=["CPUExecutionProvider"])
    assert [(one.name, one.shape, one.type) for one in session.get_inputs()] == [("input", ["B", "T", 80], "tensor(float)")]
    draw = np.random.default_rng(0)
    features = draw.normal(size=(2, 298, 80)).astype(np.float32) * np.float32([[[1.0]], [[3.0]]])
    features -= features.mean(axis=1, keepdims=True)
    found = session.run(None, {"input": features})[0]
    assert found.shape == (2, 192)
    assert np.linalg.norm(found, axis=1).min() > 0.1
    assert not np.allclose(found[0], found[1], atol=0.1)
    alone = session.run(None, {"input": features[:1]})[0]
    assert np.allclose(alone, found[:1], atol=1e-5)


@pytest.mark.parametrize("frames", [1, 4, 5, 298, 1680])
def test_the_speech_tokenizer_makes_a_code_of_four_frames(frames: int, tiny_checkpoint: Path) -> None:
    session = onnxruntime.InferenceSession(speech_tokenizer(tiny_checkpoint), providers=["CPUExecutionProvider"])
    features, length = session.get_inputs()
    assert (features.name, features.shape, length.name, length.type) == ("feats", [1, 128, "T"], "feats_length", "tensor(int32)")
    mel = np.random.default_rng(1).normal(size=(1, 128, frames)).astype(np.float32)
    codes = session.run(None, {features.name: mel, length.name: np.array([frames], np.int32)})[0]
    assert codes.shape == (1, (frames + 3) // 4)
    assert codes.dtype == np.int32
    assert 0 <= codes.min() <= codes.max() <= 6560
    assert len(set(codes.flat)) > codes.size // 2


def test_the_default_voice_is_sixteen_bit_speech_like_sound(tiny_checkpoint: Path) -> None:
    with wave.open(str(default_voice(tiny_checkpoint))) as voice:
        assert (voice.getframerate(), voice.getnchannels(), voice.getsampwidth(), voice.getnframes()) == (16_000, 1, 2, 48_000)
        samples = np.frombuffer(voice.readframes(48_000), "<i2")
    assert 3_000 < np.abs(samples).max() < 32_767


def test_a_folder_with_content_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(FileExistsError):
        write(tmp_path, tiny())
    assert main([str(tmp_path)]) == 1
    assert "not empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(random_checkpoint, "write_tokenizer", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "new", tiny())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Usage:
        free = 1_000_000_000

    monkeypatch.setattr(random_checkpoint.shutil, "disk_usage", lambda _: Usage)
    assert main([str(tmp_path / "new"), "--full"]) == 1
    assert "19.5 GB are needed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_one(tmp_path: Path, tiny_checkpoint: Path) -> None:
    command = [sys.executable, "-m", "parley", "make-random", str(tmp_path / "new"), "--seed", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"seed {SEED}" in done.stdout
    assert (tmp_path / "new/config.json").read_bytes() == (tiny_checkpoint / "config.json").read_bytes()
