"""`parley costs`, round by round: what pods hold becomes what they cost, against real /metrics and an API over TLS."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from parley.costs import Controller, Options, Reading, asking, controller, cost, pause_s, reading
from stage_kit.http import HttpServer
from stage_kit.metrics import Metrics
from tests.support.pods_api import PodsApi, pod

SELECTOR = "app.kubernetes.io/instance=t,app.kubernetes.io/component in (gateway,thinker)"


class Service:
    """The /metrics of a stage service, served as it serves them."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._server = HttpServer("127.0.0.1:0", self.metrics.registry, lambda _: True)
        self.port = int(self._server.address.rpartition(":")[2])

    def hold(self, sessions: int, stage: str = "asr", *, draining: bool = False) -> None:
        self.metrics.sessions.labels(stage).set(sessions)
        self.metrics.draining.labels(stage).set(draining)

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def service() -> Iterator[Callable[[int], Service]]:
    """Makes one that holds so many sessions."""
    made: list[Service] = []

    def make(sessions: int) -> Service:
        made.append(Service())
        made[-1].hold(sessions)
        return made[-1]

    yield make
    for each in made:
        each.stop()


Make = Callable[[int], Service]


@pytest.fixture
def costs(api: PodsApi, account: Path) -> Controller:
    return Controller(Options(SELECTOR, api.url, account))


@pytest.mark.parametrize(("sessions", "costs"), [(0, 0), (1, 4), (4, 4), (5, 8), (8, 8), (9, 12), (140, 140), (2**31 - 1, 2**31 - 1)])
def test_a_cost_is_the_upper_end_of_its_step(sessions: int, costs: int) -> None:
    assert cost(sessions, 4) == costs
    assert cost(sessions, 1) == sessions


def test_what_a_process_holds_is_read_out_of_its_metrics() -> None:
    gateway = b"""# HELP parley_gateway_sessions Sessions held, by state
parley_gateway_sessions{state="live"} 3.0
parley_gateway_sessions{state="detached"} 2.0
parley_gateway_sessions{state="draining"} 1.0
parley_gateway_sessions_opening 50.0
parley_gateway_draining 0.0
"""
    stage = b"""parley_stage_sessions{stage="asr"} 5.0
parley_stage_sessions{stage="llm"} 7.0
parley_stage_sessions_detached{stage="llm"} 90.0
"""
    assert reading(gateway) == Reading(6, False)
    assert reading(stage) == Reading(7, False), "a conversation has a place at each stage"
    assert reading(stage + b'parley_stage_draining{stage="asr"} 0.0\nparley_stage_draining{stage="llm"} 1.0\n') == Reading(7, True)


@pytest.mark.parametrize("said", ["", "up 1", "parley_stage_slots 4", *(f"parley_stage_sessions {it}" for it in ("NaN", "Inf", "-1", "x"))])
def test_what_tells_no_sessions_is_no_reading(said: str) -> None:
    with pytest.raises(ValueError):
        reading(said.encode())


async def test_pods_cost_what_they_hold(api: PodsApi, costs: Controller, service: Make) -> None:
    api.put(*(pod(f"p{held}", [service(held).port], component="thinker") for held in (0, 3, 9)))
    await costs.round()
    assert api.costs() == {"p3": "4", "p9": "12"}, "none is a cost of nothing already"


async def test_a_cost_is_written_when_its_step_changes_and_only_then(api: PodsApi, costs: Controller, service: Make) -> None:
    one = service(3)
    api.put(pod("a", [one.port]))
    for held, written in ((3, 1), (4, 1), (1, 1), (5, 2), (8, 2), (0, 3), (0, 3), (2, 4)):
        one.hold(held)
        await costs.round()
        assert len(api.patched) == written, held
    assert [value for _, value in api.patched] == ["4", "8", "0", "4"]


async def test_a_pod_of_several_containers_is_as_full_as_the_fullest(api: PodsApi, costs: Controller, service: Make) -> None:
    thinker, talker, vocoder = service(2), service(6), service(0)
    api.put(pod("native", [thinker.port, talker.port, vocoder.port]))
    await costs.round()
    assert api.costs() == {"native": "8"}

    vocoder.stop()
    talker.hold(1)
    await costs.round()
    assert api.costs() == {"native": "8"}, "what the third holds nobody knows"


async def test_a_pod_that_does_not_answer_keeps_its_cost_and_is_named_once(api: PodsApi, costs: Controller, service: Make) -> None:
    mute, other = service(7), service(1)
    api.put(pod("mute", [mute.port]), pod("other", [other.port]), pod("starting", [1], conditions=[]))
    with capture_logs() as lines:
        await costs.round()
        mute.stop()
        other.hold(5)
        await costs.round()
        await costs.round()
    assert api.costs() == {"mute": "8", "other": "8"}
    assert [(line["log_level"], line["pod"]) for line in lines if line["log_level"] != "debug"] == [("warning", "mute")], (
        "nobody expects answers of one that starts"
    )


async def test_a_pod_that_drains_keeps_its_cost(api: PodsApi, costs: Controller, service: Make) -> None:
    leaving = service(9)
    api.put(pod("leaving", [leaving.port]))
    await costs.round()
    leaving.hold(0, draining=True)
    await costs.round()
    assert api.costs() == {"leaving": "12"}
    leaving.hold(0)
    await costs.round()
    assert api.costs() == {"leaving": "0"}, "it began anew"


