"""Writes a checkpoint of random weights in exactly the released layout: tiny for tests, full size for benchmarks.

`python -m minicpmo45.random_checkpoint PATH [--full] [--seed N]` writes one and prints where.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from minicpmo45.config import Config, HiftConfig, tiny, to_json
from minicpmo45.flow_yaml import write_flow_config
from minicpmo45.layout import Layout, flow_layout, hift_layout, safetensors_layout
from minicpmo45.meter import Meter
from minicpmo45.random_assets import write_speaker_model, write_speech_tokenizer, write_voice
from minicpmo45.random_tensors import tensor, write_shard
from minicpmo45.random_tokenizer import write_tokenizer
from minicpmo45.token2wav import ASSETS, FLOW_FILE, HIFT_FILES, SPEAKER_FILE, SPEECH_TOKENIZER_FILE, VOICES

SHARDS = 4
INDEX = "model.safetensors.index.json"
GENERATION: dict[str, Any] = {
    "bos_token_id": 151_643,
    "do_sample": True,
    "eos_token_id": [151_645, 151_643],
    "pad_token_id": 151_643,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}


def write(path: Path, config: Config, seed: int = 0, made: Callable[[int], None] | None = None) -> None:
    """Writes every file of a checkpoint into the new folder `path`. The same seed and sizes give the same bytes.

    Tensors are made in blocks straight into their shards, so a full-size one (18.7 GB) needs a few hundred MB of memory.
    `made` is told the bytes of each block of the shards as it is written, from several threads. A folder with content is a FileExistsError.
    """
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"{path} is not empty")
    path.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        making.chmod(0o755)
        _dump(making / "config.json", to_json(config))
        _dump(making / "generation_config.json", GENERATION)
        _dump(making / "preprocessor_config.json", _preprocessor(config))
        write_tokenizer(making, seed)
        _write_shards(making, safetensors_layout(config), seed, made)
        _write_assets(making, config, seed)
        if path.exists():
            path.rmdir()
        making.rename(path)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _write_shards(folder: Path, layout: Layout, seed: int, made: Callable[[int], None] | None) -> None:
    """Shards of about equal size, cut between tensors in the order of the layout, and their index."""
    total = sum(spec.nbytes for spec in layout.values())
    weight_map: dict[str, str] = {}
    before = 0
    shards: list[Layout] = [{} for _ in range(SHARDS)]
    for name, spec in layout.items():
        place = min(SHARDS - 1, before * SHARDS // total)
        shards[place][name] = spec
        weight_map[name] = f"model-{place + 1:05d}-of-{SHARDS:05d}.safetensors"
        before += spec.nbytes
    for part in filter(None, shards):
        write_shard(folder / weight_map[next(iter(part))], part, seed, made=made)
    _dump(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def _write_assets(folder: Path, config: Config, seed: int) -> None:
    assets = folder / ASSETS
    assets.mkdir(parents=True)
    write_flow_config(assets / "flow.yaml", config.flow)
    torch.save({name: tensor(name, spec, seed) for name, spec in flow_layout(config.flow).items()}, assets / FLOW_FILE)
    write_hift(assets / HIFT_FILES[0], config.hift, seed)
    write_speaker_model(assets / SPEAKER_FILE, seed, config.flow.speaker_dim)
    write_speech_tokenizer(assets / SPEECH_TOKENIZER_FILE, seed)
    write_voice(folder / VOICES[0], seed)


def write_hift(file: Path, config: HiftConfig, seed: int) -> None:
    """A `hift.pt` of the generation that `config.causal` names; the first generation prefixes its names with `generator.`."""
    prefix = "" if config.causal else "generator."
    torch.save({prefix + name: tensor(name, spec, seed) for name, spec in hift_layout(config).items()}, file)


def _preprocessor(config: Config) -> dict[str, Any]:
    return {
        "image_processor_type": "MiniCPMVImageProcessor",
        "feature_extractor_type": "MiniCPMAAudioProcessor",
        "processor_class": "MiniCPMOProcessor",
        "max_slice_nums": config.vision.max_slices,
        "scale_resolution": config.vision.scale_resolution,
        "patch_size": config.vision.patch_size,
        "use_image_id": True,
        "image_feature_size": config.vision.queries,
        "slice_mode": True,
        "audio_pool_step": config.audio.pool,
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.5, 0.5, 0.5],
        "version": 4.5,
    }


def _dump(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command. Ends with 1 after one line when the folder is in the way or the disk is full."""
    parser = argparse.ArgumentParser(prog="python -m minicpmo45.random_checkpoint", description=__doc__)
    parser.add_argument("path", type=Path, help="a folder that does not exist yet, or is empty")
    parser.add_argument("--full", action="store_true", help="the released sizes (19.5 GB) instead of tiny ones (60 MB)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    config = Config() if options.full else tiny()
    total = sum(spec.nbytes for spec in safetensors_layout(config).values())
    begun = time.monotonic()
    try:
        needed = total + sum(spec.nbytes for spec in (flow_layout(config.flow) | hift_layout(config.hift)).values())
        _room(options.path, needed)
        write(options.path, config, options.seed, made=Meter(total))
    except OSError as error:
        print(f"make-random: {error.strerror or error}: {options.path}" if error.strerror else f"make-random: {error}", file=sys.stderr)
        return 1
    print(f"{options.path}: {total / 1e9:.2f} GB of random weights in {time.monotonic() - begun:.1f} s, seed {options.seed}")
    return 0


def _room(path: Path, needed: int) -> None:
    """Raises OSError when the disk cannot hold it: the shards are files with holes until they are filled."""
    folder = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{needed / 1e9:.1f} GB are needed in {folder}, {free / 1e9:.1f} GB are free")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
