"""What a session is set to when it begins: the profile's defaults, and over them what a client secret carries."""

from __future__ import annotations

from .conversation.config import Overlap, SemanticVad, ServerVad, SessionConfig, SessionPatch, TurnDetection
from .conversation.limits import Limits
from .conversation.policy import apply
from .conversation.session import Conversation
from .conversation.terms import agreed
from .graph import Graph, Profile


def session_config(profile: Profile, graph: Graph) -> SessionConfig:
    """What a session is until its client says otherwise."""
    session, native, overlap = profile.session, bool(graph.model_stage), graph.native.overlap
    return SessionConfig(
        model=profile.model,
        instructions=profile.instructions,
        output_modalities=(session.output_modality,),
        turn_detection=_turn_detection(profile) if graph.decision_stage or not native else None,
        voice=session.voice,
        overlap=Overlap(overlap.policy, overlap.acknowledgements, overlap.short_ack_ms) if native else None,
    )


def configured(config: SessionConfig, patch: SessionPatch, graph: Graph, limits: Limits) -> SessionConfig:
    """The configuration after the patch. Raises Refusal, as a session.update with it would be refused at once."""
    asked = apply(config, patch, voice_used=False, speaking=False)
    return agreed(Conversation("sess_none", config, graph, limits), patch, asked)


def _turn_detection(profile: Profile) -> TurnDetection | None:
    defaults = profile.session.turn_detection
    if defaults is None:
        return None
    values = defaults.model_dump(exclude={"type"})
    return ServerVad(**values) if defaults.type == "server_vad" else SemanticVad(**values)
