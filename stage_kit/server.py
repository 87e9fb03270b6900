"""The gRPC side of a replica: the Stage servicer and the server it runs in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from stage_kit.carrier import Carrier
from stage_kit.errors import Code, Refusal
from stage_kit.fence import Authority
from stage_kit.host import CONTRACT_VERSION, Host
from stage_kit.logs import describe, logger
from stage_kit.settings import Settings
from stage_kit.stream import Stream

PERIOD_MS = (50, 250, 5000)


class StageServicer(stage_pb2_grpc.StageServicer):
    """Serves the stages of one replica."""

    def __init__(self, service: str, replica_id: str, hosts: Mapping[str, Host], settings: Settings) -> None:
        self._service = service
        self._replica_id = replica_id
        self._hosts = hosts
        self._settings = settings
        self._log = logger(replica_id=replica_id)

    async def Describe(self, request: stage_pb2.DescribeRequest, context: Any) -> stage_pb2.DescribeResponse:
        """What the replica offers."""
        return stage_pb2.DescribeResponse(
            contract_version=CONTRACT_VERSION,
            replica_id=self._replica_id,
            service=self._service,
            stages=[host.describe() for host in self._hosts.values()],
        )

    async def Converse(self, requests: AsyncIterator[stage_pb2.ToStage], context: Any) -> None:
        """Reads as fast as the caller writes; writes as fast as the caller reads."""
        wake = asyncio.Event()
        stream = Stream(self._settings.pending_replies_count, wake.set)
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            while True:
                wake.clear()
                while (message := stream.take()) is not None:
                    await context.write(message)
                if stream.over:
                    return
                await wake.wait()
        finally:
            reader.cancel()
            stream.leave()

    async def Carry(self, requests: AsyncIterator[stage_pb2.ToStageBatch], context: Any) -> None:
        """As many Converse calls in one."""
        carrier = Carrier(self._settings)
        reader = asyncio.create_task(self._read_batches(requests, carrier))
        try:
            while (batch := await carrier.next()) is not None:
                await context.write(batch)
        finally:
            reader.cancel()
            carrier.end()

    async def Release(self, request: stage_pb2.ReleaseRequest, context: Any) -> stage_pb2.ReleaseResponse:
        """Frees a session without a stream."""
        host = self._hosts.get(request.stage)
        try:
            if host is None:
                raise Refusal(Code.CODE_INCOMPATIBLE, "this replica has no such stage", param="stage")
            return stage_pb2.ReleaseResponse(released=await host.release(Authority.of(request.authority), request.reason))
        except Refusal as refusal:
            if host is not None:
                host.metrics.refuse(refusal.name)
            return stage_pb2.ReleaseResponse(error=refusal.proto())

    async def Inspect(self, request: stage_pb2.InspectRequest, context: Any) -> stage_pb2.InspectResponse:
        """What the replica holds."""
        return stage_pb2.InspectResponse(
            replica_id=self._replica_id,
            sessions=[
                session.inspected()
                for host in self._hosts.values()
                for session in host.held()
                if request.session_id in ("", session.session_id)
            ],
        )

    async def Pulse(self, request: stage_pb2.PulseRequest, context: Any) -> AsyncIterator[stage_pb2.PulseResponse]:
        """One beat a period, until the caller leaves."""
        least, usual, most = PERIOD_MS
        period_s = min(max(request.period_ms or usual, least), most) / 1000
        while True:
            hosts = self._hosts.values()
            draining = any(host.draining for host in hosts)
            yield stage_pb2.PulseResponse(replica_id=self._replica_id, draining=draining, stages=[host.pulse() for host in hosts])
            await asyncio.sleep(period_s)

    async def _read(self, requests: AsyncIterator[stage_pb2.ToStage], stream: Stream) -> None:
        try:
            async for message in requests:
                self._obey(stream, message)
                if not stream.open:
                    return
        except Exception as error:
            # a broken transport ends here
            self._log.warning("stream ended", error=describe(error))
            stream.end()
        finally:
            stream.read_out()

    async def _read_batches(self, requests: AsyncIterator[stage_pb2.ToStageBatch], carrier: Carrier) -> None:
        try:
            async for batch in requests:
                alone = len(batch.parcels) == 1
                for parcel in batch.parcels:
                    stream = carrier.stream(parcel)
                    if stream is not None:
                        self._obey(stream, parcel.message if alone else _detached(parcel.message))
        except Exception as error:
            self._log.warning("carrier ended", error=describe(error))
            carrier.end()
        finally:
            carrier.read_out()

    def _obey(self, stream: Stream, message: stage_pb2.ToStage) -> None:
        try:
            if stream.host is None:
                stream.host = self._host(stream, message)
            if stream.host is not None:
                stream.host.obey(stream, message)
        except Exception as error:
            # a fault of the kit must not leave the caller waiting
            self._log.warning("stream ended", error=describe(error))
            stream.end()

    def _host(self, stream: Stream, message: stage_pb2.ToStage) -> Host | None:
        command = message.WhichOneof("command")
        placement = message.authority.placement
        if command not in ("open", "attach"):
            refusal = Refusal(Code.CODE_FAILED_PRECONDITION, "open or attach comes first", ends_stream=True)
            stream.refuse(refusal, placement, None)
            return None
        stage = message.open.stage if command == "open" else message.attach.stage
        host = self._hosts.get(stage)
        if host is None:
            stream.refuse(
                Refusal(Code.CODE_INCOMPATIBLE, "this replica has no such stage", param="stage", ends_stream=True), placement, None
            )
        return host


def _detached(message: stage_pb2.ToStage) -> stage_pb2.ToStage:
    """An append that waits for its engine would keep the whole batch that it came in."""
    if not message.HasField("append"):
        return message
    copy = stage_pb2.ToStage()
    copy.CopyFrom(message)
    return copy


def build_server(settings: Settings) -> grpc.aio.Server:
    """A server without services. Pings that go unanswered end a connection in both directions, and peers may ping twice as often."""
    return grpc.aio.server(
        options=[
            ("grpc.keepalive_time_ms", settings.keepalive_ms),
            ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
            # without it the core's own 60 s overrule keepalive_timeout_ms
            ("grpc.http2.ping_timeout_ms", settings.keepalive_timeout_ms),
            # a client that pings more often is sent away in mid-stream
            ("grpc.http2.min_ping_interval_without_data_ms", settings.keepalive_ms // 2),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", settings.message_bytes),
            ("grpc.max_send_message_length", settings.message_bytes),
            ("grpc.so_reuseport", 0),
        ]
    )


def listen(server: grpc.aio.Server, settings: Settings) -> str:
    """Binds the server; returns the address that peers dial. Raises OSError or ValueError with one line."""
    files = (settings.tls_certificate, settings.tls_key, settings.tls_ca)
    host, _, wanted = settings.bind.rpartition(":")
    try:
        if not settings.bind.startswith("unix:"):
            # tried first, because gRPC's core would print a taken address in its own words
            socket.create_server((host, int(wanted))).close()
        if all(files):
            certificate, key, authority = (file.read_bytes() for file in files if file is not None)
            credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
            port = server.add_secure_port(settings.bind, credentials)
        else:
            port = server.add_insecure_port(settings.bind)
    except (RuntimeError, OSError, ValueError):
        raise OSError(f"cannot listen on {settings.bind}") from None
    if any(files) and not all(files):
        raise ValueError("mTLS needs tls_certificate, tls_key and tls_ca")
    return settings.bind if settings.bind.startswith("unix:") else f"{host}:{port}"
