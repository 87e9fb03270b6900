"""Health over gRPC and HTTP: "startup" once loaded, "ready" while sessions may come, "live" while the engines turn; "" is as "ready"."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

NAMES = ("", "startup", "ready", "live")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """One state behind both protocols."""

    def __init__(self) -> None:
        self._servicer = aio.HealthServicer()
        self._serving: dict[str, bool] = {}

    def register(self, server: grpc.aio.Server) -> None:
        """Adds grpc.health.v1.Health."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def serving(self, name: str) -> bool:
        """What `name` says right now."""
        return self._serving.get(name, False)

    async def set(self, **states: bool) -> None:
        """startup, ready, live; "" follows ready. Only changes are announced."""
        if "ready" in states:
            states[""] = states["ready"]
        for name, serving in states.items():
            if self._serving.get(name) is not serving:
                self._serving[name] = serving
                await self._servicer.set(name, SERVING if serving else NOT_SERVING)
