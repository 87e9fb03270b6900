"""The client: what it says, and what it makes of what it is told."""

from __future__ import annotations

from . import core as rules_of_core
from .gateway import turn, with_gateway
from .model import Model
from .world import Client, Event, Gateway, Relay, Violation, World


def say(m: Model, w: World, i: int, g: Gateway) -> World | None:
    """The next entry of the script. Audio is relayed at once; a command is decided. None: it has to wait."""
    index = w.client.todo[0]
    name, number = m.setup.script[index], m.numbers[index]
    w = w._replace(client=w.client._replace(todo=w.client.todo[1:]))
    if name == "say":
        position = g.position + 1
        relays = tuple(Relay(s, position, number) for s in m.hearing if s not in g.core.lost)
        return with_gateway(w, i, g._replace(position=position, keeps=(*g.keeps, number), wire=g.wire + relays))
    if name == "start" and any(s in g.core.lost for s in m.answering):
        return None
    core, batch = rules_of_core.obey(m, g.core, number, name)
    return turn(m, w, i, g, core, batch)


def receive(m: Model, w: World, i: int, g: Gateway) -> World | None:
    """The next event reaches the client. None: it is muted, and the commit that ends its response is still out."""
    number, event = g.out[0]
    if g.batch is not None and event.name == "chunk" and event.response == g.batch.ended and m.rules.commit_first:
        return None
    w = with_gateway(w, i, g._replace(out=g.out[1:]))
    return w._replace(client=_counted(m, w.client, number, event, w.forgets + w.outages))


def _counted(m: Model, client: Client, number: int, event: Event, forgotten: int) -> Client:
    """forgotten: how often Redis forgot something, or may have."""
    if event.name == "resync" and (number > client.last or number == 0):
        if not forgotten:
            raise Violation("something was lost, though Redis forgot nothing")
        if client.resyncs == forgotten:
            raise Violation("one loss was told twice")
        last = max(client.last, number)
        return client._replace(last=last, unnumbered=0, open=-1, chunk=0, muted=False, answered=frozenset(), resyncs=client.resyncs + 1)
    if number == 0:
        client = client._replace(unnumbered=client.unnumbered + 1)
    elif number <= client.last:
        return client
    elif number != client.last + client.unnumbered + 1:
        raise Violation(f"event {number} came, {client.last + client.unnumbered + 1} is missing")
    else:
        client = client._replace(last=number, unnumbered=0)
    if forgotten and client.muted and event.name in ("chunk", "done"):
        client = client._replace(open=-1, muted=False)  # the commit that cut it short is forgotten: it goes on, and was told as cut
    return _understood(m, client, event)


def _understood(m: Model, client: Client, event: Event) -> Client:
    """One more sentence of the story. It has to make sense after those before it."""
    if event.command:
        if event.command in client.answered:
            raise Violation(f"command {event.command} was obeyed twice")
        client = client._replace(answered=client.answered | {event.command})
    name, response = event.name, event.response
    if name in ("refused", "nothing"):
        return client
    if name == "skipped":
        return client._replace(muted=True)
    if name == "created":
        if client.open > 0:
            raise Violation(f"response {response} was created in the middle of {client.open}")
        return client._replace(open=response, chunk=0, muted=False)
    if client.open not in (response, -1):
        raise Violation(f"{name} of response {response}, which is not open")
    is_known = client.open == response
    if name == "chunk":
        if client.muted:
            raise Violation(f"chunk {event.kind} of response {response} after muted ones")
        if is_known and event.kind != client.chunk:
            raise Violation(f"chunk {event.kind} of response {response}, {client.chunk} is due")
        return client._replace(open=response, chunk=event.kind + 1)
    if name == "done" and is_known and (client.chunk != m.setup.chunks or client.muted):
        raise Violation(f"response {response} is done after {client.chunk} chunks")
    return client._replace(open=0, chunk=0, muted=False)
