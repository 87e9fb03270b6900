"""The session graph: profiles, routing, and the ledger of edges. Pure: no I/O, no clock."""

from __future__ import annotations

from .edges import Edges, EdgesState
from .errors import Problem, ProfileError
from .graph import Control, Edge, Graph, Lane
from .kinds import AlignmentOptions, ChatOptions, DialogOptions
from .native import POLICIES, NativeSettings, OverlapDefaults, SessionField, StageMapping
from .profile import Limits, Pacing, Profile, SemanticVadDefaults, ServerVadDefaults, SessionDefaults, load_profile

__all__ = [
    "POLICIES",
    "AlignmentOptions",
    "ChatOptions",
    "Control",
    "DialogOptions",
    "Edge",
    "Edges",
    "EdgesState",
    "Graph",
    "Lane",
    "Limits",
    "NativeSettings",
    "OverlapDefaults",
    "Pacing",
    "Problem",
    "Profile",
    "ProfileError",
    "SemanticVadDefaults",
    "ServerVadDefaults",
    "SessionDefaults",
    "SessionField",
    "StageMapping",
    "load_profile",
]
