"""What a node reads and makes: known for the usual stages, declared by the profile for others."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from .formats import Event, Kind

Kinds = Annotated[tuple[Kind, ...], Field(strict=False)]


class Ports(Struct, frozen=True):
    """The formats at the edges of one stage, chain or kind."""

    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    requires: tuple[tuple[str, ...], ...] = ()
    """Of each group, one format at least must come in."""
    takes: tuple[str, ...] = ()
    """Events that a control edge may bring."""
    reports: tuple[str, ...] = ()
    """Events that a control edge may take away."""
    opens_turns: bool = False
    ends_turns: bool = False


STAGES: dict[str, Ports] = {
    "turn": Ports(("audio", "control"), ("decision",), (("audio",),), ("commit", "clear", "end")),
    "asr": Ports(("audio", "decision", "control"), ("transcript",), (("audio",),), ("commit", "clear", "end")),
    "llm": Ports(("messages",), ("text", "tool"), (("messages",),), ("interrupt",), ends_turns=True),
    "thinker": Ports(
        ("audio", "image", "text", "messages", "tool", "decision", "control"),
        ("text", "thought", "decision", "tool", "unit_note"),
        (("audio",),),
        ("commit", "clear", "end", "interrupt"),
        ends_turns=True,
    ),
    "talker": Ports(("text", "thought"), ("latents", "codes"), (("text", "thought"),), ("interrupt",)),
    "vocoder": Ports(("latents", "codes"), ("audio",), (("latents", "codes"),), ("interrupt",), ("reply.progress",), ends_turns=True),
    "aligner": Ports(("text", "audio"), (), (("text",), ("audio",)), ("interrupt",), ("reply.progress",)),
}


class DeclaredPorts(BaseModel):
    """The profile's own word about a stage; what is left out is as known, or empty for a stage that is not."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reads: Kinds | None = None
    makes: Kinds | None = None
    requires: Kinds | None = None
    """All of these must come in; left out for a stage with declared reads, any one of them must."""
    reports: Annotated[tuple[Event, ...], Field(strict=False)] | None = None
    ends_turns: bool | None = None

    def over(self, known: Ports) -> Ports:
        reads = known.reads if self.reads is None else self.reads
        requires = known.requires if self.reads is None else ((reads,) if reads else ())
        return Ports(
            reads=reads,
            makes=known.makes if self.makes is None else self.makes,
            requires=requires if self.requires is None else tuple((kind,) for kind in self.requires),
            takes=("interrupt", *(("commit", "clear", "end") if "control" in reads else ())),
            reports=known.reports if self.reports is None else self.reports,
            ends_turns=known.ends_turns if self.ends_turns is None else self.ends_turns,
        )


def chained(chain: tuple[Ports, ...]) -> Ports | None:
    """The ports of a chain as one node: the first stage reads, all make; None where one stage cannot feed the next."""
    for source, reader in pairwise(chain):
        if not set(source.makes) & set(reader.reads):
            return None
    return Ports(
        reads=chain[0].reads,
        makes=tuple(dict.fromkeys(kind for ports in chain for kind in ports.makes)),
        requires=chain[0].requires,
        takes=tuple(dict.fromkeys(event for ports in chain for event in ports.takes)),
        reports=tuple(dict.fromkeys(event for ports in chain for event in ports.reports)),
        ends_turns=any(ports.ends_turns for ports in chain),
    )
