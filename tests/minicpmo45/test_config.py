"""Sizes read from config.json, from the vocoder's YAML and from the shapes in hift.pt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from minicpmo45.config import Config, FlowConfig, HiftConfig, read_config, tiny, to_json
from minicpmo45.config_json import from_json
from minicpmo45.errors import CheckpointError
from minicpmo45.flow_yaml import read_flow_config, write_flow_config
from minicpmo45.random_checkpoint import write_hift
from tests.support.checkpoint import copy_checkpoint


def edited(**changes: Any) -> dict[str, Any]:
    """The released config.json with fields changed; `section__field` reaches into a section, None removes."""
    content: dict[str, Any] = json.loads(json.dumps(to_json(Config())))
    for path, value in changes.items():
        section, _, field = path.rpartition("__")
        place = content[section] if section else content
        if value is None:
            del place[field]
        else:
            place[field] = value
    return content


@pytest.mark.parametrize("config", [Config(), tiny()], ids=["released", "tiny"])
def test_what_is_written_is_read(config: Config) -> None:
    read = from_json(json.loads(json.dumps(to_json(config))))
    assert (read.llm, read.vision, read.audio, read.talker) == (config.llm, config.vision, config.audio, config.talker)


def test_the_released_file_is_flat_with_four_sections() -> None:
    content = to_json(Config())
    assert content["hidden_size"] == 4096
    assert content["query_num"] == 64
    assert content["version"] == "4.5"
    assert content["model_type"] == "minicpmo"
    assert content["rope_theta"] == 1_000_000.0
    assert content["drop_vision_last_layer"] is False
    assert {name for name, value in content.items() if isinstance(value, dict)} == {
        *("auto_map", "vision_config", "audio_config", "tts_config", "slice_config")
    }
    assert content["vision_config"]["image_size"] == 980
    assert content["tts_config"]["num_audio_tokens"] == 6562
    assert content["slice_config"] == {"model_type": "minicpmv", "patch_size": 14, "max_slice_nums": 9, "scale_resolution": 448}
    assert "resampler_heads" not in content


@pytest.mark.behaviour("N47")
def test_a_whole_folder_is_read_without_running_code(tiny_checkpoint: Path) -> None:
    before = set(sys.modules)
    assert read_config(tiny_checkpoint) == tiny()
    assert not any("cosyvoice" in name or "hyperpyyaml" in name or "transformers" in name for name in set(sys.modules) - before)


def test_the_shards_alone_have_the_released_vocoder_sizes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(tiny_checkpoint / "config.json")
    assert read_config(tmp_path) == msgspec.structs.replace(tiny(), flow=FlowConfig(), hift=HiftConfig())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": "2.6"}, "version"),
        ({"version": None}, "version"),
        ({"model_type": "minicpmv"}, "model_type"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": None}, "rope_theta"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"audio_config": None}, "audio_config"),
        ({"vision_config__num_hidden_layers": None}, "vision_config.num_hidden_layers"),
        ({"audio_config__d_model": 1023}, "audio_config.encoder_attention_heads"),
        ({"tts_config__llm_dim": 2560}, "tts_config.llm_dim"),
        ({"tts_config__num_audio_tokens": None}, "tts_config.num_audio_tokens"),
        ({"tts_config__condition_type": "llm_hidden"}, "tts_config.condition_type"),
    ],
    ids=str,
)
def test_another_model_is_refused_by_the_name_of_a_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as failure:
        from_json(edited(**change))
    assert failure.value.item == named


def test_a_whole_number_may_stand_where_a_real_one_is_meant() -> None:
    assert from_json(edited(rope_theta=1_000_000)).llm.rope_theta == 1e6


@pytest.mark.parametrize(("text", "why"), [(None, "missing"), ("{", "no JSON"), ("[]", "no JSON object")])
def test_a_broken_file_is_named(text: str | None, why: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=why) as failure:
        read_config(tmp_path)
    assert failure.value.item == "config.json"


def test_the_flow_is_written_and_read(tmp_path: Path) -> None:
    for config in (FlowConfig(), tiny().flow):
        write_flow_config(tmp_path / "flow.yaml", config)
        assert read_flow_config(tmp_path / "flow.yaml") == config


def test_other_tags_are_left_alone_beside_the_flow_and_refused_within(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    write_flow_config(file, FlowConfig())
    text = file.read_text()
    file.write_text(
        "seed: !apply:os.system [exit 1]\nhift: !new:cosyvoice.hifigan.generator.CausalHiFTGenerator\n  in_channels: 80\n" + text
    )
    assert read_flow_config(file) == FlowConfig()
    file.write_text(text.replace("cosyvoice2.flow.decoder_dit.DiT", "os.system"))
    with pytest.raises(CheckpointError, match=r"os\.system") as failure:
        read_flow_config(file)
    assert failure.value.item == "flow.decoder.estimator"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("depth: 16", "depth: deep", "flow.decoder.estimator.depth"),
        ("depth: 16", "width: 16", "flow.decoder.estimator.depth"),
        ("inference_cfg_rate: 0.7", "inference_cfg_rate: -1", "flow.decoder.inference_cfg_rate"),
        ("up_stride: 2", "up_stride: 4", "flow.encoder.up_stride"),
        ("flow: !new", "flaw: !new", "flow"),
        ("vocab_size: 6561", "vocab_size: !ref <codes>", "flow.vocab_size"),
        ("output_type: mel", "output_type: [", "flow.yaml"),
    ],
)
def test_a_wrong_field_of_the_flow_is_named(old: str, new: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    write_flow_config(file, FlowConfig())
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(CheckpointError) as failure:
        read_flow_config(file)
    assert failure.value.item == named


@pytest.mark.parametrize("causal", [False, True])
def test_the_generation_is_told_by_shapes(causal: bool, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    file = folder / "assets/token2wav/hift.pt"
    file.unlink()
    wanted = msgspec.structs.replace(tiny().hift, causal=causal)
    write_hift(file, wanted, seed=1)
    assert read_config(folder).hift == wanted
    # The prefix belongs to the first generation; with it, the newer one is still the newer one.
    torch.save({f"generator.{name.removeprefix('generator.')}": value for name, value in torch.load(file).items()}, file)
    assert read_config(folder).hift == wanted


def test_both_generations_side_by_side_are_chosen_from(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    assets = folder / "assets/token2wav"
    (assets / "hift_original.pt").symlink_to(tiny_checkpoint / "assets/token2wav/hift.pt")
    (assets / "hift.pt").unlink()
    write_hift(assets / "hift.pt", msgspec.structs.replace(tiny().hift, causal=True), seed=1)
    assert read_config(folder).hift.causal
    assert read_config(folder, causal=False).hift == tiny().hift
    assert read_config(folder, causal=True).hift.causal


def test_a_generation_that_is_not_there_is_said(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="causal"):
        read_config(tiny_checkpoint, causal=True)
