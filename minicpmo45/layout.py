"""Names and shapes of every tensor of a checkpoint, from its sizes alone: nothing is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from minicpmo45.config import AudioConfig, Config, FlowConfig, HiftConfig, LlmConfig, TalkerConfig, VisionConfig
from minicpmo45.errors import CheckpointError

DType = Literal["BF16", "F32"]
Shape = tuple[int, ...]
Layout = dict[str, "TensorSpec"]

THINKER_PREFIXES = ("llm.", "vpm.", "resampler.", "apm.", "audio_projection_layer.")
TALKER_PREFIXES = ("tts.",)
PREFIXES = (*THINKER_PREFIXES, *TALKER_PREFIXES)
UNUSED_PREFIXES = ("tts.model.embed_tokens.", "tts.projector_spk.")
"""Stored and never read: 28.3 M parameters."""

GAIN, DIRECTION = ".parametrizations.weight.original0", ".parametrizations.weight.original1"
"""Weight norm as the released files spell it; `weight_g` and `weight_v` are the older spelling of the same."""
OLD_SPELLING = {".weight_g": GAIN, ".weight_v": DIRECTION}

BYTES_PER_ELEMENT: dict[str, int] = {"BF16": 2, "F16": 2, "F32": 4}


class TensorSpec(NamedTuple):
    """Shape and stored dtype (in the spelling of safetensors) of one tensor."""

    shape: Shape
    dtype: DType

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.parameters * BYTES_PER_ELEMENT[self.dtype]


def safetensors_layout(config: Config) -> Layout:
    """All tensors of the safetensors shards (1,414 in the released sizes), bf16, in the order in which they are stored."""
    width = config.llm.hidden_size
    shapes = {
        **_llm(config.llm),
        **_vision(config.vision),
        **_resampler(config.vision, width),
        **_audio(config.audio),
        **_mlp("audio_projection_layer", config.audio.d_model, width),
        **_talker(config.talker),
    }
    return {name: TensorSpec(shape, "BF16") for name, shape in shapes.items()}


def flow_layout(config: FlowConfig) -> Layout:
    """All tensors of `flow.pt` (605 in the released sizes), fp32. Positional tables and the noise buffer are not stored."""
    width, mels = config.hidden_size, config.mels
    shapes: dict[str, Shape] = {"input_embedding.weight": (config.codes, width)}
    shapes |= _linear("spk_embed_affine_layer", config.speaker_dim, mels)
    shapes |= _linear("encoder.embed.out.0", width, width) | _norm("encoder.embed.out.1", width)
    shapes |= _conv("encoder.pre_lookahead_layer.conv1", width, width, config.lookahead + 1)
    shapes |= _conv("encoder.pre_lookahead_layer.conv2", width, width, 3)
    for block in range(config.blocks):
        shapes |= _conformer_block(f"encoder.encoders.{block}", config)
    shapes |= _conv("encoder.up_layer.conv", width, width, 5)
    shapes |= _linear("encoder.up_embed.out.0", width, width) | _norm("encoder.up_embed.out.1", width)
    for block in range(config.up_blocks):
        shapes |= _conformer_block(f"encoder.up_encoders.{block}", config)
    shapes |= _norm("encoder.after_norm", width) | _linear("encoder_proj", width, mels)
    shapes |= _dit("decoder.estimator", config)
    return {name: TensorSpec(shape, "F32") for name, shape in shapes.items()}


def hift_layout(config: HiftConfig) -> Layout:
    """All tensors of `hift.pt` (328 in either generation), fp32, without the prefix `generator.` of the first generation."""
    shapes = _linear("m_source.l_linear", config.harmonics + 1, 1)
    shapes |= _weight_normed("conv_pre", (config.channels, config.mels, hift_pre_kernel(config)))
    width, spectrum = config.channels, config.n_fft + 2
    rates = source_rates(config)
    for stage, kernel in enumerate(config.upsample_kernels):
        out = width // 2
        up = (out, width, kernel) if config.causal else (width, out, kernel)
        shapes |= _weight_normed(f"ups.{stage}", up, bias=out)
        rate = rates[stage]
        shapes |= _conv(f"source_downs.{stage}", spectrum, out, 2 * rate if rate > 1 else 1)
        shapes |= _resblock(f"source_resblocks.{stage}", out, config.source_kernels[stage], config)
        for index, size in enumerate(config.resblock_kernels):
            shapes |= _resblock(f"resblocks.{stage * len(config.resblock_kernels) + index}", out, size, config)
        width = out
    shapes |= _weight_normed("conv_post", (spectrum, width, 7))
    for index in range(0, 10, 2):
        inputs, kernel = (config.mels, 4 if config.causal else 3) if index == 0 else (config.f0_channels, 3)
        shapes |= _weight_normed(f"f0_predictor.condnet.{index}", (config.f0_channels, inputs, kernel))
    shapes |= _linear("f0_predictor.classifier", config.f0_channels, 1)
    return {name: TensorSpec(shape, "F32") for name, shape in shapes.items()}


def hift_pre_kernel(config: HiftConfig) -> int:
    """Kernel of `conv_pre`: 7 frames round the middle in the first generation, 1 + 4 of look-ahead in the causal one."""
    return 5 if config.causal else 7


def source_rates(config: HiftConfig) -> tuple[int, ...]:
    """By how much each stage lessens the frame rate of the source spectrum: what the later stages still raise."""
    return tuple(math.prod(config.upsample_rates[stage + 1 :]) for stage in range(len(config.upsample_rates)))


def modern_name(name: str) -> str:
    """The name with weight norm spelled as in the released files, whichever spelling it came in."""
    for old, new in OLD_SPELLING.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def prefix_of(name: str) -> str:
    """The prefix of `PREFIXES` that the name begins with, or the text up to and with its first dot."""
    return next((prefix for prefix in PREFIXES if name.startswith(prefix)), name.partition(".")[0] + ".")


def select(layout: Layout, prefixes: Iterable[str], without: Iterable[str] = ()) -> Layout:
    """The part of a layout whose names begin with one of `prefixes` and with none of `without`."""
    wanted, dropped = tuple(prefixes), tuple(without)
    return {name: spec for name, spec in layout.items() if name.startswith(wanted) and not (dropped and name.startswith(dropped))}


def compare(expected: Mapping[str, TensorSpec], found: Mapping[str, Shape], where: str) -> None:
    """Raises CheckpointError that names the first tensor that is missing, surplus or of another shape."""
    for error in differences(expected, found, where):
        raise error


def differences(expected: Mapping[str, TensorSpec], found: Mapping[str, Shape], where: str) -> Iterator[CheckpointError]:
    """One error for each tensor that is missing, surplus or of another shape."""
    for name, spec in expected.items():
        if name not in found:
            yield CheckpointError(name, f"missing from {where}")
        elif found[name] != spec.shape:
            yield CheckpointError(name, f"shape {_shown(found[name])} in {where}, expected {_shown(spec.shape)}")
    for name in found:
        if name not in expected:
            yield CheckpointError(name, f"in {where}, but no part of the model")


def _shown(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, Shape]:
    weight: dict[str, Shape] = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def _conv(name: str, inputs: int, outputs: int, *kernel: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs, *kernel), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _weight_normed(name: str, shape: Shape, bias: int | None = None) -> dict[str, Shape]:
    gain = (shape[0],) + (1,) * (len(shape) - 1)
    return {name + GAIN: gain, name + DIRECTION: shape, f"{name}.bias": (shape[0] if bias is None else bias,)}


def _mlp(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return _linear(f"{name}.linear1", inputs, outputs) | _linear(f"{name}.linear2", outputs, outputs)


def _decoder_layer(name: str, hidden: int, queries: int, keys: int, inner: int) -> dict[str, Shape]:
    """A Qwen3 or Llama layer: no biases."""
    return {
        f"{name}.self_attn.q_proj.weight": (queries, hidden),
        f"{name}.self_attn.k_proj.weight": (keys, hidden),
        f"{name}.self_attn.v_proj.weight": (keys, hidden),
        f"{name}.self_attn.o_proj.weight": (hidden, queries),
        f"{name}.mlp.gate_proj.weight": (inner, hidden),
        f"{name}.mlp.up_proj.weight": (inner, hidden),
        f"{name}.mlp.down_proj.weight": (hidden, inner),
        f"{name}.input_layernorm.weight": (hidden,),
        f"{name}.post_attention_layernorm.weight": (hidden,),
    }


def _llm(config: LlmConfig) -> dict[str, Shape]:
    hidden, width = config.hidden_size, config.head_dim
    shapes: dict[str, Shape] = {"llm.model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.layers):
        name = f"llm.model.layers.{layer}"
        shapes |= _decoder_layer(name, hidden, config.heads * width, config.kv_heads * width, config.intermediate_size)
        shapes |= {f"{name}.self_attn.q_norm.weight": (width,), f"{name}.self_attn.k_norm.weight": (width,)}
    return shapes | {"llm.model.norm.weight": (hidden,), "llm.lm_head.weight": (config.vocab_size, hidden)}


def _vision(config: VisionConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes = _conv("vpm.embeddings.patch_embedding", 3, hidden, config.patch_size, config.patch_size)
    shapes["vpm.embeddings.position_embedding.weight"] = (config.grid**2, hidden)
    for layer in range(config.layers):
        name = f"vpm.encoder.layers.{layer}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{name}.self_attn.{projection}", hidden, hidden)
        shapes |= _norm(f"{name}.layer_norm1", hidden) | _norm(f"{name}.layer_norm2", hidden)
        shapes |= _linear(f"{name}.mlp.fc1", hidden, config.intermediate_size) | _linear(
            f"{name}.mlp.fc2", config.intermediate_size, hidden
        )
    return shapes | _norm("vpm.post_layernorm", hidden)


def _resampler(config: VisionConfig, width: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        "resampler.query": (config.queries, width),
        "resampler.proj": (width, width),
        "resampler.kv_proj.weight": (width, config.hidden_size),
        "resampler.attn.in_proj_weight": (3 * width, width),
        "resampler.attn.in_proj_bias": (3 * width,),
    }
    shapes |= _linear("resampler.attn.out_proj", width, width)
    return shapes | _norm("resampler.ln_q", width) | _norm("resampler.ln_kv", width) | _norm("resampler.ln_post", width)


def _audio(config: AudioConfig) -> dict[str, Shape]:
    width = config.d_model
    shapes = _conv("apm.conv1", config.mels, width, 3) | _conv("apm.conv2", width, width, 3)
    shapes["apm.embed_positions.weight"] = (config.max_positions, width)
    for layer in range(config.layers):
        name = f"apm.layers.{layer}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{name}.self_attn.{projection}", width, width, bias=projection != "k_proj")
        shapes |= _norm(f"{name}.self_attn_layer_norm", width) | _norm(f"{name}.final_layer_norm", width)
        shapes |= _linear(f"{name}.fc1", width, config.ffn) | _linear(f"{name}.fc2", config.ffn, width)
    return shapes | _norm("apm.layer_norm", width)


def _talker(config: TalkerConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {"tts.model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.layers):
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes |= _decoder_layer(f"tts.model.layers.{layer}", hidden, queries, keys, config.intermediate_size)
    shapes |= {
        "tts.model.norm.weight": (hidden,),
        "tts.emb_text.weight": (config.text_tokens, hidden),
        "tts.emb_code.0.weight": (config.codes, hidden),
        f"tts.head_code.0{GAIN}": (config.codes, 1),
        f"tts.head_code.0{DIRECTION}": (config.codes, hidden),
    }
    return shapes | _mlp("tts.projector_semantic", config.llm_dim, hidden) | _mlp("tts.projector_spk", config.llm_dim, hidden)


def _conformer_block(name: str, config: FlowConfig) -> dict[str, Shape]:
    width, head = config.hidden_size, config.hidden_size // config.heads
    shapes: dict[str, Shape] = {}
    for projection in ("linear_q", "linear_k", "linear_v", "linear_out"):
        shapes |= _linear(f"{name}.self_attn.{projection}", width, width)
    shapes |= _linear(f"{name}.self_attn.linear_pos", width, width, bias=False)
    shapes |= {f"{name}.self_attn.pos_bias_u": (config.heads, head), f"{name}.self_attn.pos_bias_v": (config.heads, head)}
    shapes |= _linear(f"{name}.feed_forward.w_1", width, config.linear_units)
    shapes |= _linear(f"{name}.feed_forward.w_2", config.linear_units, width)
    return shapes | _norm(f"{name}.norm_ff", width) | _norm(f"{name}.norm_mha", width)


def _dit(name: str, config: FlowConfig) -> dict[str, Shape]:
    hidden, inner, mlp = config.dit_hidden, config.dit_heads * config.dit_head_dim, int(config.dit_hidden * config.dit_mlp_ratio)
    shapes = _linear(f"{name}.t_embedder.mlp.0", DIT_TIME_CHANNELS, hidden) | _linear(f"{name}.t_embedder.mlp.2", hidden, hidden)
    shapes |= _linear(f"{name}.in_proj", config.dit_in, hidden)
    for index in range(config.dit_depth):
        block = f"{name}.blocks.{index}"
        for projection in ("to_q", "to_k", "to_v"):
            shapes |= _linear(f"{block}.attn.{projection}", hidden, inner)
        shapes |= _norm(f"{block}.attn.q_norm", config.dit_head_dim) | _norm(f"{block}.attn.k_norm", config.dit_head_dim)
        shapes |= _linear(f"{block}.attn.proj", inner, hidden)
        shapes |= _linear(f"{block}.mlp.fc1", hidden, mlp) | _linear(f"{block}.mlp.fc2", mlp, hidden)
        shapes |= _conv(f"{block}.conv.block.1", hidden, hidden, 3) | _norm(f"{block}.conv.block.3", hidden)
        shapes |= _conv(f"{block}.conv.block.6", hidden, hidden, 3)
        shapes |= _linear(f"{block}.adaLN_modulation.1", hidden, 9 * hidden)
    shapes |= _linear(f"{name}.final_layer.adaLN_modulation.1", hidden, 2 * hidden)
    return shapes | _linear(f"{name}.final_layer.linear", hidden, config.mels)


DIT_TIME_CHANNELS = 256
"""Width of the sinusoid that the DiT's time embedding begins with."""


def _resblock(name: str, width: int, kernel: int, config: HiftConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for index in range(len(config.resblock_dilations)):
        shapes |= _weight_normed(f"{name}.convs1.{index}", (width, width, kernel))
        shapes |= _weight_normed(f"{name}.convs2.{index}", (width, width, kernel))
        shapes |= {f"{name}.activations1.{index}.alpha": (width,), f"{name}.activations2.{index}.alpha": (width,)}
    return shapes
