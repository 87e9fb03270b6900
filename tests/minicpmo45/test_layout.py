"""Names, shapes and totals of the released checkpoint, from its sizes alone."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from minicpmo45.config import Config, HiftConfig, tiny
from minicpmo45.errors import CheckpointError
from minicpmo45.layout import (
    PREFIXES,
    TALKER_PREFIXES,
    THINKER_PREFIXES,
    UNUSED_PREFIXES,
    Layout,
    TensorSpec,
    compare,
    flow_layout,
    hift_layout,
    modern_name,
    prefix_of,
    safetensors_layout,
    select,
)

RELEASED = {
    "llm.": (399, 8_189_195_264),
    "vpm.": (437, 417_792_240),
    "apm.": (367, 307_216_384),
    "resampler.": (13, 88_907_776),
    "audio_projection_layer.": (4, 20_979_712),
    "tts.": (194, 347_696_290),
}


def parameters(layout: Layout, start: str = "") -> int:
    return sum(spec.parameters for name, spec in layout.items() if name.startswith(start))


@pytest.mark.behaviour("N47")
def test_the_released_shards_total_what_their_headers_say() -> None:
    layout = safetensors_layout(Config())
    counted = Counter(prefix_of(name) for name in layout)
    assert {prefix: (counted[prefix], parameters(layout, prefix)) for prefix in PREFIXES} == RELEASED
    assert (len(layout), parameters(layout)) == (1414, 9_371_787_666)
    assert sum(spec.nbytes for spec in layout.values()) == 18_743_575_332


@pytest.mark.parametrize(
    ("start", "total"),
    [
        ("llm.model.layers.0.", 192_946_432),
        ("llm.model.layers.35.", 192_946_432),
        ("vpm.encoder.layers.26.", 15_239_504),
        ("vpm.embeddings.patch_embedding", 678_528),
        ("vpm.embeddings.position_embedding", 4900 * 1152),
        ("apm.layers.23.", 12_595_200),
        ("apm.conv1", 246_784),
        ("apm.conv2", 3_146_752),
        ("tts.model.layers.", 20 * 9_438_720),
        ("tts.model.embed_tokens", 24_576_000),
        ("tts.emb_text", 116_785_152),
        ("tts.emb_code.0", 5_039_616),
        ("tts.head_code.0", 5_046_178),
        ("tts.projector_semantic", 3_737_088),
        ("tts.projector_spk", 3_737_088),
    ],
)
def test_the_parts_of_the_shards(start: str, total: int) -> None:
    assert parameters(safetensors_layout(Config()), start) == total


@pytest.mark.parametrize(
    ("start", "total"),
    [
        ("", 155_802_352),
        ("input_embedding", 3_359_232),
        ("spk_embed_affine_layer", 15_440),
        ("encoder.", 37_831_168),
        ("encoder.embed", 263_680),
        ("encoder.pre_lookahead_layer", 1_836_032),
        ("encoder.encoders.", 20_493_312),
        ("encoder.up_layer", 1_311_232),
        ("encoder.up_embed", 263_680),
        ("encoder.up_encoders.", 13_662_208),
        ("encoder.after_norm", 1_024),
        ("encoder_proj", 41_040),
        ("decoder.estimator", 114_555_472),
        ("decoder.estimator.blocks.15.", 7_089_408),
        ("decoder.estimator.blocks.0.attn", 1_050_880),
        ("decoder.estimator.blocks.0.mlp", 2_099_712),
        ("decoder.estimator.blocks.0.conv", 1_574_912),
        ("decoder.estimator.blocks.0.adaLN", 2_363_904),
        ("decoder.estimator.t_embedder", 394_240),
        ("decoder.estimator.in_proj", 164_352),
        ("decoder.estimator.final_layer", 566_352),
    ],
)
def test_the_parts_of_the_flow(start: str, total: int) -> None:
    assert parameters(flow_layout(Config().flow), start) == total


@pytest.mark.parametrize(
    ("start", "total"),
    [
        ("", 20_821_295),
        ("conv_pre", 287_744),
        ("ups.", 2_516_288),
        ("source_downs.", 153_664),
        ("source_resblocks.", 3_719_040),
        ("resblocks.", 10_862_208),
        ("conv_post", 8_100),
        ("f0_predictor", 3_274_241),
        ("m_source", 10),
    ],
)
def test_the_parts_of_the_generator(start: str, total: int) -> None:
    assert parameters(hift_layout(Config().hift), start) == total


def test_how_many_tensors_the_vocoder_stores() -> None:
    assert len(flow_layout(Config().flow)) == 605
    assert len(hift_layout(HiftConfig())) == len(hift_layout(HiftConfig(causal=True))) == 328


def test_the_generations_differ_in_shapes_not_in_names() -> None:
    first, causal = hift_layout(HiftConfig()), hift_layout(HiftConfig(causal=True))
    assert list(first) == list(causal)
    differing = {name: (first[name].shape, causal[name].shape) for name in first if first[name] != causal[name]}
    direction = ".parametrizations.weight.original1"
    assert differing[f"conv_pre{direction}"] == ((512, 80, 7), (512, 80, 5))
    assert differing[f"f0_predictor.condnet.0{direction}"] == ((512, 80, 3), (512, 80, 4))
    assert differing[f"ups.1{direction}"] == ((256, 128, 11), (128, 256, 11))
    assert {name.split(".")[0] for name in differing} == {"conv_pre", "f0_predictor", "ups"}


def test_some_names_in_full() -> None:
    shapes = {name: spec.shape for name, spec in safetensors_layout(Config()).items()}
    assert shapes["llm.model.layers.35.self_attn.k_norm.weight"] == (128,)
    assert shapes["llm.lm_head.weight"] == (151_748, 4096)
    assert shapes["vpm.embeddings.patch_embedding.weight"] == (1152, 3, 14, 14)
    assert shapes["resampler.attn.in_proj_weight"] == (12_288, 4096)
    assert shapes["tts.head_code.0.parametrizations.weight.original0"] == (6562, 1)
    assert "apm.layers.0.self_attn.k_proj.bias" not in shapes
    assert "apm.layers.0.self_attn.q_proj.bias" in shapes
    assert not any("inv_freq" in name or "pos_embed" in name for name in shapes)


def test_tiny_keeps_the_structure() -> None:
    released, small = safetensors_layout(Config()), safetensors_layout(tiny())
    assert set(small) <= set(released)
    assert {name.count(".") for name in small} == {name.count(".") for name in released}
    assert all(len(small[name].shape) == len(released[name].shape) for name in small)
    assert small["llm.lm_head.weight"].shape[0] == released["llm.lm_head.weight"].shape[0]


def test_services_share_no_tensor_and_leave_none() -> None:
    layout = safetensors_layout(tiny())
    thinker, talker = select(layout, THINKER_PREFIXES), select(layout, TALKER_PREFIXES, UNUSED_PREFIXES)
    assert not set(thinker) & set(talker)
    assert {name.rsplit(".", 2)[0] for name in set(layout) - set(thinker) - set(talker)} == {
        "tts.model",
        "tts.projector_spk",
    }


@pytest.mark.parametrize(
    ("found", "named", "why"),
    [
        ({"a": (2, 3)}, "b", "missing"),
        ({"a": (3, 2), "b": (1,)}, "a", "3x2"),
        ({"a": (2, 3), "b": (1,), "c": (1,)}, "c", "no part"),
    ],
)
def test_a_difference_names_its_tensor(found: dict[str, tuple[int, ...]], named: str, why: str) -> None:
    expected = {"a": TensorSpec((2, 3), "F32"), "b": TensorSpec((1,), "F32")}
    with pytest.raises(CheckpointError, match=why) as failure:
        compare(expected, found, "somewhere")
    assert failure.value.item == named


def test_older_spellings_of_weight_norm() -> None:
    assert modern_name("conv_pre.weight_g") == "conv_pre.parametrizations.weight.original0"
    assert modern_name("tts.head_code.0.weight_v") == "tts.head_code.0.parametrizations.weight.original1"
    assert modern_name("conv_pre.bias") == "conv_pre.bias"


def test_nothing_is_allocated_for_a_layout_of_any_size() -> None:
    huge = msgspec.structs.replace(Config(), llm=msgspec.structs.replace(Config().llm, hidden_size=1 << 20))
    assert safetensors_layout(huge)["llm.lm_head.weight"].nbytes == 151_748 * (1 << 20) * 2
