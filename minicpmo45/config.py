"""Sizes of every network of the model. Defaults are those of the released checkpoint; `tiny()` keeps every structural rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

SAMPLE_RATE_IN = 16_000
SAMPLE_RATE_OUT = 24_000
UNIT_MS = 1000
CODE_RATE = 25
"""Speech codes a second; one code is 2 mel frames, 960 samples."""
MEL_RATE = 50
HOP = 480
"""Samples of output audio a mel frame."""


class LlmConfig(msgspec.Struct, frozen=True):
    """A Qwen3 decoder."""

    vocab_size: int = 151_748
    hidden_size: int = 4096
    layers: int = 36
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate_size: int = 12_288
    rms_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    max_positions: int = 40_960


class VisionConfig(msgspec.Struct, frozen=True):
    """A SigLIP encoder with bucketized positions, and the resampler behind it."""

    hidden_size: int = 1152
    layers: int = 27
    heads: int = 16
    intermediate_size: int = 4304
    patch_size: int = 14
    image_size: int = 980
    """Sets the learned position table: (image_size / patch_size) squared rows."""
    layer_norm_eps: float = 1e-6
    queries: int = 64
    """Tokens an image or slice becomes."""
    resampler_heads: int = 32
    scale_resolution: int = 448
    max_slices: int = 9

    @property
    def grid(self) -> int:
        """Rows and columns of the position table."""
        return self.image_size // self.patch_size


class AudioConfig(msgspec.Struct, frozen=True):
    """The encoder half of a Whisper model, and the projection behind it."""

    layers: int = 24
    d_model: int = 1024
    heads: int = 16
    ffn: int = 4096
    mels: int = 80
    max_positions: int = 1500
    """Encoder frames (50 a second): when cached and new ones reach it, the cache starts anew."""
    pool: int = 5


class TalkerConfig(msgspec.Struct, frozen=True):
    """A Llama decoder over speech codes."""

    llm_dim: int = 4096
    hidden_size: int = 768
    layers: int = 20
    heads: int = 12
    kv_heads: int = 12
    intermediate_size: int = 3072
    rms_eps: float = 1e-6
    rope_theta: float = 10_000.0
    vocab_size: int = 32_000
    """Rows of the Llama embedding, which is stored and never used."""
    text_tokens: int = 152_064
    codes: int = 6562
    """Codes 0 to 6560, then the end."""
    max_positions: int = 4096
    audio_bos: int = 151_687
    text_eos: int = 151_692

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def end_code(self) -> int:
        return self.codes - 1


class FlowConfig(msgspec.Struct, frozen=True):
    """The conformer over codes and the DiT that makes mel frames of it."""

    codes: int = 6561
    hidden_size: int = 512
    """Conformer and embedding width."""
    heads: int = 8
    linear_units: int = 2048
    blocks: int = 6
    up_blocks: int = 4
    lookahead: int = 3
    """Codes of right context."""
    speaker_dim: int = 192
    mels: int = 80
    dit_in: int = 320
    dit_hidden: int = 512
    dit_depth: int = 16
    dit_heads: int = 8
    dit_head_dim: int = 64
    dit_mlp_ratio: float = 4.0
    cfg_rate: float = 0.7


class HiftConfig(msgspec.Struct, frozen=True):
    """The generator of samples. `causal`: the newer generation, told by tensor shapes."""

    mels: int = 80
    channels: int = 512
    f0_channels: int = 512
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernels: tuple[int, ...] = (16, 11, 7)
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: tuple[int, ...] = (1, 3, 5)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    n_fft: int = 16
    istft_hop: int = 4
    harmonics: int = 8
    sine_amplitude: float = 0.1
    noise_sigma: float = 0.003
    voiced_threshold_hz: float = 10.0
    leaky_slope: float = 0.1
    audio_limit: float = 0.99
    causal: bool = False


class Config(msgspec.Struct, frozen=True):
    """The whole model. `end_of_text` and the like are token ids and live in `tokens.py`; files are read by `read_config`."""

    llm: LlmConfig = LlmConfig()
    vision: VisionConfig = VisionConfig()
    audio: AudioConfig = AudioConfig()
    talker: TalkerConfig = TalkerConfig()
    flow: FlowConfig = FlowConfig()
    hift: HiftConfig = HiftConfig()


def tiny() -> Config:
    """A model of the same structure that a CPU runs in milliseconds. The vocabulary, rates, pools and look-aheads are the released ones."""
    return Config(
        llm=LlmConfig(hidden_size=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate_size=128),
        vision=VisionConfig(hidden_size=32, layers=2, heads=2, intermediate_size=64, resampler_heads=2),
        audio=AudioConfig(layers=2, d_model=32, heads=2, ffn=64),
        talker=TalkerConfig(llm_dim=64, hidden_size=32, layers=2, heads=2, kv_heads=2, intermediate_size=64),
        flow=FlowConfig(
            hidden_size=32, heads=2, linear_units=64, blocks=2, up_blocks=1, dit_hidden=32, dit_depth=2, dit_heads=2, dit_head_dim=16
        ),
        hift=HiftConfig(channels=32, f0_channels=32),
    )


def read_config(path: Path, causal: bool | None = None) -> Config:
    """Sizes of the checkpoint in the folder `path`: `config.json`, the YAML of the flow, and the shapes in `hift.pt`.

    `causal` chooses the generation of the generator where both lie side by side; None takes that of `hift.pt`. A folder without
    `assets/token2wav` (a service that holds the safetensors alone) gives the released sizes of flow and generator.
    Raises CheckpointError that names the file or field which is missing, malformed or of another model.
    """
    from minicpmo45.config_json import from_json
    from minicpmo45.errors import CheckpointError
    from minicpmo45.flow_yaml import read_flow_config, sizes_file
    from minicpmo45.token2wav import ASSETS, hift_config
    from minicpmo45.tokens import read_json

    if not path.is_dir():
        raise CheckpointError(str(path), "no such folder")
    config = from_json(read_json(path / "config.json"))
    folder = path / ASSETS
    if not folder.is_dir():
        return config
    return msgspec.structs.replace(config, flow=read_flow_config(sizes_file(folder)), hift=hift_config(path, causal))


def to_json(config: Config) -> dict[str, Any]:
    """The content of `config.json` in its released, flat form; what the vocoder's files say is not in it."""
    from minicpmo45.config_json import to_json

    return to_json(config)
