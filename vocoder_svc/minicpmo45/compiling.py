"""What a start launches, compiled before anything is launched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import minicpmo45
import torch_kit
import vocoder_svc
from minicpmo45.config import Config
from stage_kit.logs import describe, logger
from torch_kit.compiling import compile_ahead
from vocoder_svc.minicpmo45.model import Vocoder
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

log = logger()


def compile_kernels(vocoder: Vocoder, settings: MiniCpmVocoderSettings, config: Config, prompts: Iterable[int]) -> None:
    """Of set-ups of voices of so many frames and of all steps that `warm_up` captures, on CUDA. What fails is logged, and compiled when it
    is launched."""
    if settings.kernels == "plain" or settings.device == "cpu":
        return
    batch, lengths = min(settings.batch, settings.slots), sorted(set(prompts))
    code = [Path(path) for package in (minicpmo45, torch_kit, vocoder_svc) for path in package.__path__]
    compiled = compile_ahead(lambda: vocoder.launch_once(batch, lengths), (settings, config, lengths), code)
    if compiled is None:
        return
    told = {"kernels": compiled.kernels, "seconds": round(compiled.seconds, 1)}
    if compiled.error is None:
        log.info("kernels compiled", **told)
    else:
        log.warning("not all kernels were compiled ahead", error=describe(compiled.error), **told)
