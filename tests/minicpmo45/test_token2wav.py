"""The vocoder's assets: tensor files without code, weight norm folded as torch folds it, both generations and both spellings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from minicpmo45.account import check
from minicpmo45.config import tiny
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import flow_layout, hift_layout
from minicpmo45.random_checkpoint import write_hift
from minicpmo45.token2wav import default_voice, fold_weight_norm, read_flow, read_hift, speaker_model, speech_tokenizer
from minicpmo45.weights import flow_weights, hift_weights
from tests.support.checkpoint import copy_checkpoint

ASSETS = Path("assets/token2wav")


def rewritten(source: Path, target: Path, file: str, tensors: dict[Any, Any]) -> Path:
    folder = copy_checkpoint(source, target)
    (folder / ASSETS / file).unlink()
    torch.save(tensors, folder / ASSETS / file)
    return folder


def stored(folder: Path, file: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(folder / ASSETS / file, weights_only=True)
    return found


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(3, 5, 4), nn.ConvTranspose1d(6, 2, 3), nn.Linear(7, 4), nn.Conv1d(1, 1, 1)],
    ids=["conv", "transposed", "linear", "one"],
)
@pytest.mark.parametrize("spelling", ["parametrizations", "older"])
def test_weight_norm_folds_to_what_torch_computes(layer: nn.Module, spelling: str) -> None:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    normed = nn.utils.parametrizations.weight_norm(layer)
    with torch.no_grad():
        normed.parametrizations.weight.original0.normal_(generator=generator)
    expected = normed.weight.detach().clone()
    tensors = {f"x.{name}": value for name, value in normed.state_dict().items()}
    if spelling == "older":
        old = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
        tensors = {f"x.{old.get(name.removeprefix('x.'), name.removeprefix('x.'))}": value for name, value in tensors.items()}
    folded = fold_weight_norm(tensors)
    nn.utils.parametrize.remove_parametrizations(normed, "weight")
    assert set(folded) == {"x.weight", "x.bias"}
    assert torch.allclose(folded["x.weight"], expected, atol=1e-6)
    assert torch.equal(folded["x.bias"], tensors["x.bias"])


@pytest.mark.parametrize(
    ("lost", "named"), [("weight_g", "x.parametrizations.weight.original0"), ("weight_v", "x.parametrizations.weight.original1")]
)
def test_half_a_pair_is_named(lost: str, named: str) -> None:
    tensors = {"x.weight_g": torch.ones(2, 1), "x.weight_v": torch.ones(2, 3)}
    del tensors[f"x.{lost}"]
    with pytest.raises(CheckpointError, match="missing") as failure:
        fold_weight_norm(tensors)
    assert failure.value.item == named


def test_a_direction_of_no_length_is_named() -> None:
    with pytest.raises(CheckpointError, match="length 0") as failure:
        fold_weight_norm({"x.weight_g": torch.ones(2, 1), "x.weight_v": torch.tensor([[1.0, 0.0], [0.0, 0.0]])})
    assert failure.value.item == "x.parametrizations.weight.original1"


def test_the_flow_is_read_as_stored(tiny_checkpoint: Path) -> None:
    found, expected = flow_weights(tiny_checkpoint), stored(tiny_checkpoint, "flow.pt")
    assert list(found) == list(flow_layout(tiny().flow))
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == torch.float32 for name in found)
    assert flow_weights(tiny_checkpoint, dtype=torch.bfloat16)["encoder_proj.weight"].dtype == torch.bfloat16


def test_what_was_loaded_does_not_hang_on_the_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = rewritten(tiny_checkpoint, tmp_path, "flow.pt", dict(stored(tiny_checkpoint, "flow.pt")))
    found = flow_weights(folder)
    before = found["encoder_proj.weight"].clone()
    with (folder / ASSETS / "flow.pt").open("r+b") as file:
        file.write(b"\xff" * (folder / ASSETS / "flow.pt").stat().st_size)
    assert torch.equal(found["encoder_proj.weight"], before)


@pytest.mark.parametrize("causal", [False, True])
def test_the_generator_comes_folded_and_without_its_prefix(causal: bool, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    (folder / ASSETS / "hift.pt").unlink()
    config = msgspec.structs.replace(tiny().hift, causal=causal)
    write_hift(folder / ASSETS / "hift.pt", config, seed=2)
    found = hift_weights(folder)
    assert len(found) == 328 - 82
    assert found["conv_pre.weight"].shape == (32, 80, 5 if causal else 7)
    assert found["ups.0.weight"].shape == ((16, 32, 16) if causal else (32, 16, 16))
    assert found["f0_predictor.condnet.0.weight"].shape == (32, 80, 4 if causal else 3)
    raw = {name.removeprefix("generator."): value for name, value in stored(folder, "hift.pt").items()}
    gain = raw["ups.0.parametrizations.weight.original0"]
    assert torch.allclose(found["ups.0.weight"].flatten(1).norm(dim=1), gain.flatten().abs(), rtol=1e-5)


def test_older_names_are_the_same_generator(tiny_checkpoint: Path, tmp_path: Path) -> None:
    new = stored(tiny_checkpoint, "hift.pt")
    short = {".parametrizations.weight.original0": ".weight_g", ".parametrizations.weight.original1": ".weight_v"}

    def older(name: str) -> str:
        return next((name.removesuffix(end) + old for end, old in short.items() if name.endswith(end)), name)

    folder = rewritten(tiny_checkpoint, tmp_path, "hift.pt", {older(name): value for name, value in new.items()})
    assert any(name.endswith("weight_g") for name in stored(folder, "hift.pt"))
    expected, found = hift_weights(tiny_checkpoint), hift_weights(folder)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("file", "name"), [("flow.pt", "decoder.estimator.blocks.1.attn.q_norm.bias"), ("hift.pt", "resblocks.8.activations2.2.alpha")]
)
def test_nan_missing_surplus_and_misshapen_tensors_are_named(file: str, name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    whole = stored(tiny_checkpoint, file)
    key = name if name in whole else f"generator.{name}"
    bad = whole[key].clone()
    bad[0] = torch.nan
    cases: list[tuple[dict[str, Tensor], str, str]] = [
        ({**whole, key: bad}, name, "NaN"),
        ({n: value for n, value in whole.items() if n != key}, name, "missing"),
        ({**whole, key: torch.ones(3, 3)}, name, "3x3"),
        ({**whole, "left.over": torch.ones(1)}, "left.over", "no part"),
    ]
    read = flow_weights if file == "flow.pt" else hift_weights
    for number, (tensors, named, why) in enumerate(cases):
        folder = rewritten(tiny_checkpoint, tmp_path / str(number), file, dict(tensors))
        with pytest.raises(CheckpointError, match=why) as failure:
            read(folder)
        assert failure.value.item == named


class Bomb:
    """What `torch.load` without `weights_only` would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("content", [{"a": Bomb()}, [torch.ones(1)], {"a": 3}], ids=["code", "list", "number"])
