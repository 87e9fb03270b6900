"""`config.json` in its released form: the language model's fields at the top, one nested object for each other network."""

from __future__ import annotations

from typing import Any, TypeVar

from minicpmo45.config import AudioConfig, Config, LlmConfig, TalkerConfig, VisionConfig
from minicpmo45.errors import CheckpointError

Number = TypeVar("Number", int, float)

RESAMPLER_HEAD_DIM = 128
"""The resampler has one head for every 128 channels, unless `resampler_heads` says otherwise (tiny models)."""

LLM = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "rms_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "max_positions": "max_position_embeddings",
}
VISION = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "patch_size": "patch_size",
    "image_size": "image_size",
    "layer_norm_eps": "layer_norm_eps",
}
AUDIO = {
    "layers": "encoder_layers",
    "d_model": "d_model",
    "heads": "encoder_attention_heads",
    "ffn": "encoder_ffn_dim",
    "mels": "num_mel_bins",
    "max_positions": "max_source_positions",
}
TALKER = {
    "llm_dim": "llm_dim",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate_size": "intermediate_size",
    "text_tokens": "num_text_tokens",
    "codes": "num_audio_tokens",
    "max_positions": "max_position_embeddings",
    "audio_bos": "audio_bos_token_id",
    "text_eos": "text_eos_token_id",
}
"""Field of our struct to the field of the file."""

RELEASED: dict[str, dict[str, Any]] = {
    "": {
        "architectures": ["MiniCPMO"],
        "auto_map": {
            "AutoConfig": "configuration_minicpmo.MiniCPMOConfig",
            "AutoModel": "modeling_minicpmo.MiniCPMO",
            "AutoModelForCausalLM": "modeling_minicpmo.MiniCPMO",
        },
        "attention_bias": False,
        "audio_chunk_length": 1.0,
        "batch_vision_input": True,
        "drop_vision_last_layer": False,
        "hidden_act": "silu",
        "init_audio": True,
        "init_tts": True,
        "init_vision": True,
        "model_type": "minicpmo",
        "slice_mode": True,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_image_id": True,
        "use_sliding_window": False,
        "version": "4.5",
        "vision_batch_size": 16,
    },
    "vision_config": {"model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh", "num_channels": 3, "attention_dropout": 0.0},
    "audio_config": {"model_type": "whisper", "activation_function": "gelu", "scale_embedding": False},
    "tts_config": {
        "model_type": "minicpmtts",
        "attention_type": "full_attention",
        "backbone_model": "llama",
        "condition_type": "hidden_text_merge",
        "hidden_act": "silu",
        "normalize_projected_hidden": True,
        "num_vq": 1,
        "projector_type": "mlp",
    },
    "slice_config": {"model_type": "minicpmv"},
}
"""Fields that say which maths the model does. This code does no other: a file that says otherwise is refused."""

MOST_LAYERS = 1024
"""More is a slip of the pen, and would be minutes of names that no file holds."""

BINDING = {
    "": ("model_type", "hidden_act", "tie_word_embeddings", "attention_bias", "use_sliding_window", "audio_chunk_length"),
    "vision_config": ("hidden_act",),
    "audio_config": ("activation_function", "scale_embedding"),
    "tts_config": ("backbone_model", "condition_type", "normalize_projected_hidden", "num_vq", "projector_type"),
}
"""Which of them are refused when they differ; a field that is not in the file counts as released."""


