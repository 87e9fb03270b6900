"""A stage client that speaks the contract, and an engine that shows what the kit did with it. Other packages' tests may use both."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from stage_kit import Append, Card, Engine, InvalidConfig, Label, RemoteEngine, Service, Settings, Slot

INPUT, RESPONSE = stage_pb2.LANE_INPUT, stage_pb2.LANE_RESPONSE
PCM_24K = stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=24000)
WAIT_S = 30.0
CARRIED = False
"""Set by the fixture `carried`: conversations share one Carry call."""


class Probe(Engine):
    """Echoes text in `step`, one piece a slot. Some words are orders: "boom" raises, "speak N" makes N ms of audio, "unit" adds a receipt.

    With `gate` cleared a step blocks before it emits, as a long computation does; `busy` is set while it does.
    """

    def __init__(self, stage: str = "probe", *, slots: int = 4, batch: int = 4, input_rate: int = 0, output_rate: int = 0) -> None:
        self.card = Card(
            stage, "probe", "none", ("text", "audio"), ("text", "audio"), slots, batch, input_rate=input_rate, output_rate=output_rate
        )
        self.gate, self.busy = threading.Event(), threading.Event()
        self.gate.set()
        self.log: list[tuple[str, str]] = []
        self.configs: list[tuple[str, Any]] = []
        self.heard: dict[str, list[Append]] = {}
        self.batches: list[list[str]] = []
        self.refuse_open: Exception | None = None
        self.close_failures = 0

    def validate(self, config: dict[str, Any]) -> dict[str, Any]:
        if "bad" in config:
            raise InvalidConfig("bad", "not allowed")
        return config

    def open(self, slot: Slot) -> None:
        if self.refuse_open is not None:
            raise self.refuse_open
        slot.state = deque()
        self.log.append(("open", slot.session_id))

    def close(self, slot: Slot) -> None:
        if self.close_failures:
            self.close_failures -= 1
            raise RuntimeError("cannot close")
        self.log.append(("close", slot.session_id))

    def configured(self, slot: Slot) -> None:
        self.log.append(("configured", slot.session_id))

    def receive(self, slot: Slot, append: Append) -> None:
        self.heard.setdefault(slot.session_id, []).append(append)
        if append.payload is not None and append.payload.WhichOneof("value") == "text":
            text = append.payload.text.text
            self.configs.append((text, slot.config))
            slot.state.append((append.label, text))

    def cleared(self, slot: Slot) -> None:
        self.log.append(("cleared", slot.session_id))

    def cancelled(self, slot: Slot) -> None:
        self.log.append(("cancelled", slot.session_id))
        slot.state = deque(each for each in slot.state if each[0].epoch >= slot.epoch)

    def ready(self, slot: Slot) -> float | None:
        return 0.0 if slot.state else None

    def step(self, slots: list[Slot]) -> None:
        self.batches.append([slot.session_id for slot in slots])
        work = [(slot, *slot.state[0]) for slot in slots]
        if any(text == "boom" for _, _, text in work) and len(slots) > 1:
            raise RuntimeError("the batch went wrong")
        self.busy.set()
        self.gate.wait(WAIT_S)
        self.busy.clear()
        for slot, label, text in work:
            slot.state.popleft()
            if text == "boom":
                raise RuntimeError("the slot went wrong")
            self._make(slot, label, text)

    def _make(self, slot: Slot, label: Label, text: str) -> None:
        order, _, argument = text.partition(" ")
        if order == "speak":
            samples = np.arange(int(argument) * self.card.output_rate // 1000, dtype=np.float32) % 1000 / 1000
            slot.emit_audio(samples, label)
        elif order == "unit":
            slot.emit_audio(np.zeros(self.card.output_rate // 10, np.float32), label)
            slot.unit_done(int(argument), 1000, label)
        elif order == "fill":
            for _ in range(int(argument)):
                slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text="x" * 1000)), label)
        else:
            slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text=text)), label)


class EchoService(RemoteEngine):
    """An outside service that answers when it is told to."""

    def __init__(self) -> None:
        self.card = Card("remote", "echo", "none", ("text",), ("text",))
        self.gate = asyncio.Event()
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.cancelled: list[str] = []

    async def load(self) -> None:
        await asyncio.sleep(0)

    def validate(self, config: dict[str, Any]) -> dict[str, Any]:
        return config

    async def answer(self, slot: Slot, append: Append) -> None:
        assert append.payload is not None
        text = append.payload.text.text
        await self.asked.put(text)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        if text == "boom":
            raise ConnectionError("gone")
        slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text=text)), append.label, last=append.last)


class Carry:
    """One Carry call. `begin` gives what looks like a Converse call and is a numbered stream of it."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.Carry()
        self.batches: list[stage_pb2.FromStageBatch] = []
        self.reads = asyncio.Event()
        """Cleared: it reads no further."""
        self.reads.set()
        self._streams: dict[int, asyncio.Queue[Any]] = {}
        self._writing = asyncio.Lock()
        self._reader = asyncio.create_task(self._read())
        self._leaving: set[asyncio.Task[None]] = set()

    def begin(self) -> NumberedCall:
        number = len(self._streams) + 1
        self._streams[number] = asyncio.Queue()
        return NumberedCall(self, number, self._streams[number])

    async def write(self, *parcels: stage_pb2.ToStageParcel) -> None:
        async with self._writing:
            await self.call.write(stage_pb2.ToStageBatch(parcels=parcels))

    def leave(self, number: int) -> None:
        task = asyncio.create_task(self.write(stage_pb2.ToStageParcel(stream=number, end=stage_pb2.StreamEnd())))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _read(self) -> None:
        try:
            while (batch := await self.call.read()) is not grpc.aio.EOF:
                self.batches.append(batch)
                for parcel in batch.parcels:
                    self._streams[parcel.stream].put_nowait(parcel.message if parcel.HasField("message") else grpc.aio.EOF)
                await self.reads.wait()
        except grpc.aio.AioRpcError:
            pass
        finally:
            for stream in self._streams.values():
                stream.put_nowait(grpc.aio.EOF)


