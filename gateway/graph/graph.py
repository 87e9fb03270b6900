"""The session graph as the core walks it: stages and what flows between them, the client and the core."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Literal

from msgspec import Struct

from .formats import CAMERA, CLIENT, CORE, INPUT, MEDIA_SOURCES, PROGRESS
from .kinds import DialogOptions, Options
from .native import NativeSettings, StageMapping
from .node import Node, Overflow
from .profile import Profile
from .topology import ControlEdge, DataEdge

Lane = Literal["input", "response"]
_MODEL_MAKES = frozenset({"decision", "text"})
_MADE_FOR_A_RESPONSE = frozenset({"text", "thought", "codes", "latents", "tool", "audio"})


class Edge(Struct, frozen=True):
    """All that one reader gets from one source. Sources are stages, "client", "camera" and "core"."""

    source: str
    reader: str
    kinds: tuple[str, ...]
    capacity: int
    """Positions in flight."""
    overflow: Overflow = "block"


class Control(Struct, frozen=True):
    """Who is told of an event, in the order of opening. The reader is a stage or "core"."""

    reader: str
    preempt: bool


class Graph:
    """Immutable; made from an accepted profile. Names that do not exist answer with what is empty, never an error."""

    def __init__(self, profile: Profile) -> None:
        by_name = {node.name: node for node in profile.nodes}
        nodes = [by_name[name] for name in profile.topology.order]
        self.stages: Final[tuple[str, ...]] = tuple(stage for node in nodes for stage in node.stages)
        """In the order of opening, upstream first; closed in reverse."""
        self._nodes = by_name
        self._options = {node.stages[0]: node.options for node in nodes if node.stages and node.options is not None}
        self._makes = {stage: ports.makes for node in nodes for stage, ports in zip(node.stages, node.chain, strict=False)}
        joined = [part for edge in profile.topology.data for part in self._flatten(edge)]
        joined += [part for node in nodes for part in self._links(node, profile.limits.edge_capacity_positions)]
        self._core_reads = frozenset((edge.source, kind) for edge in joined if edge.reader == CORE for kind in edge.kinds)
        self.all_edges: Final[tuple[Edge, ...]] = self._merge(joined)
        self._readers: dict[tuple[str, str], tuple[str, ...]] = {}
        for edge in self.all_edges:
            for kind in edge.kinds:
                self._readers[edge.source, kind] = (*self.readers(edge.source, kind), edge.reader)
        self._all_readers = {edge.source: self._reading(edge.source) for edge in self.all_edges}
        self._controls = tuple(profile.topology.controls)
        self._publish = frozenset(self._maker(by_name[name], kind) for name, kinds in profile.publish.items() for kind in kinds)
        self._edges = {stage: tuple(edge.source for edge in self.all_edges if edge.reader == stage) for stage in self.stages}
        self.response_stages: Final[tuple[str, ...]] = self._responding()
        """Told to cancel, upstream first."""
        self.dialog: Final[DialogOptions | None] = next((node.options for node in nodes if isinstance(node.options, DialogOptions)), None)
        """None in a native graph: the model itself holds the dialog."""
        self.model_stage: Final[str] = "" if self.dialog is not None else self._model()
        """Of a native graph: hears the client, decides when it speaks, and writes what it says. Empty where a dialog does."""
        self.native: Final[NativeSettings] = profile.native or NativeSettings()
        self.mappings: Final[dict[str, StageMapping]] = profile.configure
        """What stages are told of a session, as far as the profile says it."""
        self.audio_stage: Final[str] = self._publisher("audio")
        """Makes the reply's audio; this and the next four are empty when there is none."""
        self.text_stage: Final[str] = self._core_source("text") or self._publisher("text")
        self.transcript_stage: Final[str] = self._core_source("transcript") or self._publisher("transcript")
        self.decision_stage: Final[str] = self._core_source("decision") or self._bounds_turns()
        self.progress_stage: Final[str] = self._progress_source()
        """Reports which text a reply's audio holds."""
        ender = by_name[profile.topology.ends_turns]
        self.last_stage: Final[str] = ender.stages[-1]
        """Its `last` ends a response."""

    def readers(self, source: str, kind: str) -> tuple[str, ...]:
        """Stages that read this kind of payload from a stage, "client", "camera" or "core", in the order of opening."""
        return self._readers.get((source, kind), ())

    def all_readers(self, source: str) -> tuple[str, ...]:
        """Every stage that reads anything from the source, in the order of opening."""
        return self._all_readers.get(source, ())

    def edges(self, stage: str) -> tuple[str, ...]:
        """Sources that feed the stage."""
        return self._edges.get(stage, ())

    def lane(self, source: str, kind: str, reader: str) -> Lane:
        """Which rule fences an append: client media and what bounds it are input, all that is made for a response is response."""
        if source in (CLIENT, CAMERA):
            return "input"
        if source in self.response_stages or (source == CORE and kind != "control"):
            return "response"
        return "input" if CLIENT in self.edges(reader) or reader not in self.response_stages else "response"

    def publishes(self, stage: str, kind: str) -> bool:
        """True when the client is to get what the stage ("core" for the dialog) makes of this kind."""
        return (stage, kind) in self._publish

    def reads_core(self, stage: str) -> bool:
        """True when an edge from the core feeds the stage."""
        return CORE in self.edges(stage)

    def core_reads(self, stage: str, kind: str) -> bool:
        """True when the dialog reads this kind from the stage."""
        return (stage, kind) in self._core_reads

    def controls(self, source: str, event: str) -> tuple[Control, ...]:
        """Who takes an event of a stage, of "client" or of "core" (the dialog). A chain is told at each of its stages."""
        taken = [edge for edge in self._controls if edge.event == event and self._event_source(edge) == source]
        named = {stage: edge.preempt for edge in taken for stage in self._nodes[edge.reader].stages or (CORE,)}
        return tuple(Control(reader, named[reader]) for reader in (*self.stages, CORE) if reader in named)

    def options(self, stage: str) -> Options | None:
        """Options that the profile gives to a stage of a kind; part of its configuration."""
        return self._options.get(stage)

    def _flatten(self, edge: DataEdge) -> list[Edge]:
        readers = self._nodes[edge.reader].stages
        reader = readers[0] if readers else CORE
        if edge.source == INPUT:
            pairs = [(MEDIA_SOURCES.get(kind, CORE), kind) for kind in edge.formats]
        else:
            pairs = [self._maker(self._nodes[edge.source], kind) for kind in edge.formats]
        return [Edge(source, reader, (kind,), edge.capacity, edge.overflow) for source, kind in pairs]

    def _links(self, node: Node, capacity: int) -> list[Edge]:
        chain = pairwise(zip(node.stages, node.chain, strict=False))
        return [
            Edge(source, reader, tuple(kind for kind in makes.makes if kind in reads.reads), capacity)
            for (source, makes), (reader, reads) in chain
        ]

    def _maker(self, node: Node, kind: str) -> tuple[str, str]:
        """The last stage of a chain that makes the kind speaks for the node."""
        made = [stage for stage, ports in zip(node.stages, node.chain, strict=False) if kind in (*ports.makes, *ports.reports)]
        return (made[-1] if made else CORE, kind)

    def _merge(self, parts: list[Edge]) -> tuple[Edge, ...]:
        merged: dict[tuple[str, str], Edge] = {}
        for part in sorted((part for part in parts if part.reader != CORE), key=lambda part: self.stages.index(part.reader)):
            key = (part.source, part.reader)
            kinds = (*merged[key].kinds, *part.kinds) if key in merged else part.kinds
            merged[key] = Edge(part.source, part.reader, tuple(dict.fromkeys(kinds)), part.capacity, part.overflow)
        return tuple(merged.values())

    def _reading(self, source: str) -> tuple[str, ...]:
        return tuple(edge.reader for edge in self.all_edges if edge.source == source)

    def _responding(self) -> tuple[str, ...]:
        """Stages that make a reply, and stages that hear nothing but what was made for one."""
        found = {stage for stage in self.stages if _MADE_FOR_A_RESPONSE & set(self._makes[stage])}
        for stage in self.stages:
            feeds = self.edges(stage)
            if CLIENT not in feeds and any(source in found or "messages" in self._kinds(source, stage) for source in feeds):
                found.add(stage)
        return tuple(stage for stage in self.stages if stage in found)

    def _kinds(self, source: str, reader: str) -> tuple[str, ...]:
        return next((edge.kinds for edge in self.all_edges if (edge.source, edge.reader) == (source, reader)), ())

    def _event_source(self, edge: ControlEdge) -> str:
        return CLIENT if edge.source == INPUT else self._maker(self._nodes[edge.source], edge.event)[0]

    def _publisher(self, kind: str) -> str:
        return next((stage for stage in self.stages if (stage, kind) in self._publish), "")

    def _model(self) -> str:
        hears = (stage for stage in self.stages if CLIENT in self.edges(stage))
        return next((stage for stage in hears if set(self._makes[stage]) >= _MODEL_MAKES), "")

    def _bounds_turns(self) -> str:
        """The detector: a model's own decisions bound no turn of the user's."""
        return next((stage for stage in self.stages if stage != self.model_stage and (stage, "decision") in self._publish), "")

    def _core_source(self, kind: str) -> str:
        return next((stage for stage in self.stages if (stage, kind) in self._core_reads), "")

    def _progress_source(self) -> str:
        told = [self._event_source(edge) for edge in self._controls if edge.event == PROGRESS]
        return told[0] if told else self._core_source(PROGRESS) or self._publisher(PROGRESS) or self.audio_stage