def test_a_file_of_anything_but_tensors_is_refused(
    content: object, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = rewritten(tiny_checkpoint, tmp_path / "c", "flow.pt", content)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError) as failure:
        read_flow(folder, tiny().flow)
    assert failure.value.item == "flow.pt"
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_a_file_that_is_cut_short_is_named(size: int, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    content = (folder / ASSETS / "hift.pt").read_bytes()[:size]
    (folder / ASSETS / "hift.pt").unlink()
    (folder / ASSETS / "hift.pt").write_bytes(content)
    with pytest.raises(CheckpointError) as failure:
        read_hift(folder, tiny().hift)
    assert failure.value.item == "hift.pt"


def test_the_files_beside_the_tensors(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert speaker_model(tiny_checkpoint).name == "campplus.onnx"
    assert speech_tokenizer(tiny_checkpoint).name == "speech_tokenizer_v2_25hz.onnx"
    assert default_voice(tiny_checkpoint).name == "HT_ref_audio.wav"
    for find in (speaker_model, speech_tokenizer, default_voice):
        with pytest.raises(CheckpointError, match="missing"):
            find(tmp_path)
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/system_ref_audio.wav").touch()
    assert default_voice(tmp_path).name == "system_ref_audio.wav"


def test_the_layout_names_what_the_file_holds(tiny_checkpoint: Path) -> None:
    assert all(name.startswith("generator.") for name in stored(tiny_checkpoint, "hift.pt"))
    assert set(read_hift(tiny_checkpoint, tiny().hift)) == set(hift_layout(tiny().hift))


@pytest.mark.parametrize("file", ["flow.pt", "hift.pt"])
@pytest.mark.parametrize(
    "make",
    [
        lambda shape: torch.zeros(shape, dtype=torch.int64),
        lambda shape: torch.zeros(shape, dtype=torch.complex64),
        lambda shape: torch.zeros(shape).to_sparse(),
        lambda shape: torch.zeros(shape, device="meta"),
    ],
    ids=["whole", "complex", "sparse", "meta"],
)
def test_a_tensor_of_another_kind_is_named(file: str, make: Callable[[torch.Size], Tensor], tiny_checkpoint: Path, tmp_path: Path) -> None:
    tensors = stored(tiny_checkpoint, file)
    name = next(iter(tensors))
    folder = rewritten(tiny_checkpoint, tmp_path, file, {**tensors, name: make(tensors[name].shape)})
    with pytest.raises(CheckpointError) as error:
        check(folder)
    assert error.value.item == name


@pytest.mark.parametrize("file", ["flow.pt", "hift.pt"])
def test_tensors_without_names_are_refused(file: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="other than named tensors"):
        check(rewritten(tiny_checkpoint, tmp_path, file, {1: torch.zeros(1)}))
