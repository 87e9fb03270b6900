"""What a stage does: it makes outputs and keeps them, obeys each order once, and takes each input once."""

from __future__ import annotations

from .model import Model
from .world import DONE, EMPTY, Append, Order, Output, Relay, Stage, Violation


def make(m: Model, index: int, stage: Stage) -> Stage:
    """The next output of a stage that has work."""
    epoch, response, kind = stage.work[0]
    rest = stage.work[1:]
    if index == m.answering[0]:
        kind, rest = (kind, ((epoch, response, kind + 1),)) if kind < m.setup.chunks else (DONE, ())
    output = Output(stage.last + 1, epoch, response, kind, 0 if m.rules.outputs_unfenced else stage.attachment)
    return stage._replace(kept=(*stage.kept, output), last=stage.last + 1, work=rest)


def obey(stage: Stage, order: Order) -> Stage:
    """A numbered command; what was obeyed before changes nothing."""
    if order.number <= stage.command_number:
        return stage
    stage = stage._replace(command_number=order.number)
    if order.next_epoch:
        return _enter(stage, order.next_epoch)
    if order.epoch < stage.epoch:
        return stage
    return _enter(stage, order.epoch)._replace(work=((order.epoch, order.response, 0),))


def _enter(stage: Stage, epoch: int) -> Stage:
    """The epoch rises: work below it is over, kept outputs below it keep their positions and nothing else."""
    if epoch <= stage.epoch:
        return stage
    kept = tuple(Output(o.position, epoch, 0, EMPTY, o.attachment) if o.epoch < epoch else o for o in stage.kept)
    return stage._replace(epoch=epoch, kept=kept, work=tuple(each for each in stage.work if each[0] >= epoch))


def append(m: Model, stage: Stage, append: Append) -> Stage | None:
    """An output of the stage before it; None: a gap, which the sender is told of."""
    if append.position <= stage.mark and m.rules.edge_positions:
        return stage
    if append.previous > stage.mark:
        return None
    stage = stage._replace(mark=append.position)
    if append.epoch < stage.epoch:
        return stage
    stage = _enter(stage, append.epoch)
    due = stage.taken[2] if stage.taken[:2] == (append.epoch, append.response) else 0
    if append.kind != (due if due < m.setup.chunks else DONE):
        raise Violation(f"talker is brought {_name(append.kind)} of response {append.response}, chunk {due} is due")
    stage = stage._replace(taken=(append.epoch, append.response, due + 1))
    return stage._replace(work=(*stage.work, (append.epoch, append.response, append.kind)))


def _name(kind: int) -> str:
    return "the end" if kind == DONE else f"chunk {kind}"


def relay(m: Model, name: str, stage: Stage, relay: Relay) -> Stage:
    """A sample of the client."""
    if relay.position <= stage.mark:
        return stage
    last = stage.heard[-1][1] if stage.heard else 0 if m.setup.stock else stage.begins
    if relay.sample <= last:
        raise Violation(f"{name} hears sample {relay.sample} after {last}")
    if not m.setup.stock and relay.sample != last + 1:
        raise Violation(f"{name} hears sample {relay.sample}, {last + 1} is due")
    return stage._replace(mark=relay.position, heard=(*stage.heard, (relay.position, relay.sample)))


def forget(stage: Stage, position: int) -> Stage:
    """Outputs up to the position were acknowledged."""
    return stage._replace(kept=tuple(o for o in stage.kept if o.position > position))
