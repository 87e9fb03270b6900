"""Everything that may happen next in a world."""

from __future__ import annotations

from collections.abc import Iterator

from . import client, stages, takeover
from . import core as rules_of_core
from .gateway import commit, deliver, turn, with_gateway, with_stage
from .model import Model
from .world import EMPTY, Gateway, Order, World, put

Step = tuple[str, World]


def steps(m: Model, w: World) -> Iterator[Step]:
    """(what happens, the world after it)."""
    yield from _stages(m, w)
    yield from _redis(m, w)
    for i, g in enumerate(w.gateways):
        if g.status == "live":
            yield from _live(m, w, i, g)
        elif g.status == "attaching":
            yield from _attaching(m, w, i, g)
    yield from _misfortunes(m, w)


def alone(m: Model, w: World) -> Step | None:
    """A step that commutes with every other from here on, if there is one: that only it is taken hides nothing."""
    if m.is_calm or _is_calm(m, w):
        made = next(_stages(m, w), None)
        if made is not None:
            return made
    if w.takeovers < m.setup.takeovers or w.client.gateway < 0:
        return None
    i = w.client.gateway
    g = w.gateways[i]
    if g.status != "live" or not g.out:
        return None
    may_be_lost = len(w.lost) < m.setup.losses or not all(stage.alive for stage in w.stages)
    may_be_muted = g.batch is not None or may_be_lost or any(m.setup.script[k] == "barge" for k in w.client.todo)
    if g.out[0][1].name == "chunk" and may_be_muted:
        return None
    after = client.receive(m, w, i, g)
    return None if after is None else (f"client receives {g.out[0][1].name}", after)


def _is_calm(m: Model, w: World) -> bool:
    """No stage will be cancelled or lost any more."""
    setup = m.setup
    if (w.takeovers, w.forgets, w.outages, len(w.lost)) != (setup.takeovers, setup.forgets, setup.outages, setup.losses):
        return False
    if w.away or not m.rules.commit_first or any(setup.script[k] == "barge" for k in w.client.todo) or not all(s.alive for s in w.stages):
        return False
    busy = [g for g in w.gateways if g.status in ("live", "attaching")]
    if any(g.status == "attaching" for g in busy):
        return False
    owed = (each for g in busy for each in (*g.wire, *(g.batch.messages if g.batch else ())))
    return not any(isinstance(each, Order) and each.next_epoch for each in owed)


def _stages(m: Model, w: World) -> Iterator[Step]:
    for s, stage in enumerate(w.stages):
        if stage.alive and stage.work:
            yield f"{m.setup.stages[s]} makes", with_stage(w, s, stages.make(m, s, stage))


def _redis(m: Model, w: World) -> Iterator[Step]:
    if w.away:
        yield "Redis is back", w._replace(away=False)
    elif w.outages < m.setup.outages:
        yield "Redis is away", w._replace(away=True, outages=w.outages + 1)
    if w.forgets < m.setup.forgets and not w.away:
        for count in range(1, len(w.past) + 1):
            yield f"Redis forgets {count}", w._replace(redis=w.past[-count], past=(), forgets=w.forgets + 1)


def _live(m: Model, w: World, i: int, g: Gateway) -> Iterator[Step]:
    if g.wire and (after := deliver(m, w, i, g)) is not None:
        yield f"G{i} reaches {m.setup.stages[g.wire[0].stage]} ({type(g.wire[0]).__name__})", after
    if w.client.gateway == i:
        if g.out and (after := client.receive(m, w, i, g)) is not None:
            yield f"client receives {g.out[0][1].name}", after
        if w.client.todo and g.batch is None and (after := client.say(m, w, i, g)) is not None:
            yield f"client says {m.setup.script[w.client.todo[0]]}", after
    if g.batch is not None:
        yield f"G{i} commits", commit(m, w, i, g)
        return
    if not w.away and (g.undurable or (w.redis.attachment < g.attachment and m.rules.restore)):
        yield f"G{i} beats", commit(m, w, i, g)
    for s in range(len(w.stages)):
        yield from _hears(m, w, i, g, s)


def _hears(m: Model, w: World, i: int, g: Gateway, s: int) -> Iterator[Step]:
    """The stage's next output, or that the stage is lost."""
    stage, name = w.stages[s], m.setup.stages[s]
    if s in g.core.lost:
        return
    if not stage.alive or stage.placement != g.placements[s]:
        core, batch = rules_of_core.lose(m, g.core, s, g.received[s])
        yield f"G{i} finds {name} lost", turn(m, w, i, g._replace(received=put(g.received, s, core.consumed[s])), core, batch)
        return
    if (stage.attachment, stage.holder) != (g.attachment, i) and m.rules.attach:
        return
    due = g.received[s] + 1
    output = next((o for o in stage.kept if o.position >= due), None)
    if output is None:
        return
    if not m.rules.outputs_unfenced and output.attachment != g.attachment:
        output = output._replace(kind=EMPTY)
    g = g._replace(received=put(g.received, s, output.position))
    if not m.rules.ack_committed:
        w = with_stage(w, s, stages.forget(stage, output.position))
    core, batch, passed = rules_of_core.hear(m, g.core, s, output)
    yield f"G{i} hears {name}", turn(m, w, i, g, core, batch, passed)


def _attaching(m: Model, w: World, i: int, g: Gateway) -> Iterator[Step]:
    if g.met < len(w.stages):
        yield f"G{i} attaches to {m.setup.stages[g.met]}", takeover.attach(m, w, i, g)
    elif not w.away:
        yield f"G{i} goes live", takeover.go_live(m, w, i, g)


def _misfortunes(m: Model, w: World) -> Iterator[Step]:
    if w.deaths < m.setup.deaths and w.takeovers < m.setup.takeovers:
        for i, g in enumerate(w.gateways):
            if g.status in ("live", "attaching"):
                yield f"G{i} dies", with_gateway(w, i, Gateway("dead"))._replace(deaths=w.deaths + 1)
    if len(w.lost) < m.setup.losses:
        for s in m.losable:
            if s not in w.lost:
                yield f"{m.setup.stages[s]} is lost", with_stage(w, s, w.stages[s]._replace(alive=False))._replace(lost=(*w.lost, s))
    if w.takeovers < m.setup.takeovers and not w.away and w.client.token in w.redis.tokens:
        i = w.takeovers + 1
        yield f"client redials to G{i}", takeover.swap(m, w, i)
