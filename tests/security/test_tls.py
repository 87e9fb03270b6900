"""TLS towards clients, and mTLS between processes, with the certificates of deploy/dev-certs.sh."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from openai import AsyncOpenAI
from parley_stage.v1 import stage_pb2, stage_pb2_grpc
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidMessage

from tests.e2e.conftest import MakeHouse
from tests.failover.line import until
from tests.security.conftest import GOOD, bearer
from tests.support.house import SERVICES, House
from tests.support.process import ROOT, Child

RELOAD_S = 0.1


def make_certificates(folder: Path) -> Path:
    subprocess.run(["sh", str(ROOT / "deploy" / "dev-certs.sh"), str(folder), "parley.test"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def of(certificates: Path, name: str) -> dict[str, str]:
    """The settings with which a process shows its certificate to others."""
    files = {"CERTIFICATE": f"{name}.pem", "KEY": f"{name}.key", "CA": "ca.pem"}
    return {f"PARLEY_TLS_{kind}": str(certificates / file) for kind, file in files.items()}


@pytest.fixture(scope="module")
def house(make_house: MakeHouse, certificates: Path) -> House:
    """Everything encrypted: each process with a certificate of its own."""
    shown = {"PARLEY_HTTP_TLS_CERTIFICATE": str(certificates / "http.pem"), "PARLEY_HTTP_TLS_KEY": str(certificates / "http.key")}
    gateway = {
        **of(certificates, "gateway"),
        **shown,
        "PARLEY_TLS_SERVER_NAME": "stage.parley",
        "PARLEY_API_KEYS": GOOD,
        "PARLEY_HTTP_TLS_RELOAD_S": str(RELOAD_S),
    }
    return make_house(gateway=gateway, service_env={name: of(certificates, name) for name in SERVICES})


def trusting(certificates: Path, authority: str = "http-ca") -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates / f"{authority}.pem")


def _wss(house: House) -> str:
    return house.realtime.replace("ws:", "wss:")


async def test_a_conversation_over_tls_and_mtls(house: House, certificates: Path) -> None:
    async with connect(_wss(house), ssl=trusting(certificates), **bearer(GOOD)) as socket:
        await socket.send(json.dumps({"type": "response.create", "response": {"instructions": "words=1", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}}))  # fmt: skip
        async with asyncio.timeout(20):
            while (event := json.loads(await socket.recv()))["type"] != "response.done":
                pass
        assert event["response"]["status"] == "completed"


async def test_the_openai_client_over_tls(house: House, certificates: Path) -> None:
    async with (
        AsyncOpenAI(api_key=GOOD, websocket_base_url=house.websocket.replace("ws:", "wss:")) as openai,
        openai.realtime.connect(model="parley-embedded", websocket_connection_options={"ssl": trusting(certificates)}) as connection,
    ):
        assert (await connection.recv()).type == "session.created"


async def test_who_trusts_another_authority_or_speaks_plainly_gets_nothing(house: House, certificates: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        async with connect(_wss(house), ssl=trusting(certificates, "ca"), **bearer(GOOD)):
            pass
    with pytest.raises((InvalidMessage, EOFError, ConnectionError)):
        async with connect(house.realtime, **bearer(GOOD)):
            pass


async def test_old_tls_is_refused(house: House, certificates: Path) -> None:
    context = trusting(certificates)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    async with connect(_wss(house), ssl=context, **bearer(GOOD)) as socket:
        assert isinstance(socket, ClientConnection)
    context.set_ciphers("ECDHE-ECDSA-AES256-SHA:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with connect(_wss(house), ssl=context, **bearer(GOOD)):
            pass


async def _described(house: House, certificates: Path, name: str | None) -> bool:
    """Whether the detector's service answers somebody who shows this certificate."""
    authority = (certificates / "ca.pem").read_bytes()
    key, shown = ((certificates / f"{name}.{kind}").read_bytes() for kind in ("key", "pem")) if name else (None, None)
    credentials = grpc.ssl_channel_credentials(authority, key, shown)
    options = [("grpc.ssl_target_name_override", "stage.parley")]
    async with grpc.aio.secure_channel(house.services["vad"].ready["grpc"], credentials, options) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            card = await stage_pb2_grpc.StageStub(channel).Describe(stage_pb2.DescribeRequest(), timeout=20)
            return bool(card.service == "vad")
    return False


