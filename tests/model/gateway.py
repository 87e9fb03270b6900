"""A gateway that has the session: it commits, then acts."""

from __future__ import annotations

from . import core as rules_of_core
from . import stages
from .model import Model
from .world import Ack, Append, Batch, Core, Event, Gateway, Message, Order, Place, Redis, Relay, Stage, Violation, World, put

GONE = Gateway("gone")


def with_gateway(w: World, i: int, g: Gateway) -> World:
    return w._replace(gateways=put(w.gateways, i, g))


def with_stage(w: World, s: int, stage: Stage) -> World:
    return w._replace(stages=put(w.stages, s, stage))


def numbered(core: Core, events: tuple[Event, ...]) -> tuple[tuple[int, Event], ...]:
    """The events with their numbers; the last has the core's."""
    return tuple(enumerate(events, core.seq - len(events) + 1))


def turn(m: Model, w: World, i: int, g: Gateway, core: Core, batch: Batch, passed: tuple[Append, ...] = ()) -> World:
    """A transition: what it relays leaves at once, what it owes waits for the commit."""
    is_changed = core != g.core or batch != Batch()
    g = g._replace(core=core, wire=g.wire + passed)
    if not m.rules.late_skip:
        g = g._replace(out=mute(m, g.out, batch.ended))
    if not m.rules.commit_first:
        g = _act(m, w, i, g, numbered(core, batch.events), batch.messages)
        batch = batch._replace(messages=())
    return with_gateway(w, i, g._replace(batch=batch if is_changed else None))


def _act(m: Model, w: World, i: int, g: Gateway, events: tuple[tuple[int, Event], ...], messages: tuple[Message, ...]) -> Gateway:
    out = g.out + events if w.client.gateway == i else ()
    return g._replace(out=out, wire=g.wire + messages)


def mute(m: Model, out: tuple[tuple[int, Event], ...], response: int) -> tuple[tuple[int, Event], ...]:
    """Sound of the response that did not leave is replaced by its number."""
    if not response:
        return out
    muted = ((n, Event("skipped") if e.name == "chunk" and e.response == response else e) for n, e in out)
    return tuple((n, e) for n, e in muted if e.name != "skipped" or m.rules.skip_numbered)


def settled(m: Model, w: World) -> World:
    """A gateway that can only find out that it lost the session has lost it."""
    rules = m.rules
    may_regain = w.forgets < m.setup.forgets or w.outages < m.setup.outages or w.away
    if may_regain or not (rules.attach and rules.commit_first and rules.ack_committed):
        return w
    for i, g in enumerate(w.gateways):
        if g.status in ("live", "attaching") and w.redis.attachment > g.attachment and _is_powerless(m, w, i, g):
            w = with_gateway(w, i, GONE)
    return w


def _is_powerless(m: Model, w: World, i: int, g: Gateway) -> bool:
    if g.status == "attaching":
        return g.met == len(w.stages)
    if not g.wire and not m.reader:
        return True
    return all(stage.holder != i for stage in w.stages) and not any(isinstance(each, Place) for each in g.wire)


def has_lease(redis: Redis, i: int, g: Gateway, restore: bool) -> bool:
    """Nobody younger has the session, and what Redis forgot may be put back."""
    if redis.attachment == g.attachment:
        return redis.holder == i
    return redis.attachment < g.attachment and restore


def commit(m: Model, w: World, i: int, g: Gateway) -> World:
    """What was decided becomes durable, then it is done. Away: it is done all the same, without numbers."""
    batch, core = g.batch or Batch(), g.core
    before = core.acknowledged
    core = rules_of_core.acknowledgeable(m, core)
    acks = tuple(Ack(s, p) for s, p in enumerate(core.acknowledged) if p > before[s])
    g = g._replace(core=core, batch=None, undurable=w.away, out=mute(m, g.out, batch.ended))
    if not w.away:
        if not has_lease(w.redis, i, g, m.rules.restore):
            return with_gateway(w, i, GONE)
        w = write(m, w, i, w.gateways[i].undurable, g, batch.events)
    if m.rules.commit_first:
        events = tuple((0, e) for e in batch.events) if w.away else numbered(core, batch.events)
        g = _act(m, w, i, g, events, batch.messages)
    return with_gateway(w, i, g._replace(wire=g.wire + acks))