async def test_only_pods_of_the_release_that_run_and_stay_are_asked(api: PodsApi, costs: Controller, service: Make) -> None:
    port = service(5).port
    leaving = pod("leaving", [port])
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stranger = pod("stranger", [port])
    stranger["metadata"]["labels"]["app.kubernetes.io/instance"] = "another"
    api.put(leaving, stranger, pod("store", [port], component="valkey"), pod("over", [port], phase="Succeeded"))
    api.put(pod("pending", [port], phase="Pending"), pod("mine", [port]))
    await costs.round()
    assert api.costs() == {"mine": "8"}


async def test_a_pod_without_a_port_of_metrics_or_an_address_is_left(api: PodsApi, costs: Controller, service: Make) -> None:
    api.put(pod("portless"), pod("nowhere", [service(5).port], ip=""), pod("mine", [service(5).port]))
    await costs.round()
    assert api.costs() == {"mine": "8"}


async def test_every_page_is_read(api: PodsApi, account: Path, service: Make) -> None:
    api.put(*(pod(f"p{number}", [service(number).port]) for number in range(5)))
    await Controller(Options(SELECTOR, api.url, account, step=1, page=2)).round()
    assert api.costs() == {f"p{number}": str(number) for number in range(1, 5)}
    assert [verb for verb, _ in api.asked].count("list") == 3


async def test_so_many_are_written_in_a_round_and_not_one_more(
    api: PodsApi, costs: Controller, service: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MOST_WRITES", 2)
    api.put(*(pod(f"p{held}", [service(held).port]) for held in (4, 40, 12)))
    await costs.round()
    assert api.patched == [("p40", "40"), ("p12", "12")], "what is furthest from the truth goes first"
    await costs.round()
    assert api.patched[2:] == [("p4", "4")]


async def test_what_was_written_by_hand_is_put_right(api: PodsApi, costs: Controller, service: Make) -> None:
    texts = {"empty": "40", "odd": "many", "same": "4", "signed": "+4", "huge": "9" * 5_000, "beyond": str(2**31)}
    by_hand = {name: pod(name, [service(0 if name == "empty" else 3).port]) for name in texts}
    for name, said in texts.items():
        by_hand[name]["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": said, "kept": "yes"}
    api.put(*by_hand.values())
    await costs.round()
    assert api.costs() == dict.fromkeys(by_hand, "4") | {"empty": "0"}
    assert len(api.patched) == 5 and all(each["metadata"]["annotations"]["kept"] == "yes" for each in api.pods.values())


class Odd(BaseHTTPRequestHandler):
    """A server at a pod's port that is none of ours."""

    server: OddServer

    def do_GET(self) -> None:
        self.send_response(self.server.code)
        self.send_header("Location", "/metrics")
        self.send_header("Content-Length", str(len(self.server.body) + 1_000_000 * self.server.lasts))
        self.end_headers()
        self.wfile.write(self.server.body)
        while self.server.lasts and not self.server.stopped.wait(0.02):
            self.wfile.write(b"#")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class OddServer(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, code: int, body: bytes, lasts: bool) -> None:
        super().__init__(("127.0.0.1", 0), Odd)
        self.code, self.body, self.lasts, self.stopped = code, body, lasts, threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked has gone."""


HELD = b"parley_stage_sessions 9\n"
ODD = {
    "an error": (500, HELD, False),
    "a way elsewhere": (302, HELD, False),
    "another program": (200, b"<html>", False),
    "more than there can be": (200, HELD + b"#" * asking.ANSWER_BYTES, False),
    "no end": (200, HELD, True),
}


@pytest.mark.parametrize("how", ODD.values(), ids=ODD)
async def test_an_odd_answer_is_none(
    api: PodsApi, costs: Controller, service: Make, monkeypatch: pytest.MonkeyPatch, how: tuple[int, bytes, bool]
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 1.0)
    odd = OddServer(*how)
    threading.Thread(target=odd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        api.put(pod("odd", [odd.server_port]), pod("mine", [service(5).port]))
        await costs.round()
    finally:
        odd.stopped.set()
        odd.shutdown()
        odd.server_close()
    assert api.costs() == {"mine": "8"}


async def test_a_pod_of_ipv6_is_asked(api: PodsApi, costs: Controller, service: Make) -> None:
    there = service(9).port

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", there)
        before.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await behind.read())
        for end in (before, writer):
            end.close()

    try:
        server = await asyncio.start_server(join, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with server:
        api.put(pod("six", [server.sockets[0].getsockname()[1]], ip="::1"))
        await costs.round()
    assert api.costs() == {"six": "12"}


async def test_many_silent_pods_leave_time_to_write_what_the_others_said(
    api: PodsApi, costs: Controller, service: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another they would take longer than a round, and nothing would ever be written."""
    monkeypatch.setattr(asking, "ALL_ANSWERS_S", 0.5)
    monkeypatch.setattr(asking, "AT_ONCE", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api.put(*(pod(f"silent{number}", [silent.getsockname()[1]]) for number in range(3)), pod("mine", [service(5).port]))
        with capture_logs() as lines:
            for _ in range(20):
                await costs.round()
                if api.costs():
                    break
    assert api.costs() == {"mine": "8"}
    assert {line["event"] for line in lines if line["log_level"] == "warning"} == {"pods were not asked for want of time"}, (
        "whom nobody could wait for is not said to be mute"
    )


def test_pauses_vary_a_little_and_grow_with_failures_as_far_as_five_minutes() -> None:
    assert [pause_s(30, 0, None, chance) for chance in (0, 0.5, 1)] == pytest.approx([27, 30, 33])
    assert [pause_s(30, failures, None, 0.5) for failures in (1, 2, 3, 4, 99)] == pytest.approx([60, 120, 240, 300, 300])
    assert pause_s(600, 5, None, 0.5) == pytest.approx(600)
    assert pause_s(30, 1, 77, 0.5) == 77
    assert pause_s(30, 1, 10**9, 0.5) == 300
