"""A profile: which conversation a deployment offers, and the graph of stages that holds it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import yaml
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import Problem, ProfileError
from .kinds import DialogOptions
from .native import NativeSettings, StageMapping
from .node import Node, problems_of, read_node
from .ports import STAGES, DeclaredPorts, Ports
from .topology import Joiner, Topology


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ServerVadDefaults(_Settings):
    """Turn detection by silence; times in milliseconds, threshold a probability."""

    type: Literal["server_vad"]
    threshold: float = Field(default=0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=5000)
    silence_duration_ms: int = Field(default=500, ge=0, le=10_000)
    idle_timeout_ms: int | None = Field(default=None, ge=5000, le=30_000)
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVadDefaults(_Settings):
    """Turn detection by a model that scores each pause."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetectionDefaults = Annotated[ServerVadDefaults | SemanticVadDefaults, Field(discriminator="type")]


class SessionDefaults(_Settings):
    """What a session is until its client says otherwise, and how long it may last."""

    turn_detection: TurnDetectionDefaults | None = ServerVadDefaults(type="server_vad")
    instructions: str = ""
    """Of a session whose client gives none, where no dialog has a system_prompt."""
    voice: str = Field(default="default", min_length=1)
    output_modality: Literal["audio", "text"] = "audio"
    max_session_ms: int = Field(default=3_600_000, ge=1000)
    """Longest life of a session, connected or not."""


class Pacing(_Settings):
    """How reply audio leaves. Times in milliseconds of that audio."""

    max_output_lead_ms: int = Field(default=1000, ge=100, le=60_000)
    """Most audio at the client ahead of real time."""
    credit_extra_ms: int = Field(default=500, ge=0, le=60_000)
    """Credit granted to the audio stage beyond the lead."""


class Limits(_Settings):
    edge_capacity_positions: int = Field(default=64, ge=1, le=65_536)
    """Positions in flight on an edge that names no capacity of its own."""
    max_nodes: int = Field(default=16, ge=1, le=64)


class _Document(_Settings):
    model: str = Field(min_length=1, max_length=256)
    description: str = ""
    languages: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")], ...], Field(strict=False)] = ()
    session: SessionDefaults = SessionDefaults()
    pacing: Pacing = Pacing()
    limits: Limits = Limits()
    stages: dict[str, DeclaredPorts] = {}
    native: NativeSettings | None = None
    configure: dict[str, StageMapping] = {}
    services: dict[str, dict[Annotated[str, Field(pattern=r"^PARLEY_[A-Z0-9_]+$")], str]] = {}
    """By service: settings that `parley up` gives it. The gateway has no use for them."""
    nodes: dict[str, Any] = Field(min_length=1)
    publish: dict[str, Annotated[tuple[str, ...], Field(strict=False)]]


class Profile(Struct, frozen=True):
    """A profile that was accepted."""

    name: str
    model: str
    """What clients ask for."""
    description: str
    languages: tuple[str, ...]
    """BCP 47 tags; empty when the models decide."""
    session: SessionDefaults
    pacing: Pacing
    limits: Limits
    nodes: tuple[Node, ...]
    publish: dict[str, tuple[str, ...]]
    topology: Topology
    native: NativeSettings | None = None
    configure: dict[str, StageMapping] = {}

    @property
    def instructions(self) -> str:
        """What a session's instructions are until its client says otherwise."""
        dialog = next((node.options for node in self.nodes if isinstance(node.options, DialogOptions)), None)
        return (dialog.system_prompt if dialog is not None else "") or self.session.instructions


def load_profile(text: str, name: str) -> Profile:
    """Read a profile from YAML text; `name` is what it is called. Raises ProfileError with all that could be found wrong."""
    raw = _parse(text, name)
    problems: list[Problem] = []
    try:
        document = _Document.model_validate(raw)
    except ValidationError as error:
        problems += problems_of(error, "")
        document = None
    nodes = _read_nodes(raw, document, problems)
    if document is None or problems:
        raise ProfileError(name, tuple(problems))
    joiner = Joiner(nodes, document.publish, document.limits.edge_capacity_positions)
    topology = joiner.join()
    joiner.problems += _check_stages_told(document, nodes)
    if topology is None or joiner.problems:
        raise ProfileError(name, tuple(joiner.problems))
    return Profile(
        name, document.model, document.description, document.languages, document.session, document.pacing, document.limits,
        nodes, document.publish, topology, document.native, document.configure,
    )  # fmt: skip


def _check_stages_told(document: _Document, nodes: tuple[Node, ...]) -> list[Problem]:
    """What is said of a native model and of its stages must have somebody to hear it."""
    held = {stage for node in nodes for stage in node.stages}
    problems = [Problem("configure", f"no node holds the stage '{stage}'") for stage in document.configure if stage not in held]
    if any(isinstance(node.options, DialogOptions) for node in nodes):
        if document.native is not None:
            problems.append(Problem("native", "a profile with a dialog has no native model"))
        return problems
    makes = [ports.makes for node in nodes for ports in node.chain]
    if document.native is not None and not any("decision" in made and "text" in made for made in makes):
        problems.append(Problem("native", "no stage makes both decision and text"))
    vad = document.session.turn_detection
    if vad is not None and not vad.create_response:
        problems.append(Problem("session.turn_detection.create_response", "a native model itself decides when it replies"))
    if isinstance(vad, ServerVadDefaults) and vad.idle_timeout_ms is not None:
        problems.append(Problem("session.turn_detection.idle_timeout_ms", "nobody can make a native model speak"))
    return problems


def _read_nodes(raw: dict[str, Any], document: _Document | None, problems: list[Problem]) -> tuple[Node, ...]:
    entries = raw.get("nodes")
    if not isinstance(entries, dict):
        return ()
    declared = document.stages if document else {}
    known = STAGES | {stage: ports.over(STAGES.get(stage, Ports())) for stage, ports in declared.items()}
    if document and len(entries) > document.limits.max_nodes:
        problems.append(Problem("nodes", f"{len(entries)} nodes exceed max_nodes {document.limits.max_nodes}"))
    nodes = []
    for key, entry in entries.items():
        node = read_node(str(key), entry, known)
        if isinstance(node, Node):
            nodes.append(node)
        else:
            problems += node
    return tuple(nodes)


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice: YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key.value}' is written twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ProfileError(name, (Problem(where, error.problem or "the text is not YAML"),)) from error
    except yaml.YAMLError as error:
        raise ProfileError(name, (Problem("", "the text is not YAML"),)) from error
    if not isinstance(raw, dict):
        raise ProfileError(name, (Problem("", "a profile is a mapping"),))
    return {str(key): value for key, value in raw.items()}
