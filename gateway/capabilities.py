"""What this gateway offers, for `/v1/realtime/capabilities`: every limit with its value, so that no client has to find it by failing."""

from __future__ import annotations

from typing import Any

import msgspec

from .graph import POLICIES, Graph, Profile
from .settings import Settings
from .wire import WireLimits

_LIMITS = tuple(name for name, field in Settings.model_fields.items() if field.annotation in (int, float))


def capabilities(settings: Settings, profile: Profile, graph: Graph, wire: WireLimits) -> dict[str, Any]:
    formats = [{"type": "audio/pcm", "rate": 24000}, {"type": "audio/pcm", "rate": 16000}, {"type": "audio/pcmu"}, {"type": "audio/pcma"}]
    offered = {
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
        "supports_resume": True,
        "limits": {name: getattr(settings, name) for name in _LIMITS}
        | msgspec.structs.asdict(settings.core_limits(profile))
        | msgspec.structs.asdict(wire),
    }
    return offered | _native(graph) if graph.model_stage else offered


def _native(graph: Graph) -> dict[str, Any]:
    """What a client may ask of a model that decides by itself, and what it may not."""
    options = {name for mapping in graph.mappings.values() for name in mapping.options.values()}
    sources = {source for mapping in graph.mappings.values() for source in mapping.session.values()}
    policies = POLICIES if graph.decision_stage else tuple(policy for policy in POLICIES if policy != "interrupt")
    return {
        "native_full_duplex": True,
        "unit_ms": graph.native.unit_ms,
        "first_unit_ms": graph.native.first_ms,
        "input_modalities": ["audio", "image"] if graph.readers("camera", "image") else ["audio"],
        "image_types": ["image/jpeg", "image/png"] if graph.readers("camera", "image") else [],
        "overlap_policies": list(policies),
        "default_overlap": graph.native.overlap.model_dump(mode="json"),
        "continues_in_silence": graph.native.continue_silence,
        "model_options": sorted(options),
        "frozen_after_first_unit": list(graph.native.frozen),
        "supports_reference_voice": "reference_voice" in sources,
        "supports_response_create": False,
        "supports_text_input": False,
        "supports_tools": False,
        "supports_transcription": bool(graph.transcript_stage),
    }
