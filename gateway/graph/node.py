"""One entry of a profile's `nodes`, read on its own: who it is and what it asks to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import Problem
from .formats import ALIASES, CAMERA, CLIENT, CORE, INPUT
from .kinds import KNOWN_KINDS, Options
from .ports import Ports, chained

NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
Overflow = Literal["block", "drop_oldest"]


class DataInput(BaseModel):
    """`source` or `source:format`. What bounds the edge is left out where another item of the same source says it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: str
    capacity: int | None = Field(default=None, ge=1)
    """Positions in flight."""
    overflow: Overflow | None = None
    feedback: bool = False

    @property
    def node(self) -> str:
        return self.source.partition(":")[0]

    @property
    def format(self) -> str:
        """Empty: all that the reader can take."""
        name = self.source.partition(":")[2]
        return ALIASES.get(name, name)

    @property
    def bounds(self) -> bool:
        return self.capacity is not None or self.overflow is not None


class ControlInput(BaseModel):
    """An event, or a format as an event, delivered ahead of the data."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["control"]
    source: str
    event: str
    preempt: bool = False
    """Cancels what the reader has in flight before it is delivered."""


class Node(Struct, frozen=True):
    name: str
    stages: tuple[str, ...]
    """Served by replicas, in the order of the chain; empty for the core's own dialog."""
    kind: str
    options: Options | None
    chain: tuple[Ports, ...]
    """Ports of each stage; one entry for the dialog."""
    ports: Ports
    data: tuple[DataInput, ...]
    controls: tuple[ControlInput, ...]


_NAME = TypeAdapter(Annotated[str, Field(pattern=NAME_PATTERN)])
_STAGES = TypeAdapter(Annotated[list[Annotated[str, Field(pattern=NAME_PATTERN)]], Field(min_length=1, strict=True)])


def problems_of(error: ValidationError, path: str) -> list[Problem]:
    """A pydantic refusal as problems; the values that were refused are left out."""
    found = []
    for entry in error.errors(include_url=False, include_context=False, include_input=False):
        found.append(Problem(".".join(filter(None, [path, *map(str, entry["loc"])])), entry["msg"]))
    return found


def read_node(name: str, raw: object, known: Mapping[str, Ports]) -> Node | list[Problem]:
    """The node, or everything that is wrong with it alone. `known` are the ports of every stage that is served."""
    path = f"nodes.{name}"
    problems: list[Problem] = []
    try:
        _NAME.validate_python(name, strict=True)
    except ValidationError as error:
        problems += problems_of(error, path)
    if name == INPUT:
        problems.append(Problem(path, "'input' names the session input, not a node"))
    if not isinstance(raw, dict):
        return [*problems, Problem(path, "a session node names either stages or a kind")]
    fields = {str(key): value for key, value in raw.items()}
    data, controls = _read_inputs(fields.pop("inputs", []), f"{path}.inputs", problems)
    kind, stages = fields.pop("kind", None), fields.pop("stages", None)
    if (kind is None) == (stages is None):
        return [*problems, Problem(path, "a session node names either stages or a kind")]
    if stages is not None:
        chain = _read_chain(stages, fields, known, path, problems)
        names, options = tuple(chain), None
        ports = chained(tuple(chain.values())) if chain else None
        if chain and ports is None:
            problems.append(Problem(f"{path}.stages", f"no stage group serves the stages {list(chain)}"))
    else:
        options = _read_options(kind, fields, path, problems)
        spec = KNOWN_KINDS.get(kind) if isinstance(kind, str) else None
        names = (spec.stage,) if spec and spec.stage else ()
        ports = spec.ports if spec else None
        chain = {name: ports} if ports else {}
    if problems or ports is None:
        return problems
    return Node(name, names, kind or "", options, tuple(chain.values()), ports, data, controls)


def _read_inputs(raw: object, path: str, problems: list[Problem]) -> tuple[tuple[DataInput, ...], tuple[ControlInput, ...]]:
    if not isinstance(raw, list):
        problems.append(Problem(path, "Input should be a valid list"))
        return (), ()
    data: list[DataInput] = []
    controls: list[ControlInput] = []
    for index, item in enumerate(raw):
        try:
            if isinstance(item, dict) and "kind" in item:
                controls.append(ControlInput.model_validate(item))
            else:
                data.append(DataInput.model_validate({"source": item} if isinstance(item, str) else item))
        except ValidationError as error:
            problems += problems_of(error, f"{path}.{index}")
    return tuple(data), tuple(controls)


def _read_chain(stages: object, others: dict[str, Any], known: Mapping[str, Ports], path: str, problems: list[Problem]) -> dict[str, Ports]:
    if others:
        problems.append(Problem(path, f"options {list(others)} belong to a node of a kind"))
    try:
        names = _STAGES.validate_python(stages)
    except ValidationError as error:
        problems += problems_of(error, f"{path}.stages")
        return {}
    for name in names:
        if name in (CLIENT, CAMERA, CORE):
            problems.append(Problem(f"{path}.stages", f"'{name}' names a source of edges, not a stage"))
    if any(name not in known for name in names) or len(set(names)) < len(names):
        problems.append(Problem(f"{path}.stages", f"no stage group serves the stages {names}"))
        return {}
    return {name: known[name] for name in names}


def _read_options(kind: object, fields: dict[str, Any], path: str, problems: list[Problem]) -> Options | None:
    spec = KNOWN_KINDS.get(kind) if isinstance(kind, str) else None
    if spec is None:
        problems.append(Problem(f"{path}.kind", f"unknown component kind '{kind}'"))
        return None
    try:
        return spec.options.model_validate(fields)
    except ValidationError as error:
        problems += problems_of(error, path)
        return None
