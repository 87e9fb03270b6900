"""The embedded profile in containers with keys and certificates, as docs/security.md says."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import parley
from tests.deploy.conftest import DRAIN_S
from tests.deploy.support.compose import ROOT, Project
from tests.deploy.support.engine import Engine
from tests.deploy.support.shell import Failed, run
from tests.support.proxy import free_port

pytestmark = pytest.mark.timeout(600)
QUESTION = Path(parley.__file__).parent / "assets" / "synthetic_question.wav"
PARLEY = Path(sys.executable).with_name("parley")
NOBODY = 10001
GUESSES = 200
"""Spread over two gateways, each of which takes 60 a minute from an address."""

ASK = """
import ssl, sys, urllib.request as url
headers = {"Authorization": f"Bearer {sys.argv[1]}", "Content-Type": "application/json"}
asked = url.Request("https://localhost:8080/v1/realtime/client_secrets", b"{}", headers)
url.urlopen(asked, context=ssl._create_unverified_context())
print("let in")
"""


def give(folder: Path) -> None:
    """To the user of the containers."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    run(ROOT / "deploy" / "dev-certs.sh", folder, "proxy")
    give(folder)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


def draw(keys: Path, name: str) -> str:
    """A key, as an operator makes it."""
    said = run(PARLEY, "keys", "add", "--tenant", "acme", "--id", name, "--file", keys / "keys.yaml")
    give(keys)
    return said.strip()


@pytest.fixture(scope="module")
def key(keys: Path) -> str:
    return draw(keys, "acme-web")


@pytest.fixture(scope="module")
def secured(engine: Engine, images: dict[str, str], certificates: Path, keys: Path, key: str) -> Iterator[Project]:
    files = [ROOT / "deploy" / f"compose.{name}.yml" for name in ("keys", "tls")]
    made = Project(engine, free_port(), DRAIN_S, files, {"PARLEY_KEYS": str(keys), "PARLEY_CERTIFICATES": str(certificates)})
    try:
        made.up()
        yield made
    finally:
        made("down", "--remove-orphans", timeout_s=120)


def trusting(certificates: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates / "http-ca.pem"))


async def status(secured: Project, certificates: Path, key: str) -> int:
    """Of an upgrade with this key; 101 where it was taken."""
    try:
        async with connect(
            f"wss://localhost:{secured.port}/v1/realtime", ssl=trusting(certificates), additional_headers={"Authorization": f"Bearer {key}"}
        ):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_a_conversation_is_spoken_over_tls_with_a_key(secured: Project, certificates: Path, key: str, tmp_path: Path) -> None:
    env = {**os.environ, "SSL_CERT_FILE": str(certificates / "http-ca.pem"), "PARLEY_API_KEY": key}
    said = run(PARLEY, "talk", QUESTION, "--url", f"https://localhost:{secured.port}", "--output", tmp_path / "reply.wav", env=env)
    assert "capital of France" in said and "answered with" in said


async def test_who_has_no_key_and_who_speaks_no_tls_is_kept_out(secured: Project, certificates: Path) -> None:
    assert await status(secured, certificates, "pk_of_nobody") == 401
    async with httpx.AsyncClient() as plain:
        with pytest.raises(httpx.HTTPError):
            await plain.get(f"http://localhost:{secured.port}/health")


def test_a_stage_answers_nobody_without_a_certificate(secured: Project) -> None:
    for service in ("vad", "embedded-thinker", "embedded-talker", "embedded-vocoder"):
        with pytest.raises(Failed, match="exited with 3"):
            secured("exec", "-T", "embedded-gateway", "parley", "probe", f"grpc://{service}:50051/ready")


async def test_a_key_that_is_revoked_on_the_host_ends_what_it_began_in_the_container(
    secured: Project, certificates: Path, keys: Path, key: str
) -> None:
    second = draw(keys, "acme-phone")
    async with asyncio.timeout(60):
        while await status(secured, certificates, second) != 101:  # noqa: ASYNC110  what the gateway reads, and when, is what is asked
            await asyncio.sleep(0.2)
        url = f"wss://localhost:{secured.port}/v1/realtime"
        async with connect(url, ssl=trusting(certificates), additional_headers={"Authorization": f"Bearer {second}"}) as line:
            await asyncio.to_thread(run, PARLEY, "keys", "revoke", "acme-phone", "--file", keys / "keys.yaml")
            with pytest.raises(ConnectionClosed):
                while True:
                    await line.recv()
            assert line.close_code == 1008
    assert await status(secured, certificates, second) == 401
    assert await status(secured, certificates, key) == 101


async def test_one_who_guesses_shuts_out_nobody_but_itself(secured: Project, certificates: Path, key: str) -> None:
    """The proxy tells gateways who is there, and believes nobody who tells it."""
    lie = {"Authorization": "Bearer pk_guessed"}
    url = f"https://localhost:{secured.port}/v1/realtime/client_secrets"
    async with httpx.AsyncClient(verify=trusting(certificates)) as guesser:
        codes = [
            (await guesser.post(url, json={}, headers=lie | {"X-Forwarded-For": f"203.0.113.{n}", "Connection": "close"})).status_code
            for n in range(GUESSES)
        ]
    assert set(codes) == {401, 429} and codes[-1] == 429
    assert await status(secured, certificates, key) == 429
    # the proxy's own container has another address
    assert "let in" in secured("exec", "-T", "proxy", "python3", "-c", ASK, key)
