"""A stage service as a process, and a gateway's side of one session at it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]
START_S = 30.0
ANSWER_S = 20.0


@asynccontextmanager
async def service(module: str, folder: Path) -> AsyncIterator[str]:
    """Starts `python -m module`, gives its gRPC address, ends it with SIGTERM and checks its exit code."""
    ready = folder / f"{module}.ready"
    environment = {
        **os.environ,
        "PARLEY_READY_FILE": str(ready),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
        "PARLEY_DRAIN_S": "1",
    }
    log = (folder / f"{module}.log").open("wb")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield json.loads(await asyncio.to_thread(_ready, process, ready))["grpc"]
    finally:
        if process.returncode is None:
            process.terminate()
        code = await asyncio.wait_for(process.wait(), ANSWER_S)
        log.close()
    assert code == 0, (folder / f"{module}.log").read_text()


def _ready(process: asyncio.subprocess.Process, ready: Path) -> str:
    deadline = time.monotonic() + START_S
    while not ready.exists():
        assert process.returncode is None and time.monotonic() < deadline, "the service did not become ready"
        time.sleep(0.02)
    return ready.read_text()


class StageSession:
    """One session at one stage. Reads in the background, acknowledges at once, keeps everything."""

    def __init__(self, channel: grpc.aio.Channel, stage: str, session_id: str) -> None:
        self._authority = stage_pb2.Authority(session_id=session_id, placement=1, attachment=1, holder_id="test")
        self._stage = stage
        self._stream = stage_pb2_grpc.StageStub(channel).Converse()  # type: ignore[no-untyped-call]
        self._position = 0
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())
        self.events: list[stage_pb2.FromStage] = []

    async def open(self, edge: str, config: dict[str, Any], output: stage_pb2.AudioFormat | None = None) -> stage_pb2.StageError | None:
        """Opens and waits for the answer: the refusal, if it is one."""
        self._edge = edge
        await self._send(
            open=stage_pb2.Open(stage=self._stage, contract_version=1, config_json=json.dumps(config), output_format=output, edges=[edge])
        )
        answer = (await self.until(lambda event: event.HasField("opened") or event.HasField("error")))[0]
        return answer.error if answer.HasField("error") else None

    async def append(self, label: stage_pb2.Label, payload: stage_pb2.Payload | None = None, *, last: bool = False) -> None:
        """Sends the next position of the edge."""
        self._position += 1
        message = stage_pb2.Append(
            edge=self._edge, position=self._position, previous=self._position - 1, lane=stage_pb2.LANE_RESPONSE, last=last, payload=payload
        )
        await self._send(label=label, append=message)

    async def credit(self, granted_ms: int) -> None:
        await self._send(credit=stage_pb2.Credit(granted_ms=granted_ms))

    async def cancel(self, epoch: int) -> None:
        """Cancels `epoch` and waits until the stage has obeyed."""
        await self._send(cancel=stage_pb2.Cancel(cancelled_epoch=epoch, next_epoch=epoch + 1, reason="turn_detected"))
        await self.until(lambda event: event.HasField("cancelled"))

    async def close(self) -> None:
        await self._send(close=stage_pb2.Close(reason="done"))
        await self.until(lambda event: event.HasField("closed"))
        await self.hang_up()

    async def hang_up(self) -> None:
        """Ends the stream only."""
        self._stream.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def until(self, found: Any) -> list[stage_pb2.FromStage]:
        """Waits for an event for which `found` is true; all events so far."""
        async with asyncio.timeout(ANSWER_S), self._news:
            await self._news.wait_for(lambda: self._reader.done() or any(found(event) for event in self.events))
        assert any(found(event) for event in self.events), f"the stream ended after {len(self.events)} events"
        return self.events

    async def until_last(self, response_id: str) -> list[stage_pb2.Chunk]:
        """Waits for the end of a response; its chunks."""
        await self.until(lambda event: event.chunk.last and event.chunk.label.response_id == response_id)
        return self.chunks(response_id)

    def chunks(self, response_id: str) -> list[stage_pb2.Chunk]:
        return [event.chunk for event in self.events if event.HasField("chunk") and event.chunk.label.response_id == response_id]

    async def _send(self, **command: Any) -> None:
        await self._stream.write(stage_pb2.ToStage(authority=self._authority, **command))

    async def _read(self) -> None:
        while (event := await self._stream.read()) is not grpc.aio.EOF:
            if event.HasField("chunk"):
                await self._send(ack=stage_pb2.Ack(position=event.chunk.position))
            async with self._news:
                self.events.append(event)
                self._news.notify_all()
