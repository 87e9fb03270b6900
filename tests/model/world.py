"""Everything that the model remembers: immutable, hashable, and no more than the rules need."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")
HEARING = ("turn", "asr")
"""Stages that hear the client."""
ANSWERING = ("llm", "talker")
"""Stages that work for a response; the last one present makes what the client hears."""
DONE = -1
"""The kind of a response's last output; the others are its chunks, numbered from 0."""
EMPTY = -2
"""The kind of an output that a cancel emptied."""


class Setup(NamedTuple):
    """A small world: what the client does, what there is, and how often each kind of misfortune may strike."""

    script: tuple[str, ...]
    """In order: "say" is one sample of audio, "start" and "barge" are commands, "noise" is one that the parser refuses."""
    stages: tuple[str, ...] = ("llm",)
    chunks: int = 1
    """Outputs of a response before its last."""
    stock: bool = False
    """The client numbers nothing and sends nothing again."""
    takeovers: int = 0
    deaths: int = 0
    """Of gateways."""
    losses: int = 0
    """Of stage replicas, each of another stage."""
    losable: tuple[str, ...] = ()
    forgets: int = 0
    """Times that Redis fails over to a replica that lags by one or two writes."""
    outages: int = 0
    """Times that Redis is away for a while."""


class Order(NamedTuple):
    """A command of the core to a stage. next_epoch: of a cancel; 0 for the start of a response."""

    stage: int
    number: int
    epoch: int
    response: int = 0
    next_epoch: int = 0


class Relay(NamedTuple):
    """A sample of the client on its way to a stage."""

    stage: int
    position: int
    sample: int


class Append(NamedTuple):
    """An output of llm on its way to talker. previous: the position before it on this edge."""

    stage: int
    position: int
    previous: int
    epoch: int
    response: int
    kind: int


class Ack(NamedTuple):
    stage: int
    position: int


class Place(NamedTuple):
    """Place a lost stage anew: it has all up to these positions, and its own outputs go on from base."""

    stage: int
    base: int
    mark: int


Message = Order | Relay | Append | Ack | Place


class Event(NamedTuple):
    """Told to the client: created, chunk, done, cancelled, failed, refused, nothing, skipped, resync. command: the one it answers."""

    name: str
    response: int = 0
    kind: int = 0
    """Which chunk."""
    command: int = 0


class Core(NamedTuple):
    """What the checkpoint holds. Per-stage facts are tuples in the order of Setup.stages."""

    issued: tuple[int, ...]
    """Orders numbered so far."""
    consumed: tuple[int, ...]
    """Outputs consumed."""
    acknowledged: tuple[int, ...]
    """Outputs that the stage may have forgotten."""
    seq: int = 0
    client_seq: int = 0
    epoch: int = 0
    response: int = 0
    """The open one."""
    responses: int = 0
    outbox: tuple[Order, ...] = ()
    lost: tuple[int, ...] = ()
    sent: int = 0
    """The edge llm -> talker: highest position sent."""
    watermark: int = 0
    in_flight: tuple[int, ...] = ()


class Redis(NamedTuple):
    core: Core
    attachment: int = 1
    holder: int = 0
    tokens: tuple[int, ...] = (1,)
    """A token is named by the attachment that gave it."""
    first: int = 1
    """Number of the journal's first entry; its last is core.seq."""
    journal: tuple[Event, ...] = ()
    placements: tuple[int, ...] = ()


class Output(NamedTuple):
    position: int
    epoch: int
    response: int
    kind: int
    attachment: int
    """Under which it was made: matters to nobody, by the rules."""


class Stage(NamedTuple):
    placement: int = 1
    attachment: int = 1
    holder: int = 0
    """The gateway that attached."""
    alive: bool = True
    epoch: int = 0
    command_number: int = 0
    commander: int = 1
    """Highest attachment of which something was obeyed: for the checks only."""
    mark: int = 0
    """Watermark of the edge it reads."""
    begins: int = 0
    """Position after which this placement hears the client: for the checks only."""
    heard: tuple[tuple[int, int], ...] = ()
    """(position, sample) of the client's audio."""
    work: tuple[tuple[int, int, int], ...] = ()
    """(epoch, response, kind) of what is to be made next."""
    taken: tuple[int, int, int] = (0, 0, 0)
    """Epoch and response of what the edge brought last, and the chunk that is to come next: for the checks only."""
    kept: tuple[Output, ...] = ()
    last: int = 0
    """Position of the last output made."""

    @property
    def first_kept(self) -> int:
        return self.kept[0].position if self.kept else self.last + 1


class Batch(NamedTuple):
    """What a transition owes, and performs when it is committed."""

    events: tuple[Event, ...] = ()
    messages: tuple[Message, ...] = ()
    ended: int = 0
    """The response whose sound is muted by it."""


class Gateway(NamedTuple):
    status: str = "idle"
    """idle, attaching, live, gone (lost the session), dead."""
    attachment: int = 0
    core: Core = Core((), (), ())
    journal: tuple[int, tuple[Event, ...]] = (1, ())
    """First number and entries, as read by the takeover."""
    met: int = 0
    """Stages asked by the takeover so far."""
    missed: tuple[int, ...] = ()
    """Of these, the ones that were lost."""
    placements: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    position: int = 0
    """Samples of the client so far."""
    keeps_from: int = 0
    """Position above which the client's audio is kept for a stage that is placed anew."""
    keeps: tuple[int, ...] = ()
    """Its samples."""
    wire: tuple[Message, ...] = ()
    """On its way to stages."""
    batch: Batch | None = None
    out: tuple[tuple[int, Event], ...] = ()
    """(number, event) on its way to the client; 0: without a number."""
    undurable: bool = False


class Client(NamedTuple):
    todo: tuple[int, ...]
    """Indices into the script that are to be said on this connection."""
    gateway: int = 0
    token: int = 1
    last: int = 0
    unnumbered: int = 0
    """Events without a number since the last one with it."""
    open: int = 0
    """Response that is open by what was heard; -1: not known, since a resync."""
    chunk: int = 0
    muted: bool = False
    resyncs: int = 0
    """Told so far."""
    answered: frozenset[int] = frozenset()
    announced: int = 0
    """Highest command that was obeyed, as the last resume said."""
    fresh_from: int = 0
    """What a stock client said from this index on, it said on the present connection."""


class World(NamedTuple):
    redis: Redis
    stages: tuple[Stage, ...]
    gateways: tuple[Gateway, ...]
    client: Client
    past: tuple[Redis, ...] = ()
    """Redis before its last writes, as long as it may forget them."""
    away: bool = False
    takeovers: int = 0
    deaths: int = 0
    lost: tuple[int, ...] = ()
    forgets: int = 0
    outages: int = 0


class Violation(Exception):
    """A rule that may never break is broken."""


def put(seq: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*seq[:index], value, *seq[index + 1 :])


def begin(setup: Setup) -> World:
    """The session runs on the first gateway, everything is attached, nothing was said."""
    count = len(setup.stages)
    none, ones = (0,) * count, (1,) * count
    core = Core(none, none, none)
    gateways = (Gateway("live", 1, core, placements=ones, received=none), *(Gateway() for _ in range(setup.takeovers)))
    return World(Redis(core, placements=ones), (Stage(),) * count, gateways, Client(tuple(range(len(setup.script)))))
