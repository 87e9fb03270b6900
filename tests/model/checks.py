"""What must hold in every world, and where nothing more can happen. (What the client is told is checked as it is told.)"""

from __future__ import annotations

from .model import Model
from .world import Gateway, Stage, Violation, World


def check(m: Model, w: World) -> None:
    """Stages that hear never hear different things at one place. Raises Violation."""
    if m.setup.stock and len(m.hearing) > 1:
        _agree(m, w)


def _agree(m: Model, w: World) -> None:
    first, second = (dict(w.stages[s].heard) for s in m.hearing[:2])
    for position in first.keys() & second.keys():
        if first[position] != second[position]:
            raise Violation(f"at sample position {position} one stage heard {first[position]} and another {second[position]}")


def check_end(m: Model, w: World) -> None:
    """Nothing more can happen: nothing is owed. Raises Violation."""
    client = w.client
    if client.gateway < 0:
        _check_ended(m, w)
        return
    g = w.gateways[client.gateway]
    if g.status == "dead":
        return
    if g.status != "live":
        raise Violation(f"the client's gateway lost the session to nobody ({g.status})")
    _check_quiet(m, w, g)
    for s, stage in enumerate(w.stages):
        _check_stage(m, s, stage, g)
    for s in m.hearing:
        _check_heard(m, s, w, g)


def _check_ended(m: Model, w: World) -> None:
    if w.takeovers == 0:
        raise Violation("the client has no gateway")
    last = w.gateways[w.takeovers]
    if last.status not in ("dead",):
        raise Violation(f"the last takeover does not have the session ({last.status})")


def _check_quiet(m: Model, w: World, g: Gateway) -> None:
    client, core = w.client, g.core
    if g.wire or g.batch or g.out:
        raise Violation(f"something never arrives: {(*g.wire, *g.out)}")
    if client.todo:
        raise Violation("the client has something to say and nobody to hear it")
    if core.response or client.open > 0:
        raise Violation("a response never ended")
    if client.last + client.unnumbered != core.seq:
        raise Violation(f"events up to {core.seq} were told, the client has {client.last + client.unnumbered}")
    if core.lost:
        raise Violation("a lost stage was never placed anew")
    told = client.announced if w.forgets + w.outages else 0
    unanswered = set(range(told + 1, m.commands + 1)) - client.answered
    if unanswered and not m.setup.stock:
        raise Violation(f"commands {sorted(unanswered)} were never answered")


def _check_stage(m: Model, s: int, stage: Stage, g: Gateway) -> None:
    name = m.setup.stages[s]
    if stage.kept or stage.work:
        raise Violation(f"{name} keeps or owes outputs for ever")
    if stage.command_number < g.core.issued[s] and any(o.stage == s and o.number > stage.command_number for o in g.core.outbox):
        raise Violation(f"{name} never got its orders")


def _check_heard(m: Model, s: int, w: World, g: Gateway) -> None:
    stage, name = w.stages[s], m.setup.stages[s]
    heard = [sample for _, sample in stage.heard]
    if m.setup.stock:
        fresh = [m.numbers[k] for k, what in enumerate(m.setup.script) if what == "say" and k >= w.client.fresh_from]
        if [sample for sample in heard if sample in fresh] != fresh:
            raise Violation(f"{name} heard {heard}, of {fresh} said on the living connection")
        return
    if heard != list(range(stage.begins + 1, m.samples + 1)):
        raise Violation(f"{name} heard {heard} from {stage.begins} on, of {m.samples} samples")
    if stage.begins > (0 if s in g.missed else g.keeps_from):
        raise Violation(f"{name} was placed anew and did not hear the first {stage.begins} samples of the open turn")
