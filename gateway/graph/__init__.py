"""The session graph: profiles, routing, and the ledger of edges. Pure: no I/O, no clock."""

from __future__ import annotations

from .edges import Edges, EdgesState
from .errors import Problem, ProfileError
from .graph import Control, Edge, Graph, Lane
from .kinds import AlignmentOptions, ChatOptions, DialogOptions
from .profile import Limits, Pacing, Profile, SemanticVadDefaults, ServerVadDefaults, SessionDefaults, load_profile

__all__ = [
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
    "Pacing",
    "Problem",
    "Profile",
    "ProfileError",
    "SemanticVadDefaults",
    "ServerVadDefaults",
    "SessionDefaults",
    "load_profile",
]
