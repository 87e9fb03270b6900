"""How a stage leaves a replica that drains: as if it were lost, but between two turns, when nobody can hear the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import failover
from .commands import StageDraining
from .effects import Replace

if TYPE_CHECKING:
    from .session import Conversation

MOST_REHEARD_MS = 20_000
"""Of a buffer that the client has not committed: with more, not all of it may be kept to be heard again."""


def draining(c: Conversation, news: StageDraining) -> None:
    if news.stage not in c.state.lost:
        c.leaving.add(news.stage)


def settle(c: Conversation) -> None:
    """Those that want to leave and may."""
    for stage in sorted(stage for stage in c.leaving if is_quiet(c, stage)):
        c.leaving.discard(stage)
        c.state.lost.append(stage)
        c.effects.append(Replace(stage, failover.rebuild(c, stage), leaves=True))


def is_quiet(c: Conversation, stage: str) -> bool:
    """Nothing that is under way needs the stage, and all that it was told is known to have arrived."""
    orders = c.outbox.stages.get(stage)
    if c.state.updating is not None or (orders is not None and orders.waiting):
        return False
    edges = c.graph.edges(stage)
    if any(c.edges.in_flight(source, stage) for source in edges if source not in ("client", "core")):
        return False
    if stage in c.graph.response_stages and (c.responses.live is not None or c.responses.owed or c.native.turn):
        return False
    return "client" not in edges or _nothing_open(c)


def _nothing_open(c: Conversation) -> bool:
    if c.input.open_item is not None or c.dialog.waiting():
        return False
    if c.config.turn_detection is not None:
        return True
    return c.input.end_ms(c.config.input_format) - c.input.buffer_start_ms <= MOST_REHEARD_MS