class NumberedCall:
    """A numbered stream of a Carry call, used like a Converse call."""

    def __init__(self, carry: Carry, number: int, read: asyncio.Queue[Any]) -> None:
        self.number = number
        self._carry, self.read = carry, read.get

    async def write(self, message: stage_pb2.ToStage) -> None:
        await self._carry.write(stage_pb2.ToStageParcel(stream=self.number, message=message))

    async def done_writing(self) -> None:
        """Of all streams of the call: one alone cannot say so."""
        await self._carry.call.done_writing()

    def cancel(self) -> None:
        self._carry.leave(self.number)


class Conversation:
    """One stream: a Converse call, or a numbered one of a Carry.

    Positions on an edge count by themselves; `read` gives the next message of a kind and keeps all in `seen`.
    """

    def __init__(self, call: Any, stage: str, session: str, placement: int, attachment: int, holder: str) -> None:
        self.stage = stage
        self.authority = stage_pb2.Authority(session_id=session, placement=placement, attachment=attachment, holder_id=holder)
        self.seen: list[stage_pb2.FromStage] = []
        self.positions: dict[str, int] = {}
        self._unread: list[stage_pb2.FromStage] = []
        self._writing = asyncio.Lock()
        self._call = call

    async def send(
        self, *, label: Label | None = None, number: int = 0, authority: stage_pb2.Authority | None = None, **command: Any
    ) -> None:
        message = stage_pb2.ToStage(authority=authority or self.authority, command_number=number, **command)
        if label is not None:
            message.label.CopyFrom(label.proto())
        async with self._writing:  # a call takes one write at a time, and tests send from several tasks
            await self._call.write(message)

    async def open(self, config: str = "{}", **fields: Any) -> stage_pb2.FromStage:
        await self.begin(config, **fields)
        return await self.read("opened")

    async def begin(self, config: str = "{}", **fields: Any) -> None:
        await self.send(open=stage_pb2.Open(stage=self.stage, contract_version=1, config_json=config, **fields))

    async def attach(self, consumed: int = 0) -> stage_pb2.Attached:
        await self.send(attach=stage_pb2.Attach(stage=self.stage, contract_version=1, consumed=consumed))
        return (await self.read("attached")).attached

    async def text(self, text: str, epoch: int = 0, response: str = "r", *, last: bool = False, **fields: Any) -> None:
        await self.append(stage_pb2.Payload(text=stage_pb2.Text(text=text)), Label(epoch, 1, response), last=last, **fields)

    async def append(
        self, payload: stage_pb2.Payload | None, label: Label, *, edge: str = "core", lane: int = RESPONSE, number: int = 0, **fields: Any
    ) -> None:
        position = fields.pop("position", self.positions.get(edge, 0) + 1)
        self.positions[edge] = max(position, self.positions.get(edge, 0))
        fields.setdefault("previous", position - 1)
        append = stage_pb2.Append(edge=edge, position=position, lane=stage_pb2.Lane.Name(lane), payload=payload, **fields)
        await self.send(label=label, number=number, append=append)

    async def cancel(self, cancelled: int, following: int, number: int = 0, authority: stage_pb2.Authority | None = None) -> None:
        cancel = stage_pb2.Cancel(cancelled_epoch=cancelled, next_epoch=following, reason="test")
        await self.send(number=number, authority=authority, cancel=cancel)

    async def close(self, authority: stage_pb2.Authority | None = None) -> None:
        await self.send(authority=authority, close=stage_pb2.Close(reason="test"))

    async def read(self, *kinds: str) -> stage_pb2.FromStage:
        """The next message of these kinds, others stay unread; the test fails if the stream ends or stays silent."""
        for message in self._unread:
            if message.WhichOneof("event") in kinds:
                self._unread.remove(message)
                return message
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await self._call.read()
                assert message is not grpc.aio.EOF, f"the stream ended before {kinds}: {self.seen[-3:]}"
                self.seen.append(message)
                if message.WhichOneof("event") in kinds:
                    return message
                self._unread.append(message)

    async def texts(self, count: int) -> list[str]:
        return [(await self.read("chunk")).chunk.payload.text.text for _ in range(count)]

    async def ended(self) -> list[stage_pb2.FromStage]:
        """What comes until the stream's end."""
        rest = []
        async with asyncio.timeout(WAIT_S):
            while (message := await self._call.read()) is not grpc.aio.EOF:
                rest.append(message)
        self.seen.extend(rest)
        return rest

    async def hang_up(self) -> None:
        """Breaks the stream as a lost connection does."""
        self._call.cancel()

    def with_authority(self, **fields: Any) -> stage_pb2.Authority:
        """The conversation's authority with some fields replaced."""
        changed = stage_pb2.Authority()
        changed.CopyFrom(self.authority)
        for name, value in fields.items():
            setattr(changed, name, value)
        return changed


