"""Dialects: each turns client frames into commands and events into JSON."""

from __future__ import annotations

from . import openai_ga
from .limits import WireLimits
from .problems import WireRefusal

__all__ = ["WireLimits", "WireRefusal", "openai_ga"]
