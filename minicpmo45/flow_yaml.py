"""`flow.yaml` and `config.yaml` of the vocoder: sizes in YAML whose tags name Python classes, read without importing any."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from minicpmo45.config import FlowConfig
from minicpmo45.errors import CheckpointError

FLOW = "cosyvoice2.flow.flow.CausalMaskedDiffWithXvec"
ENCODER = "cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2"
MATCHING = "cosyvoice2.flow.flow_matching.CausalConditionalCFM"
ESTIMATOR = "cosyvoice2.flow.decoder_dit.DiT"
CLASSES = (FLOW, ENCODER, MATCHING, ESTIMATOR)
"""The four `!new:` tags of the released file. Each is read as the plain dict below it."""


class _Foreign(NamedTuple):
    """Stands for whatever another tag would have made: harmless beside the flow, an error within it."""

    tag: str


class _Loader(yaml.SafeLoader):
    """The safe loader; the four tags become dicts, every other tag a `_Foreign`."""


def _construct(loader: _Loader, node: yaml.Node) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.constructor.ConstructorError(None, None, f"{node.tag} without a mapping", node.start_mark)
    return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}


def _set_aside(_: _Loader, suffix: str, node: yaml.Node) -> _Foreign:
    return _Foreign(f"!{suffix}")


for _name in CLASSES:
    _Loader.add_constructor(f"!new:{_name}", _construct)
_Loader.add_multi_constructor("!", _set_aside)


def sizes_file(folder: Path) -> Path:
    """`flow.yaml` of the vocoder's folder, or `config.yaml` where it is that."""
    return next((folder / name for name in ("flow.yaml", "config.yaml") if (folder / name).is_file()), folder / "flow.yaml")


def read_flow_config(file: Path) -> FlowConfig:
    """Sizes of the flow. Raises CheckpointError that names the file, or the field that is missing or of the wrong type."""
    fields = _Fields(_load(file), file.name)
    flow, encoder = fields.inner("flow"), fields.inner("flow", "encoder")
    matching, dit = fields.inner("flow", "decoder"), fields.inner("flow", "decoder", "estimator")
    config = FlowConfig(
        codes=flow.count("vocab_size"),
        hidden_size=encoder.count("output_size"),
        heads=encoder.count("attention_heads"),
        linear_units=encoder.count("linear_units"),
        blocks=encoder.count("num_blocks"),
        up_blocks=encoder.count("num_up_blocks"),
        lookahead=encoder.count("pre_lookahead_len"),
        speaker_dim=flow.count("spk_embed_dim"),
        mels=flow.count("output_size"),
        dit_in=dit.count("in_channels"),
        dit_hidden=dit.count("hidden_size"),
        dit_depth=dit.count("depth"),
        dit_heads=dit.count("num_heads"),
        dit_head_dim=dit.count("head_dim"),
        dit_mlp_ratio=dit.real("mlp_ratio"),
        cfg_rate=matching.real("inference_cfg_rate"),
    )
    if flow.count("input_size") != config.hidden_size or encoder.count("input_size") != config.hidden_size:
        raise CheckpointError("flow.input_size", f"the embedding and the encoder of {file.name} differ in width")
    if encoder.count("up_stride") != 2 or encoder.real("up_scale_factor") != 2:
        raise CheckpointError("flow.encoder.up_stride", f"{file.name} asks for other than 2 mel frames a code")
    return config


def write_flow_config(file: Path, config: FlowConfig) -> None:
    """Writes the file in its released form: the four tags, the same fields."""
    file.write_text(
        f"""flow: !new:{FLOW}
  input_size: {config.hidden_size}
  output_size: {config.mels}
  spk_embed_dim: {config.speaker_dim}
  output_type: mel
  vocab_size: {config.codes}
  encoder: !new:{ENCODER}
    input_size: {config.hidden_size}
    output_size: {config.hidden_size}
    input_layer: linear
    pre_lookahead_len: {config.lookahead}
    num_blocks: {config.blocks}
    num_up_blocks: {config.up_blocks}
    up_stride: 2
    up_scale_factor: 2
    attention_heads: {config.heads}
    pos_enc_layer_type: rel_pos_espnet
    selfattention_layer_type: rel_selfattn
    key_bias: true
    linear_units: {config.linear_units}
    dropout_rate: 0.1
    positional_dropout_rate: 0.1
    attention_dropout_rate: 0.1
    normalize_before: true
  decoder: !new:{MATCHING}
    inference_cfg_rate: {config.cfg_rate}
    estimator: !new:{ESTIMATOR}
      in_channels: {config.dit_in}
      out_channels: {config.mels}
      mlp_ratio: {config.dit_mlp_ratio}
      depth: {config.dit_depth}
      num_heads: {config.dit_heads}
      head_dim: {config.dit_head_dim}
      hidden_size: {config.dit_hidden}
""",
        encoding="utf-8",
    )


def _load(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise CheckpointError(file.name, "missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)) from None
    except RecursionError:
        raise CheckpointError(file.name, "nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise CheckpointError(file.name, " ".join(str(error).split())) from None


class _Fields:
    """A mapping whose fields are fetched by type; errors name the path to the field."""

    def __init__(self, content: Any, file: str, path: str = "") -> None:
        if isinstance(content, _Foreign):
            raise CheckpointError(path or file, f"{file} asks for {content.tag}, which is no part of this model")
        if not isinstance(content, dict):
            raise CheckpointError(path or file, f"no mapping in {file}")
        self._content, self._file, self._path = content, file, path

    def inner(self, *keys: str) -> _Fields:
        found = self
        for key in keys:
            name = found._named(key)
            found = _Fields(found._content.get(key), self._file, name)
        return found

    def count(self, key: str) -> int:
        """A positive integer."""
        value = self._content.get(key)
        if type(value) is not int or value <= 0:
            raise CheckpointError(self._named(key), f"{value!r} in {self._file} is no positive whole number")
        return value

    def real(self, key: str) -> float:
        """A finite number that is not negative."""
        value: Any = self._content.get(key)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise CheckpointError(self._named(key), f"{value!r} in {self._file} is no number of at least 0")
        return float(value)

    def _named(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key