def from_json(content: dict[str, Any]) -> Config:
    """Sizes from the content of `config.json`. Flow and generator keep their released sizes: they stand in other files.

    Fields whose released value is every library's default (`layer_norm_eps`, the talker's `rms_norm_eps` and `rope_theta`) may be left out.
    Raises CheckpointError that names a field which is missing, of the wrong type, or asks for maths that this model does not do.
    """
    _refuse_other_models(content)
    llm, vision = _Section(content, ""), _Section.of(content, "vision_config")
    audio, talker, slices = (_Section.of(content, name) for name in ("audio_config", "tts_config", "slice_config"))
    width = llm.take(LLM["hidden_size"], 0)
    sized = {
        "queries": llm.take("query_num", VisionConfig().queries),
        "resampler_heads": llm.take("resampler_heads", max(1, width // RESAMPLER_HEAD_DIM)),
        "scale_resolution": slices.take("scale_resolution", VisionConfig().scale_resolution),
        "max_slices": slices.take("max_slice_nums", VisionConfig().max_slices),
    }
    config = Config(
        llm=LlmConfig(**llm.fields(LLM, LlmConfig(), optional=())),
        vision=VisionConfig(**vision.fields(VISION, VisionConfig(), optional=("layer_norm_eps", "patch_size")), **sized),
        audio=AudioConfig(
            **audio.fields(AUDIO, AudioConfig(), optional=("mels", "max_positions")), pool=llm.take("audio_pool_step", AudioConfig().pool)
        ),
        talker=TalkerConfig(
            **talker.fields(TALKER, TalkerConfig(), optional=("max_positions",)),
            rms_eps=talker.take("rms_norm_eps", TalkerConfig().rms_eps),
            rope_theta=talker.take("rope_theta", TalkerConfig().rope_theta),
            vocab_size=talker.take("vocab_size", TalkerConfig().vocab_size),
        ),
    )
    _check_shapes(config)
    return config


def to_json(config: Config) -> dict[str, Any]:
    """The reverse of `from_json`, with every other field that the released file is known to hold."""
    vision, talker = config.vision, config.talker
    content = {
        **RELEASED[""],
        **{theirs: getattr(config.llm, ours) for ours, theirs in LLM.items()},
        "audio_pool_step": config.audio.pool,
        "image_size": vision.scale_resolution,
        "query_num": vision.queries,
        "vision_config": {**RELEASED["vision_config"], **{theirs: getattr(vision, ours) for ours, theirs in VISION.items()}},
        "audio_config": {**RELEASED["audio_config"], **{theirs: getattr(config.audio, ours) for ours, theirs in AUDIO.items()}},
        "tts_config": {
            **RELEASED["tts_config"],
            **{theirs: getattr(talker, ours) for ours, theirs in TALKER.items()},
            "rms_norm_eps": talker.rms_eps,
            "rope_theta": talker.rope_theta,
            "vocab_size": talker.vocab_size,
        },
        "slice_config": {
            **RELEASED["slice_config"],
            "patch_size": vision.patch_size,
            "max_slice_nums": vision.max_slices,
            "scale_resolution": vision.scale_resolution,
        },
    }
    if vision.resampler_heads != max(1, config.llm.hidden_size // RESAMPLER_HEAD_DIM):
        content["resampler_heads"] = vision.resampler_heads
    return dict(sorted(content.items()))


def _refuse_other_models(content: dict[str, Any]) -> None:
    version = str(content.get("version", ""))
    if version != RELEASED[""]["version"]:
        raise CheckpointError("version", f"{version or 'missing'} in config.json, expected {RELEASED['']['version']}")
    for section, fields in BINDING.items():
        found = content.get(section, {}) if section else content
        for field in fields:
            expected = RELEASED[section][field]
            if isinstance(found, dict) and found.get(field, expected) != expected:
                raise CheckpointError(_named(section, field), f"{found[field]!r} in config.json, expected {expected!r}")


def _check_shapes(config: Config) -> None:
    """What must divide, divides."""
    llm, vision, audio, talker = config.llm, config.vision, config.audio, config.talker
    for field, layers in (
        ("num_hidden_layers", llm.layers),
        ("vision_config.num_hidden_layers", vision.layers),
        ("audio_config.encoder_layers", audio.layers),
        ("tts_config.num_hidden_layers", talker.layers),
    ):
        if layers > MOST_LAYERS:
            raise CheckpointError(field, f"{layers} in config.json, at most {MOST_LAYERS} are taken")
    for field, whole, part in (
        ("num_key_value_heads", llm.heads, llm.kv_heads),
        ("resampler_heads", llm.hidden_size, vision.resampler_heads),
        ("vision_config.num_attention_heads", vision.hidden_size, vision.heads),
        ("vision_config.patch_size", vision.image_size, vision.patch_size),
        ("audio_config.encoder_attention_heads", audio.d_model, audio.heads),
        ("tts_config.num_attention_heads", talker.hidden_size, talker.heads),
        ("tts_config.num_key_value_heads", talker.heads, talker.kv_heads),
    ):
        if whole % part:
            raise CheckpointError(field, f"{part} in config.json does not divide {whole}")
    if talker.llm_dim != llm.hidden_size:
        raise CheckpointError("tts_config.llm_dim", f"{talker.llm_dim} in config.json, but the language model is {llm.hidden_size} wide")


class _Section:
    """The top level or one nested object of the file."""

    def __init__(self, content: dict[str, Any], name: str) -> None:
        self._content, self._name = content, name

    @classmethod
    def of(cls, content: dict[str, Any], name: str) -> _Section:
        found = content.get(name)
        if not isinstance(found, dict):
            raise CheckpointError(name, "missing from config.json")
        return cls(found, name)

    def fields(self, names: dict[str, str], defaults: object, optional: tuple[str, ...]) -> dict[str, Any]:
        """Every field of `names`, checked against the type of our default; only `optional` ones may be missing."""
        for ours, theirs in names.items():
            if theirs not in self._content and ours not in optional:
                raise CheckpointError(_named(self._name, theirs), "missing from config.json")
        return {ours: self.take(theirs, getattr(defaults, ours)) for ours, theirs in names.items()}

    def take(self, name: str, default: Number) -> Number:
        """A positive number of the default's type; the default where the file is silent."""
        value = self._content.get(name, default)
        kinds = (int,) if isinstance(default, int) else (int, float)
        if type(value) not in kinds or not 0 < value < float("inf"):
            if name in self._content:
                raise CheckpointError(_named(self._name, name), f"{value!r} in config.json is no positive {kinds[-1].__name__}")
            raise CheckpointError(_named(self._name, name), "missing from config.json")
        return type(default)(value)


def _named(section: str, field: str) -> str:
    return f"{section}.{field}" if section else field