def write(m: Model, w: World, i: int, undurable: bool, g: Gateway, events: tuple[Event, ...]) -> World:
    """One commit: a full checkpoint and a new journal where Redis does not continue what was written last."""
    redis, core = w.redis, g.core
    is_checked = bool(events) or m.rules.entryless_in_sequence
    is_full = undurable or redis.attachment < g.attachment or (is_checked and redis.core.seq != core.seq - len(events))
    first, journal = (core.seq - len(events) + 1, events) if is_full else (redis.first, redis.journal + events)
    tokens = redis.tokens
    if redis.attachment < g.attachment or any(e.command for e in events):
        tokens = (g.attachment,)
    return remember(m, w)._replace(redis=Redis(core, g.attachment, i, tokens, first, journal, g.placements))


def remember(m: Model, w: World) -> World:
    """Redis is about to be written: what it holds now may yet be what its replica has."""
    return w._replace(past=(*w.past, w.redis)[-2:]) if w.forgets < m.setup.forgets else w


def deliver(m: Model, w: World, i: int, g: Gateway) -> World | None:
    """The next message reaches its stage. None: it does not get there now."""
    message, g = g.wire[0], g._replace(wire=g.wire[1:])
    s = message.stage
    stage = w.stages[s]
    if isinstance(message, Place):
        return _place(m, w, i, g, message)
    if not stage.alive:
        return with_gateway(w, i, g)
    is_stale = stage.placement != g.placements[s] or (stage.attachment, stage.holder) != (g.attachment, i)
    if is_stale and (m.rules.attach or stage.placement != g.placements[s]):
        return with_gateway(w, i, GONE)
    after = _obeyed(m, s, stage, message)
    if after is None:
        return None
    if not isinstance(message, Ack) and after != stage:
        if g.attachment < stage.commander:
            raise Violation(f"{m.setup.stages[s]} obeys G{i}, which lost the session, after it obeyed the holder")
        after = after._replace(commander=g.attachment)
    w = with_stage(w, s, after)
    if s == m.reader and isinstance(message, Append):
        core = rules_of_core.accepted(g.core, after.mark)
        owes = core.in_flight != g.core.in_flight and g.batch is None
        g = g._replace(core=core, batch=Batch() if owes else g.batch)
    return with_gateway(w, i, g)


def _obeyed(m: Model, s: int, stage: Stage, message: Message) -> Stage | None:
    match message:
        case Order():
            return stages.obey(stage, message)
        case Append():
            return stages.append(m, stage, message)
        case Relay():
            return stages.relay(m, m.setup.stages[s], stage, message)
        case Ack():
            return stages.forget(stage, message.position)
    raise AssertionError(message)


def _place(m: Model, w: World, i: int, g: Gateway, place: Place) -> World | None:
    """Another replica for a lost stage. It waits for Redis, which says where; and a stage that a younger holder placed is its own."""
    s = place.stage
    stage = w.stages[s]
    if w.away or g.batch is not None:
        return None
    if stage.alive and stage.attachment > g.attachment:
        return with_gateway(w, i, GONE)
    hears = s in m.hearing
    begins = (g.keeps_from if m.rules.rehear else g.position) if hears else 0
    fresh = Stage(
        stage.placement + 1, g.attachment, i, commander=g.attachment, mark=begins if hears else place.mark, begins=begins, last=place.base
    )
    again = tuple(Relay(s, p, sample) for p, sample in enumerate(g.keeps, g.keeps_from + 1) if p > begins) if hears else ()
    g = g._replace(placements=put(g.placements, s, fresh.placement), wire=g.wire + again)
    core = g.core._replace(lost=tuple(each for each in g.core.lost if each != s))
    return turn(m, with_stage(w, s, fresh), i, g, core, Batch())
