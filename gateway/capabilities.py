"""What this gateway offers, for `/v1/realtime/capabilities`: every limit with its value, so that no client has to find it by failing."""

from __future__ import annotations

from typing import Any

import msgspec

from .graph import Graph, Profile
from .settings import Settings
from .wire import WireLimits

_LIMITS = tuple(name for name, field in Settings.model_fields.items() if field.annotation in (int, float))


def capabilities(settings: Settings, profile: Profile, graph: Graph, wire: WireLimits) -> dict[str, Any]:
    formats = [{"type": "audio/pcm", "rate": 24000}, {"type": "audio/pcm", "rate": 16000}, {"type": "audio/pcmu"}, {"type": "audio/pcma"}]
    return {
        "object": "realtime.capabilities",
        "model": profile.model,
        "description": profile.description,
        "interaction": "turn_based" if graph.dialog is not None else "native",
        "stages": list(graph.stages),
        "languages": list(profile.languages),
        "turn_detection": [None, "server_vad", "semantic_vad"] if graph.decision_stage else [None],
        "input_audio_formats": formats,
        "output_audio_formats": formats if graph.audio_stage else [],
        "output_modalities": ["audio", "text"] if graph.audio_stage else ["text"],
        "supports_truncate": True,
        "supports_cancel": True,
        "supports_resume": False,
        "limits": {name: getattr(settings, name) for name in _LIMITS}
        | msgspec.structs.asdict(settings.core_limits(profile))
        | msgspec.structs.asdict(wire),
    }
