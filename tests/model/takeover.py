"""The four steps of a takeover."""

from __future__ import annotations

from . import core as rules_of_core
from .gateway import GONE, has_lease, mute, numbered, remember, with_gateway, with_stage, write
from .model import Model
from .world import Ack, Batch, Core, Event, Gateway, World, put

Numbered = tuple[tuple[int, Event], ...]


def swap(m: Model, w: World, i: int) -> World:
    """One script: the token is checked, the attachment rises, checkpoint and journal are read."""
    redis, client = w.redis, w.client
    now = w.takeovers + 2
    attachment = max(redis.attachment + 1, now) if m.rules.by_time else redis.attachment + 1
    w = remember(m, w)
    gateways = tuple(g._replace(out=()) if g.status == "live" else g for g in w.gateways)
    taken = Gateway(
        "attaching", attachment, redis.core, (redis.first, redis.journal), placements=redis.placements, received=redis.core.acknowledged
    )
    return w._replace(
        redis=redis._replace(attachment=attachment, holder=i, tokens=(client.token, attachment)),
        gateways=put(gateways, i, taken),
        client=client._replace(gateway=-1),
        takeovers=w.takeovers + 1,
    )


def attach(m: Model, w: World, i: int, g: Gateway) -> World:
    """The next stage is asked. One that does not answer or does not know the session is lost; one that knows a younger holder refuses."""
    s = g.met
    g = g._replace(met=s + 1)
    if s in g.core.lost:
        return with_gateway(w, i, g)
    stage = w.stages[s]
    if not stage.alive or stage.placement > g.placements[s]:
        return with_gateway(w, i, g._replace(missed=(*g.missed, s)))
    if not m.rules.attach:
        return with_gateway(w, i, g)
    if (stage.attachment, stage.holder) != (g.attachment, i) and stage.attachment >= g.attachment:
        return with_gateway(w, i, GONE)
    return with_gateway(with_stage(w, s, stage._replace(attachment=g.attachment, holder=i)), i, g)


def go_live(m: Model, w: World, i: int, g: Gateway) -> World:
    """Reconcile, commit, tell and replay."""
    if not has_lease(w.redis, i, g, m.rules.restore):
        return with_gateway(w, i, GONE)
    claimed = w.client.last + (w.client.unnumbered if m.rules.undurable_counted else 0)
    here = [s for s in range(len(w.stages)) if s not in g.core.lost and s not in g.missed]
    again = tuple(o for o in g.core.outbox if o.stage in here and o.number > w.stages[o.stage].command_number)
    core, batch = _reconcile(m, w, g.core, here, claimed)
    for s in (*core.lost, *g.missed):
        core, more = rules_of_core.lose(m, core, s, 0)
        batch = Batch(batch.events + more.events, batch.messages + more.messages)
    first, entries = g.journal
    replay = tuple((n, e) for n, e in enumerate(entries, first) if n > claimed)
    if m.rules.replay_muted:
        for ended in [e.response for e in entries if e.name in ("cancelled", "failed")]:
            replay = mute(m, replay, ended)
    gap: Numbered = ((first - 1 if m.rules.gap_numbered else 0, Event("resync")),) if claimed + 1 < first else ()
    if gap and m.rules.resync_once:
        gap, replay = _told_once(gap, replay, batch)
    unnumbered = tuple((0, e) for e in batch.events if e.name == "resync" and not m.rules.resync_numbered)
    events = tuple(e for e in batch.events if not unnumbered or e.name != "resync")
    received = core.acknowledged if m.rules.resend_acknowledged else core.consumed
    g = g._replace(status="live", received=received, journal=(1, ()), met=0, wire=(again if m.rules.outbox else ()) + batch.messages)
    core = rules_of_core.acknowledgeable(m, core) if m.rules.ack_committed else core
    acks = tuple(Ack(s, core.acknowledged[s]) for s in here if core.acknowledged[s])
    g = g._replace(core=core, wire=g.wire + acks)
    g = g._replace(out=gap + replay + unnumbered + numbered(core, events))
    w = write(m, w, i, False, g, events)
    return _welcome(m, w, i, g, here)


def _told_once(gap: Numbered, replay: Numbered, batch: Batch) -> tuple[Numbered, Numbered]:
    """A resync that comes with or after the gap says it all: what is left of the journal before it holds no more."""
    names = [e.name for _, e in replay]
    if "resync" in names:
        return (), replay[names.index("resync") :]
    return ((), ()) if any(e.name == "resync" for e in batch.events) else (gap, replay)


def _reconcile(m: Model, w: World, core: Core, here: list[int], claimed: int) -> tuple[Core, Batch]:
    """What the stages know and the checkpoint does not."""
    if m.reader in here and m.reader:
        core = rules_of_core.accepted(core, w.stages[m.reader].mark)
    epoch, is_ahead = core.epoch, claimed > core.seq
    for s in here:
        stage, gone = w.stages[s], w.stages[s].first_kept - 1
        is_ahead |= stage.command_number > core.issued[s] or stage.epoch > core.epoch or gone > core.acknowledged[s]
        epoch = max(epoch, stage.epoch)
        if m.rules.numbers_go_on:
            core = core._replace(issued=put(core.issued, s, max(core.issued[s], stage.command_number)))
        consumed = put(core.consumed, s, max(core.consumed[s], gone))
        core = core._replace(consumed=consumed, acknowledged=put(core.acknowledged, s, max(core.acknowledged[s], gone)))
    above = epoch + 1 if m.rules.adopt else 0
    if is_ahead and m.rules.resync:
        return rules_of_core.resync(m, core, claimed, above)
    if epoch > core.epoch and m.rules.adopt:
        return rules_of_core.advance(m, core, above)
    return core, Batch()


def _welcome(m: Model, w: World, i: int, g: Gateway, here: list[int]) -> World:
    """The client, if it still waits here, learns from where to send again."""
    client, numbers = w.client, m.numbers
    position = _announced(m, w, here)
    g = g._replace(position=position, keeps_from=position)
    if i != w.takeovers:
        return with_gateway(w, i, g._replace(out=()))
    todo = client.todo
    if not m.setup.stock:
        answered = frozenset(range(1, g.core.client_seq + 1)) if m.rules.client_seq else client.answered
        todo = tuple(k for k, name in enumerate(m.setup.script) if (numbers[k] > position if name == "say" else numbers[k] not in answered))
    fresh_from = todo[0] if todo else len(m.setup.script)
    told = client._replace(gateway=i, token=g.attachment, todo=todo, announced=g.core.client_seq, fresh_from=fresh_from)
    return with_gateway(w._replace(client=told), i, g)


def _announced(m: Model, w: World, here: list[int]) -> int:
    """How many samples need not be sent again."""
    marks = [w.stages[s].mark for s in m.hearing if s in here]
    lost = [s for s in m.hearing if s not in here]
    if not m.rules.watermark:
        said = [k for k in range(len(m.numbers)) if k not in w.client.todo and m.setup.script[k] == "say"]
        return len(said)
    if m.setup.stock:
        return (max if m.rules.stock_goes_on else min)(marks, default=0)
    if lost and m.rules.lost_hears_again:
        return 0
    return (min if m.rules.lowest else max)(marks, default=0)