@pytest.mark.parametrize(
    ("name", "answered"),
    [("gateway", True), (None, False), ("http", False), ("talker", False)],
    ids=["a gateway", "no certificate", "the one towards clients", "another service"],
)
async def test_a_service_answers_gateways_alone(house: House, certificates: Path, name: str | None, answered: bool) -> None:
    assert await _described(house, certificates, name) is answered


async def test_a_renewed_certificate_is_shown_without_a_restart_and_a_broken_one_is_not(house: House, certificates: Path) -> None:
    host, _, port = house.gateway.ready["http"].rpartition(":")

    def shown() -> str:
        return ssl.get_server_certificate((host, int(port)), ca_certs=str(certificates / "http-ca.pem"))

    async with connect(_wss(house), ssl=trusting(certificates), **bearer(GOOD)) as before:
        first, key = await asyncio.to_thread(shown), (certificates / "http.key").read_text()
        (certificates / "http.key").write_text("no key")

        async def was_told() -> bool:
            return "certificate not renewed" in house.gateway.log.read_text()

        await until(was_told)
        assert await asyncio.to_thread(shown) == first
        (certificates / "http.key").write_text(key)
        await asyncio.to_thread(make_certificates, certificates)

        async def is_renewed() -> bool:
            return await asyncio.to_thread(shown) != first

        await until(is_renewed)
        await before.send('{"type": "response.cancel", "event_id": "e"}')
        assert "error" in {json.loads(await before.recv())["type"] for _ in range(2)}


async def test_health_over_tls(house: House, certificates: Path) -> None:
    def ask() -> int:
        url = house.http.replace("http:", "https:") + "/health"
        with urllib.request.urlopen(url, timeout=10, context=trusting(certificates)) as answer:
            return int(answer.status)

    assert await asyncio.to_thread(ask) == 200


def test_a_pair_that_does_not_fit_is_said_in_one_line_at_the_start(certificates: Path, tmp_path: Path) -> None:
    env = {"PARLEY_HTTP_TLS_CERTIFICATE": str(certificates / "http.pem"), "PARLEY_HTTP_TLS_KEY": str(certificates / "gateway.key")}
    gateway = Child("gateway", ["-m", "gateway"], {**env, "PARLEY_HTTP_BIND": "127.0.0.1:0"}, tmp_path)
    gateway.start()
    assert gateway.wait(30) == 1
    (line,) = gateway.tail().strip().splitlines()
    assert line.startswith("gateway: TLS certificate or key not usable")


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(certificates: Path, tmp_path: Path) -> None:
    """Not even at a terminal: a gateway that waits there serves nobody."""
    shown, locked = certificates / "http.pem", tmp_path / "locked.key"
    lock = ["openssl", "ec", "-in", str(certificates / "http.key"), "-aes128", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True)
    terminal = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    check = f"from pathlib import Path; from gateway import tls; tls.check(Path({str(shown)!r}), Path({str(locked)!r}))"
    command = f"{terminal}; {check}"
    ours, theirs = pty.openpty()
    try:
        refused = subprocess.run(
            [sys.executable, "-c", command],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=ROOT,
            timeout=30,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"TLS certificate or key not usable" in refused.stderr.splitlines()[-1]


def test_an_authority_that_ends_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYS", "1")
    ended = (make_certificates(tmp_path) / "ca.pem").read_bytes()
    monkeypatch.setenv("DAYS", "90")
    made = (make_certificates(tmp_path) / "ca.pem").read_bytes()
    assert made != ended and (make_certificates(tmp_path) / "ca.pem").read_bytes() == made


def test_a_key_file_that_cannot_be_read_is_said_in_one_line_at_the_start(house: House, tmp_path: Path) -> None:
    env = {"PARLEY_KEYS_FILE": str(tmp_path / "nowhere"), "PARLEY_HTTP_BIND": "127.0.0.1:0", "PARLEY_REDIS_URL": house.valkey.url}
    gateway = Child("gateway", ["-m", "gateway"], env, tmp_path)
    gateway.start()
    assert gateway.wait(30) == 1
    assert gateway.tail().strip().splitlines() == [f"gateway: the key file {tmp_path / 'nowhere'}: No such file or directory"]
