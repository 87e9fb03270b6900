"""`parley costs` and an API that refuses, stalls or is somebody else: the next round goes on, and no log tells the token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from parley.costs import Controller, Options, api_of_this_pod, cluster
from stage_kit.http import HttpServer
from tests.support.pods_api import NAMESPACE, TOKEN, Fault, PodsApi, certificates, pod

SELECTOR = "app.kubernetes.io/instance=t"
SECRET = "told-by-the-api"


@pytest.fixture
def port() -> Iterator[int]:
    """Of a process that holds five sessions."""
    registry = CollectorRegistry()
    Gauge("parley_stage_sessions", "", registry=registry).set(5)
    server = HttpServer("127.0.0.1:0", registry, lambda _: True)
    yield int(server.address.rpartition(":")[2])
    server.stop()


@pytest.fixture
def costs(api: PodsApi, account: Path) -> Controller:
    return Controller(Options(SELECTOR, api.url, account))


async def failing(costs: Controller) -> tuple[float, dict[str, Any]]:
    """A round that fails: the pause after it, and what is logged of it."""
    with capture_logs() as lines:
        pause = await costs.round()
    assert not {TOKEN, SECRET} & set(json.dumps(lines).replace('"', " ").replace("/", " ").split())
    (line,) = [line for line in lines if line["event"] == "costs not kept"]
    return pause, dict(line)


async def succeeding(costs: Controller) -> None:
    with capture_logs() as lines:
        await costs.round()
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["costs are kept again"]


STATUS = json.dumps({"kind": "Status", "reason": "Forbidden", "message": f"{SECRET} {TOKEN}"}).encode()
FAULTS = {
    "401": (Fault(401, body=STATUS), 401),
    "403": (Fault(403, body=STATUS), 403),
    "404": (Fault(404), 404),
    "409": (Fault(409), 409),
    "410, a page that is no more": (Fault(410), 410),
    "429": (Fault(429, {"Retry-After": "1"}), 429),
    "500": (Fault(500, body=SECRET.encode()), 500),
    "503": (Fault(503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}), 503),
    "a way elsewhere": (Fault(307, {"Location": "https://127.0.0.1:1/"}), 307),
    "a broken connection": (Fault(), 0),
    "no JSON": (Fault(200, body=SECRET.encode()), 0),
    "bytes": (Fault(200, body=b'{"items": [{"metadata": {"name": "\xff"}}]}'), 0),
    "JSON without a bottom": (Fault(200, body=b'{"x":' + b"[" * 200_000), 0),
    "a refusal without a bottom": (Fault(500, body=b'{"x":' + b"[" * 200_000), 500),
    "what is no gzip": (Fault(200, {"Content-Encoding": "gzip"}, b"{}"), 0),
    "JSON of something else": (Fault(200, body=b'{"items": [{"metadata": {"name": 7}}]}'), 0),
}


@pytest.mark.parametrize(("fault", "code"), FAULTS.values(), ids=FAULTS)
async def test_a_list_that_fails_is_logged_and_the_next_round_goes_on(
    api: PodsApi, costs: Controller, port: int, fault: Fault, code: int
) -> None:
    api.put(pod("a", [port]))
    api.faults["list"].append(fault)
    pause, line = await failing(costs)
    assert (line["code"], line["failures"], line["log_level"]) == (code, 1, "warning")
    assert 54 <= pause <= 66, "twice as long as between two good ones"
    assert api.costs() == {}
    await succeeding(costs)
    assert api.costs() == {"a": "8"}


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(200, drip=True)], ids=["nothing", "no end"])
@pytest.mark.parametrize("verb", ["list", "patch"])
async def test_an_api_that_does_not_come_to_an_end_is_given_up(
    api: PodsApi, costs: Controller, port: int, monkeypatch: pytest.MonkeyPatch, verb: str, fault: Fault
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_S", 0.3)
    api.put(pod("a", [port]))
    api.faults[verb].append(fault)
    _, line = await failing(costs)
    assert line["code"] == 0
    monkeypatch.undo()
    await succeeding(costs)
    assert api.costs() == {"a": "8"}


async def test_a_list_that_never_ends_is_left_after_a_while(api: PodsApi, costs: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.costs.controller.ROUND_S", 0.5)
    more = json.dumps({"items": [], "metadata": {"continue": "again"}}).encode()
    api.faults["list"].extend(Fault(200, body=more) for _ in range(100_000))
    _, line = await failing(costs)
    assert line["why"] == "the round took too long"


async def test_as_long_as_the_api_asks_for_nobody_asks(api: PodsApi, costs: Controller) -> None:
    api.faults["list"].extend([Fault(429, {"Retry-After": "123"}), Fault(429, {"Retry-After": "99999"})])
    assert (await failing(costs))[0] == 123
    assert (await failing(costs))[0] == 300


@pytest.mark.parametrize("code", [403, 404, 409, 422])
async def test_what_concerns_one_pod_holds_up_no_other(api: PodsApi, costs: Controller, port: int, code: int) -> None:
    api.put(*(pod(name, [port]) for name in "abc"))
    api.faults["patch"].append(Fault(code))
    with capture_logs() as lines:
        await costs.round()
    assert len(api.patched) == 2
    assert [line["code"] for line in lines if line["log_level"] == "warning"] == ([403] if code == 403 else [])
    await costs.round()
    assert api.costs() == dict.fromkeys("abc", "8")


@pytest.mark.parametrize("code", [401, 429, 500, 503])
async def test_what_concerns_the_api_ends_the_round(api: PodsApi, costs: Controller, port: int, code: int) -> None:
    api.put(*(pod(name, [port]) for name in "abc"))
    api.faults["patch"].append(Fault(code))
    assert (await failing(costs))[1]["code"] == code
    assert api.patched == []
    await succeeding(costs)
    assert api.costs() == dict.fromkeys("abc", "8")


async def test_a_pod_that_went_meanwhile_is_no_failure(api: PodsApi, costs: Controller, port: int) -> None:
    api.put(pod("gone", [port]), pod("here", [port]))
    api.faults["list"].append(Fault(200, body=json.dumps({"items": list(api.pods.values())}).encode()))
    del api.pods["gone"]
    with capture_logs() as lines:
        await costs.round()
    assert (api.costs(), [line for line in lines if line["log_level"] != "debug"]) == ({"here": "8"}, [])


async def test_without_the_right_to_patch_nothing_is_written(api: PodsApi, costs: Controller, port: int) -> None:
    api.put(pod("a", [port]))
    api.rights[TOKEN] = {"list"}
    _, line = await failing(costs)
    assert (line["code"], line["why"], api.costs()) == (403, "PATCH pods: Forbidden", {})


async def test_a_token_is_read_anew_for_each_round(api: PodsApi, costs: Controller, account: Path, port: int) -> None:
    api.put(pod("a", [port]))
    await costs.round()
    api.rights = {"second-token": {"list", "patch"}}
    assert (await failing(costs))[1]["code"] == 401
    (account / "token").write_text("second-token\n")
    await succeeding(costs)


@pytest.mark.parametrize("token", [None, "", "two\nlines", "schlüssel"], ids=["gone", "empty", "of two lines", "of other letters"])
async def test_a_token_that_is_none_fails_a_round(api: PodsApi, costs: Controller, account: Path, token: str | None) -> None:
    if token is None:
        (account / "token").unlink()
    else:
        (account / "token").write_text(token)
    await failing(costs)
    (account / "token").write_text(TOKEN)
    await succeeding(costs)


@pytest.mark.parametrize("namespace", [None, "", "vo\x01ice", "vo/../ice"], ids=["gone", "empty", "of odd letters", "elsewhere"])
async def test_a_namespace_that_is_none_fails_a_round(api: PodsApi, costs: Controller, account: Path, namespace: str | None) -> None:
    if namespace is None:
        (account / "namespace").unlink()
    else:
        (account / "namespace").write_text(namespace)
    await failing(costs)
    (account / "namespace").write_text(NAMESPACE)
    await succeeding(costs)


@pytest.mark.parametrize("authority", [None, "no certificate", "another"])
async def test_an_api_that_cannot_prove_itself_is_told_nothing(
    api: PodsApi, costs: Controller, account: Path, tmp_path: Path, authority: str | None
) -> None:
    if authority is None:
        (account / "ca.crt").unlink()
    elif authority == "another":
        (account / "ca.crt").write_bytes((certificates(tmp_path / "another") / "http-ca.pem").read_bytes())
    else:
        (account / "ca.crt").write_text(authority)
    await failing(costs)
    assert api.asked == []


async def test_an_api_of_another_name_is_told_nothing(api: PodsApi, account: Path) -> None:
    await failing(Controller(Options(SELECTOR, api.url.replace("127.0.0.1", "127.0.0.2"), account)))
    assert api.asked == []


async def test_a_proxy_of_the_environment_is_not_asked(api: PodsApi, costs: Controller, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    api.put(pod("a", [port]))
    await costs.round()
    assert api.costs() == {"a": "8"}


def test_the_api_is_where_a_pod_is_told() -> None:
    assert api_of_this_pod({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}) == "https://10.96.0.1:6443"
    assert api_of_this_pod({"KUBERNETES_SERVICE_HOST": "fd00::1"}) == "https://[fd00::1]:443"
    assert api_of_this_pod({}) == ""
