"""The account of a checkpoint, and the command that prints it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minicpmo45.account import SAFETENSORS, check
from minicpmo45.config import Config, tiny
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import PREFIXES, flow_layout, hift_layout, prefix_of, safetensors_layout
from minicpmo45.shard import read_header
from minicpmo45.weights import INDEX_FILE, read_weight_map
from tests.support.checkpoint import copy_checkpoint
from thinker_svc.minicpmo45.__main__ import main


def rewrite_shard(folder: Path, name: str, change: Callable[[dict[str, Tensor]], None], index: bool = True) -> Path:
    """Changes the shard that holds `name`, and the index with it."""
    weight_map = read_weight_map(folder)
    file = weight_map[name]
    tensors = load_file(folder / file)
    change(tensors)
    (folder / file).unlink()
    save_file(tensors, folder / file)
    if index:
        kept = {key: value for key, value in weight_map.items() if value != file} | dict.fromkeys(tensors, file)
        (folder / INDEX_FILE).unlink()
        (folder / INDEX_FILE).write_text(json.dumps({"weight_map": kept}))
    return folder


@pytest.mark.behaviour("N47")
def test_every_tensor_is_accounted_for(tiny_checkpoint: Path) -> None:
    account = check(tiny_checkpoint)
    layout = safetensors_layout(tiny())
    for prefix in PREFIXES:
        specs = [spec for name, spec in layout.items() if prefix_of(name) == prefix]
        part = account.part(prefix)
        assert (part.tensors, part.parameters, part.nbytes) == (
            *(len(specs), sum(spec.parameters for spec in specs), sum(spec.nbytes for spec in specs)),
        )
    whole = account.part(SAFETENSORS)
    assert (whole.tensors, whole.files) == (len(layout), 4)
    assert whole.nbytes == json.loads((tiny_checkpoint / INDEX_FILE).read_text())["metadata"]["total_size"]
    assert account.part("flow.pt").tensors == len(flow_layout(tiny().flow))
    assert account.part("hift.pt").tensors == len(hift_layout(tiny().hift)) == 328
    assert account.config == tiny()


def lose(tensors: dict[str, Tensor]) -> None:
    del tensors["apm.layers.1.fc2.bias"]


def turn(tensors: dict[str, Tensor]) -> None:
    tensors["apm.layers.1.fc2.bias"] = torch.zeros(2, 16)


def gain(tensors: dict[str, Tensor]) -> None:
    tensors["apm.layers.2.fc2.bias"] = torch.zeros(32)


def stray(tensors: dict[str, Tensor]) -> None:
    tensors["embed_positions"] = torch.zeros(32)


@pytest.mark.parametrize(
    ("change", "named", "why"),
    [
        (lose, "apm.layers.1.fc2.bias", "missing from"),
        (turn, "apm.layers.1.fc2.bias", "shape 2x16"),
        (gain, "apm.layers.2.fc2.bias", "no part of the model"),
        (stray, "embed_positions", "no part of the model"),
    ],
)
def test_a_wrong_tensor_is_named(
    change: Callable[[dict[str, Tensor]], None], named: str, why: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = rewrite_shard(copy_checkpoint(tiny_checkpoint, tmp_path), "apm.layers.1.fc2.bias", change)
    with pytest.raises(CheckpointError, match=why) as failure:
        check(folder)
    assert failure.value.item == named


@pytest.mark.parametrize(
    "file",
    [
        *("config.json", "tokenizer.json", "tokenizer_config.json", INDEX_FILE, "model-00003-of-00004.safetensors"),
        *(f"assets/token2wav/{name}" for name in ("flow.yaml", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v2_25hz.onnx")),
        "assets/HT_ref_audio.wav",
    ],
)
def test_a_missing_file_is_named(file: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    (folder / file).unlink()
    with pytest.raises(CheckpointError) as failure:
        check(folder)
    assert Path(failure.value.item).name == Path(file).name


def test_a_total_that_is_not_the_shards_is_said(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    index = json.loads((folder / INDEX_FILE).read_text())
    index["metadata"]["total_size"] += 2
    (folder / INDEX_FILE).unlink()
    (folder / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="total_size"):
        check(folder)


def test_a_tiny_checkpoint_is_not_the_released_one(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"151748x64 .*expected 151748x4096"):
        check(tiny_checkpoint, Config())


def test_the_command_prints_the_table(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tiny_checkpoint)]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in shown.splitlines()}
    assert rows["llm."][1:] == ["25", "19,497,856", "38,995,712", "2"]
    assert re.search(r"all shards\s+148\s+26,143,586\s+52,287,172\s+4\n", shown)
    assert "generator: first generation" in shown
    assert "tokens never spoken: 6,965" in shown


def test_the_command_says_all_that_is_wrong_a_line_each(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "thinker_svc.minicpmo45", "check", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    named = [line.split(": ")[1] for line in done.stderr.splitlines()]
    assert named == [
        *("config.json", "flow.yaml", "assets/token2wav/hift.pt", INDEX_FILE, "assets/token2wav/flow.pt", "tokenizer.json"),
        *("tokenizer_config.json", "assets/token2wav/campplus.onnx", "assets/token2wav/speech_tokenizer_v2_25hz.onnx"),
        "assets/HT_ref_audio.wav",
    ]


NESTED = "[" * 200_000


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        (INDEX_FILE, NESTED, INDEX_FILE),
        ("config.json", NESTED, "config.json"),
        ("assets/token2wav/flow.yaml", NESTED[:5000], "flow.yaml"),
        (
            "model-00003-of-00004.safetensors",
            len(NESTED).to_bytes(8, "little").decode("latin-1") + NESTED,
            "model-00003-of-00004.safetensors",
        ),
    ],
)
def test_what_is_nested_too_deeply_is_named(file: str, text: str, named: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    (folder / file).unlink()
    (folder / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError) as error:
        check(folder)
    assert error.value.item == named


def _index(change: Callable[[dict[str, Any]], object], source: Path, target: Path) -> Path:
    folder = copy_checkpoint(source, target)
    content = json.loads((folder / INDEX_FILE).read_text())
    change(content)
    (folder / INDEX_FILE).unlink()
    (folder / INDEX_FILE).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("metadata", [None, [1], "x"])
def test_metadata_of_another_kind_is_said(metadata: object, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = _index(lambda content: content.update(metadata=metadata), tiny_checkpoint, tmp_path)
    with pytest.raises(CheckpointError, match="metadata is no JSON object"):
        check(folder)


@pytest.mark.parametrize("place", ["", "..", "a\0b", "a\ud800b"])
def test_a_place_that_is_no_file_is_told_with_the_tensor(
    place: str, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(read_weight_map(tiny_checkpoint)))
    folder = _index(lambda content: content["weight_map"].update({name: place}), tiny_checkpoint, tmp_path)
    assert main(["check", "--fast", str(folder)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"check: {name}: ") and said.count("\n") == 1


def test_a_name_that_no_terminal_can_show_is_escaped(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _index(lambda content: content["weight_map"].update({"a\ud800": ".."}), tiny_checkpoint, tmp_path)
    assert main(["check", str(folder)]) == 1
    assert "\\ud800" in capsys.readouterr().err


def test_the_command_reads_the_vocabulary(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    del content["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert main(["check", str(folder)]) == 1
    assert capsys.readouterr().err.startswith("check: tokenizer.json: ")


def test_a_slip_of_the_pen_in_the_layers_is_named_at_once(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    content = json.loads((folder / "config.json").read_text())
    content["tts_config"]["num_hidden_layers"] = 10**7
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as error:
        check(folder)
    assert error.value.item == "tts_config.num_hidden_layers"


@pytest.mark.parametrize("change", ["shared", "broken"])
def test_bytes_of_two_tensors_and_half_a_row_are_refused(change: str, tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    second = {"dtype": "F32", "shape": [2] if change == "shared" else [2.5], "data_offsets": [4, 12]}
    header = json.dumps({"first": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "second": second}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(CheckpointError) as error:
        read_header(file)
    assert error.value.item == "second"
