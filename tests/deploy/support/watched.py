"""The houses that Prometheus watches: everything embedded, and a native model as it ships on a tiny random checkpoint, both talked to."""

from __future__ import annotations

import json
from pathlib import Path

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.embedded.caller import call
from tests.embedded.house import EmbeddedHouse, fetch_models
from tests.embedded.recordings import pcm
from tests.failover.line import Line
from tests.native_e2e.test_real import TinyHouse, converse, said
from tests.support.house import House
from tests.support.process import Child
from tests.support.speech import silence

LEAD_MS = 400
HEARD_DELTAS = 10
"""Of sound, before somebody interrupts."""


class Watched:
    """Both houses, started together."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.embedded = EmbeddedHouse(folder / "embedded")
        self.native: House = TinyHouse(folder / "native", checkpoint)

    def start(self) -> None:
        fetch_models()
        try:
            self.embedded.start()
            self.native.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.native.stop()
        self.embedded.stop()

    def targets(self) -> dict[str, list[str]]:
        """Where each process shows its metrics, by job."""
        embedded = {child.name: child for child in self.embedded.children}
        native = {child.name: child for child in (*self.native.services.values(), *self.native.gateways)}
        return {f"embedded-{name}": [_address(child)] for name, child in embedded.items()} | {
            f"native-{name}": [_address(child)] for name, child in native.items()
        }

    async def talk(self) -> None:
        """A question that is answered aloud, an interruption that is answered, too; then one native turn."""
        async with call(self.embedded, {"type": "server_vad"}) as caller:
            caller.microphone.say(silence(LEAD_MS) + pcm("synth_q_sky_blue"))
            asked = (await caller.until("response.created")).response
            for _ in range(HEARD_DELTAS):
                await caller.until("response.output_audio.delta")
            caller.microphone.say(pcm("synth_stop_interrupt"))
            assert (await caller.done(asked.id)).status == "cancelled"
            answer = (await caller.until("response.created")).response
            assert (await caller.done(answer.id)).status == "completed"
        line = await Line.dial(self.native.realtime, extended=True)
        await converse(line, said(0.0))
        await line.hang_up()

    async def stumble(self) -> None:
        """What goes wrong every day: an event that nobody understands, a model that is not there, a connection that is lost and resumed."""
        here, there = self.embedded.realtimes
        line = await Line.dial(here, extended=True)
        assert (await line.error(await line.send("no.such.event")))["code"] == "unknown_event_type"
        line.vanish()
        back = await line.resume(there)
        await back.hang_up()
        try:
            connect(f"{here}?model=nobody").close()
        except InvalidStatus as refused:
            assert json.loads(refused.response.body)["error"]["code"] == "model_not_found"
        else:
            raise AssertionError("a model that is not there was served")


def _address(child: Child) -> str:
    address: str = child.ready["http"]
    return address
