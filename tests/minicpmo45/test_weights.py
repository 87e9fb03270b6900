"""Reading shards: each service its own, held against the model, against the library that others read them with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minicpmo45 import weights
from minicpmo45.config import tiny
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import PREFIXES, TALKER_PREFIXES, THINKER_PREFIXES, safetensors_layout, select
from minicpmo45.shard import read_header
from minicpmo45.weights import INDEX_FILE, Weights, read_weight_map, talker_weights, thinker_weights
from tests.support.checkpoint import copy_checkpoint

HEAD = "tts.head_code.0"


@pytest.fixture
def stored(tiny_checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of the shards, read by the library."""
    return {name: tensor for file in sorted(tiny_checkpoint.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def changed(source: Path, target: Path, file: str, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of the checkpoint with one shard written anew, and its index left as it was."""
    folder = copy_checkpoint(source, target)
    tensors = load_file(folder / file)
    change(tensors)
    (folder / file).unlink()
    save_file(tensors, folder / file)
    return folder


def shard_of(folder: Path, name: str) -> str:
    return read_weight_map(folder)[name]


def same(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


@pytest.mark.behaviour("N47")
def test_the_thinker_reads_its_prefixes_under_their_own_names(tiny_checkpoint: Path, stored: dict[str, Tensor]) -> None:
    found = thinker_weights(tiny_checkpoint)
    assert set(found) == set(select(safetensors_layout(tiny()), THINKER_PREFIXES))
    assert all(same(found[name], stored[name]) and found[name].is_contiguous() for name in found)


def test_the_talker_reads_what_it_uses_and_folds_its_head(tiny_checkpoint: Path, stored: dict[str, Tensor]) -> None:
    found = talker_weights(tiny_checkpoint, dtype=torch.float32)
    assert not any("embed_tokens" in name or "projector_spk" in name or "parametrizations" in name for name in found)
    gain, direction = (stored[f"{HEAD}.parametrizations.weight.original{n}"].float() for n in (0, 1))
    assert torch.allclose(found[f"{HEAD}.weight"], gain * direction / direction.norm(dim=1, keepdim=True), rtol=1e-6)
    assert torch.equal(found["tts.emb_text.weight"], stored["tts.emb_text.weight"].float())


@pytest.mark.parametrize("readers", [1, 3, 64])
def test_readers_do_not_change_what_is_read(readers: int, tiny_checkpoint: Path, stored: dict[str, Tensor]) -> None:
    found = Weights.open(tiny_checkpoint, ["vpm.", "apm."]).load(readers=readers)
    assert all(same(found[name], stored[name]) for name in found)
    assert {name.partition(".")[0] for name in found} == {"vpm", "apm"}


def test_only_the_shards_of_the_prefixes_are_opened(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    needed = {file for name, file in read_weight_map(folder).items() if name.startswith(TALKER_PREFIXES)}
    absent = sorted(set(read_weight_map(folder).values()) - needed)
    assert absent
    for file in absent:
        (folder / file).unlink()
    assert len(talker_weights(folder)) == 26
    with pytest.raises(CheckpointError) as failure:
        thinker_weights(folder)
    assert failure.value.item == absent[0]


def test_a_checkpoint_of_one_file_needs_no_index(tiny_checkpoint: Path, stored: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(tiny_checkpoint / "config.json")
    found = Weights.open(tmp_path, PREFIXES).load()
    assert len(found) == len(stored)
    assert all(same(found[name], stored[name]) for name in found)


def test_shards_of_other_precision_are_read_as_well(tiny_checkpoint: Path, tmp_path: Path) -> None:
    name = "resampler.query"

    def widen(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].float() + 2**-20

    folder = changed(tiny_checkpoint, tmp_path, shard_of(tiny_checkpoint, name), widen)
    exact = load_file(folder / shard_of(folder, name))[name]
    assert torch.equal(Weights.open(folder, ["resampler."]).load(dtype=torch.float32)[name], exact)
    assert torch.equal(Weights.open(folder, ["resampler."]).load(dtype=torch.bfloat16)[name], exact.bfloat16())


@pytest.mark.parametrize(("value", "hidden"), [(float("nan"), 0), (float("inf"), -1), (float("-inf"), 7)])
def test_a_tensor_with_nan_or_infinity_is_named(value: float, hidden: int, tiny_checkpoint: Path, tmp_path: Path) -> None:
    name = "llm.model.layers.1.mlp.up_proj.weight"

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[hidden] = value

    folder = changed(tiny_checkpoint, tmp_path, shard_of(tiny_checkpoint, name), spoil)
    for change in (None, narrowed):
        with pytest.raises(CheckpointError, match="NaN or infinity") as failure:
            thinker_weights(folder, change=change)
        assert failure.value.item == name


def narrowed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A byte an element and one scale, of what ends with `proj.weight`."""
    if not name.endswith("proj.weight"):
        return {name: tensor}
    scale = tensor.float().abs().amax()[None]
    return {name: (tensor.float() / scale).to(torch.float8_e4m3fn), f"{name}.largest": scale}


def test_a_tensor_may_be_changed_when_it_is_read(tiny_checkpoint: Path, stored: dict[str, Tensor]) -> None:
    found = thinker_weights(tiny_checkpoint, change=narrowed)
    name = "llm.model.layers.0.mlp.down_proj.weight"
    assert list(found)[list(found).index(name) + 1] == f"{name}.largest"
    for made, expected in narrowed(name, stored[name]).items():
        assert found[made].dtype == expected.dtype and torch.equal(found[made].float(), expected.float())
    assert same(found["llm.model.norm.weight"], stored["llm.model.norm.weight"])


def test_large_finite_values_are_no_infinity(tiny_checkpoint: Path, tmp_path: Path) -> None:
    name = "resampler.proj"

    def enlarge(tensors: dict[str, Tensor]) -> None:
        tensors[name].fill_(3e38)

    folder = changed(tiny_checkpoint, tmp_path, shard_of(tiny_checkpoint, name), enlarge)
    assert float(Weights.open(folder, ["resampler."]).load()[name].max()) > 2e38


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors["resampler.query"]


def misshape(tensors: dict[str, Tensor]) -> None:
    tensors["resampler.query"] = tensors["resampler.query"].T.contiguous()


def add(tensors: dict[str, Tensor]) -> None:
    tensors["resampler.pos_embed"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "named", "why"),
    [
        (drop, "resampler.query", "does not hold"),
        (misshape, "resampler.query", "64x64"),
        (add, "resampler.pos_embed", "says nothing of it"),
    ],
)
def test_a_shard_that_differs_is_refused_by_name(
    change: Callable[[dict[str, Tensor]], None], named: str, why: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    def also(tensors: dict[str, Tensor]) -> None:
        change(tensors)
        if change is misshape:
            tensors[named] = torch.zeros(64, 63, dtype=torch.bfloat16)

    folder = changed(tiny_checkpoint, tmp_path, shard_of(tiny_checkpoint, "resampler.query"), also)
    with pytest.raises(CheckpointError, match=why if change is not misshape else "64x63") as failure:
        Weights.open(folder, ["resampler."])
    assert failure.value.item == named


def test_an_index_that_lacks_a_tensor_or_names_a_strange_place(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    index = json.loads((folder / INDEX_FILE).read_text())
    (folder / INDEX_FILE).unlink()
    for place, why in ((None, "nothing of it"), ("../else.safetensors", "no file of this folder"), (3, "no file of this folder")):
        weight_map = dict(index["weight_map"])
        if place is None:
            del weight_map["resampler.query"]
        else:
            weight_map["resampler.query"] = place
        (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match=why) as failure:
            Weights.open(folder, ["resampler."])
        assert failure.value.item == "resampler.query"
    (folder / INDEX_FILE).write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        Weights.open(folder, ["resampler."])


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_shard_that_is_cut_short_is_named(keep: int, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    file = folder / shard_of(folder, "tts.emb_text.weight")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:keep])
    with pytest.raises(CheckpointError, match=file.name):
        talker_weights(folder)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"nonsense", "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}', "dtype I8"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "do not fit"),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}', "do not fit"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-8,-4]}}', "do not fit"),
        (b'{"a":{"dtype":"F32"}}', "malformed"),
        (b'{"a":7}', "malformed"),
    ],
)
def test_a_hostile_header_is_refused(header: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(CheckpointError, match=why):
        read_header(file)


def test_a_shard_that_shrinks_while_it_is_read_is_an_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = changed(tiny_checkpoint, tmp_path, shard_of(tiny_checkpoint, "resampler.query"), lambda _: None)
    opened = Weights.open(folder, ["resampler."])
    file = folder / shard_of(folder, "resampler.query")
    with file.open("r+b") as shard:
        shard.truncate(opened.places["resampler.query"].tensor.begin + 1)
    with pytest.raises(CheckpointError, match="ended early"):
        opened.load()


def test_the_size_is_known_before_anything_is_read(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_fill", None)
    assert Weights.open(tiny_checkpoint, ["resampler."]).nbytes == 54_528


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gets_the_same_bytes(tiny_checkpoint: Path, stored: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "STAGING_BYTES", 100_000)
    for dtype in (torch.bfloat16, torch.float32):
        found = thinker_weights(tiny_checkpoint, "cuda", dtype)
        assert all(torch.equal(found[name].cpu(), stored[name].to(dtype)) for name in found)
