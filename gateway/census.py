"""What the gateways of this process hold, counted when somebody asks, so that it costs a session nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .outbound import Outbound

STATES = ("live", "detached", "draining")
SLOW_FROM = 0.5
"""A client reads slowly when what waits for it fills so much of its bound."""


class Holding(NamedTuple):
    """A gateway's sessions: for each the queue to its client, None while it has none."""

    outbounds: Iterable[Outbound | None]
    draining: bool


class Census(Collector):
    """`parley_gateway_sessions` and its kin. A session is draining where its gateway is; else live with a client, detached without."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._holders: dict[str, Callable[[], Holding]] = {}
        registry.register(self)

    def watch(self, gateway_id: str, holder: Callable[[], Holding]) -> None:
        """Counts what it holds from now on."""
        self._holders[gateway_id] = holder

    def forget(self, gateway_id: str) -> None:
        self._holders.pop(gateway_id, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sessions, waiting, slow, draining = Counter[str](), 0, 0, False
        for holding in [holder() for holder in list(self._holders.values())]:
            draining = draining or holding.draining
            for outbound in holding.outbounds:
                sessions["draining" if holding.draining else "live" if outbound is not None else "detached"] += 1
                if outbound is not None:
                    waiting += outbound.waiting_bytes
                    slow += outbound.fullness >= SLOW_FROM
        held = GaugeMetricFamily("parley_gateway_sessions", "Sessions held, by state", labels=["state"])
        for state in STATES:
            held.add_metric([state], sessions[state])
        yield held
        yield GaugeMetricFamily("parley_gateway_draining", "1 while this gateway takes nobody new", value=float(draining))
        yield GaugeMetricFamily("parley_gateway_output_waiting_bytes", "Events that wait for clients to read", value=waiting)
        yield GaugeMetricFamily("parley_gateway_slow_readers", "Clients that leave half of their output bound unread", value=slow)


CENSUS = Census()