class StageClient:
    """A channel to one replica. `carried`: all conversations share one Carry call."""

    def __init__(self, address: str, *, carried: bool = False) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=(("grpc.http2.bdp_probe", 0),))
        self.stub = stage_pb2_grpc.StageStub(self.channel)  # type: ignore[no-untyped-call]
        self.carry = Carry(self.stub) if carried else None

    def converse(
        self, session: str = "s1", stage: str = "probe", *, placement: int = 1, attachment: int = 1, holder: str = "g1"
    ) -> Conversation:
        call = self.stub.Converse() if self.carry is None else self.carry.begin()
        return Conversation(call, stage, session, placement, attachment, holder)

    async def held(self, session: str = "") -> list[stage_pb2.HeldSession]:
        answer = await self.stub.Inspect(stage_pb2.InspectRequest(session_id=session))
        return list(answer.sessions)

    async def until_held(self, count: int) -> list[stage_pb2.HeldSession]:
        """Waits until so many sessions are held."""
        async with asyncio.timeout(WAIT_S):
            while len(held := await self.held()) != count:
                pass  # every look is a call, so the service gets its turns
        return held

    async def until_waiting(self, counts: Sequence[int]) -> None:
        """Waits until so many appends of each session wait for the engine."""
        async with asyncio.timeout(WAIT_S):
            while [held.waiting_appends for held in await self.held()] != list(counts):
                pass


@asynccontextmanager
async def serving(*engines: Engine | RemoteEngine, **settings: Any) -> AsyncIterator[tuple[StageClient, Service]]:
    """A real replica in this event loop, and a client of it."""
    service = Service("test", engines, Settings(**settings))
    await service.start()
    client = StageClient(service.address, carried=CARRIED)
    try:
        yield client, service
    finally:
        for engine in engines:
            if isinstance(engine, Probe):
                engine.gate.set()
        await client.channel.close()
        await service.stop()


async def until_set(event: threading.Event) -> None:
    """Waits for something that happens on the engine's thread."""
    assert await asyncio.to_thread(event.wait, WAIT_S)


def positions(messages: Sequence[stage_pb2.FromStage]) -> list[int]:
    """Positions of the chunks among messages."""
    return [message.chunk.position for message in messages if message.WhichOneof("event") == "chunk"]
