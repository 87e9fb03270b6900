"""Channels to replicas, one an address."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import grpc
from parley_stage.v1 import stage_pb2_grpc

from .carrier import MESSAGE_BYTES, Carrier
from .tenure import Tenure

CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # else its default of 60 s wins over keepalive_timeout
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
]


class Tls(NamedTuple):
    """PEM bytes with which the gateway shows itself to stages, and the name that their certificates bear (pods are dialled by address)."""

    certificate: bytes
    key: bytes
    ca: bytes
    server_name: str


class Replica:
    """One address: its channel, and the one call that carries all sessions there."""

    def __init__(self, channel: grpc.aio.Channel, tenure: Tenure | None) -> None:
        self._channel, self._tenure = channel, tenure
        self.stub = stage_pb2_grpc.StageStub(channel)  # type: ignore[no-untyped-call]
        self._carrier: Carrier | None = None

    def carrier(self) -> Carrier:
        """The call, begun anew if the last one is over."""
        if self._carrier is None or self._carrier.over:
            self._carrier = Carrier(self.stub.Carry(), self._tenure)
        return self._carrier

    async def close(self) -> None:
        if self._carrier is not None:
            await self._carrier.close()
        await self._channel.close()


class StagePool:
    """The replicas that this gateway uses. With `tls` channels are mutually authenticated, without it in the clear.

    Past the deadline of `tenure` no session's message leaves before the store was asked.
    """

    def __init__(self, tls: Tls | None = None, tenure: Tenure | None = None) -> None:
        self._tls, self._tenure = tls, tenure
        self._replicas: dict[str, Replica] = {}

    def replica(self, address: str) -> Replica:
        replica = self._replicas.get(address)
        if replica is None:
            replica = self._replicas[address] = Replica(self._dial(address), self._tenure)
        return replica

    def stub(self, address: str) -> stage_pb2_grpc.StageStub:
        return self.replica(address).stub

    def _dial(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._tls.ca, self._tls.key, self._tls.certificate)
        named = [("grpc.ssl_target_name_override", self._tls.server_name)] if self._tls.server_name else []
        return grpc.aio.secure_channel(address, credentials, options=[*CHANNEL_OPTIONS, *named])

    async def close(self) -> None:
        replicas, self._replicas = self._replicas, {}
        await asyncio.gather(*(replica.close() for replica in replicas.values()))
