"""The bundled Valkey: its configuration and its commands, run by a real server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import AuthenticationError, Redis
from redis import ConnectionError as NoServer

from session_store import StoreSettings
from session_store.connection import Connection
from tests.helm.support.chart import Manifest, manifests, of_kind, refusal
from tests.support.valkey import find_server

SECRET = ('valkey={"auth": {"existingSecret": "store"}}', 'redis={"existingSecret": "store"}')
START_S = 20.0


def chart_store(*values: str) -> tuple[Manifest, str]:
    """(container, configuration)"""
    documents = manifests(*values)
    return (
        of_kind(documents, "StatefulSet")["valkey"]["spec"]["template"]["spec"]["containers"][0],
        of_kind(documents, "ConfigMap")["valkey"]["data"]["valkey.conf"],
    )


@contextmanager
def running(folder: Path, values: tuple[str, ...], password: str = "") -> Iterator[Path]:
    """The container's command, its configuration's folder and port moved; gives the socket."""
    container, config = chart_store(*values)
    socket, file = folder / "socket", folder / "valkey.conf"
    file.write_text(config.replace("dir /data", f"dir {folder}").replace("port 6379", f"port 0\nunixsocket {socket}"))
    command = [
        word.replace("/etc/valkey/valkey.conf", str(file)).replace("valkey-server", str(find_server())) for word in container["command"]
    ]
    env = {"PATH": "/usr/bin:/bin", "REDISCLI_AUTH": password}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as server:
        try:
            yield socket
        finally:
            server.terminate()
            assert server.wait(10) == 0, "SIGTERM reaches the server itself"


def ask(socket: Path, password: str | None = None) -> Redis:
    client, deadline = Redis(unix_socket_path=str(socket), password=password), time.monotonic() + START_S
    while True:
        try:
            client.ping()
            return client
        except NoServer as error:
            if isinstance(error, AuthenticationError) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def test_it_keeps_what_it_has_or_refuses(tmp_path: Path) -> None:
    with running(tmp_path, ('valkey={"maxmemory": "3mb"}',)) as socket, ask(socket) as client:
        assert client.config_get("maxmemory*")["maxmemory-policy"] == "noeviction"
        assert client.config_get("maxmemory")["maxmemory"] == str(3 * 1024 * 1024)
        assert client.config_get("save")["save"] == "" and client.config_get("appendonly")["appendonly"] == "no"


def test_with_aof_it_knows_what_it_knew(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path, ('valkey={"aof": true}',)) as socket, ask(socket) as client:
            count = client.incr("starts")
    assert count == 2


def test_its_password_comes_from_the_secret(tmp_path: Path) -> None:
    password = "much 'secret\\ \"$HOME`"
    with running(tmp_path, SECRET, password=password) as socket:
        with ask(socket, password) as client:
            assert client.ping()
        with pytest.raises(AuthenticationError), Redis(unix_socket_path=str(socket)) as stranger:
            stranger.ping()
    container, config = chart_store(*SECRET)
    assert "requirepass" not in config
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "password"}


def test_its_disk_belongs_to_it() -> None:
    documents = manifests('valkey={"aof": true}')
    claim = of_kind(documents, "PersistentVolumeClaim")["valkey"]

    volumes = of_kind(documents, "StatefulSet")["valkey"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in volumes
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"] and claim["spec"]["resources"]["requests"]["storage"] == "4Gi"
    assert not of_kind(manifests(), "PersistentVolumeClaim")


def test_another_configuration_restarts_it() -> None:
    def checksum(*values: str) -> str:
        return str(of_kind(manifests(*values), "StatefulSet")["valkey"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum('valkey={"maxmemory": "1gb"}')


@pytest.mark.parametrize(
    "url",
    [
        "redis://s:6379/2",
        "rediss://s:6380",
        "redis+sentinel://s1:26379,s2:26379,s3/parley",
        "rediss+sentinel://s:26379/parley/2?ssl_ca_certs=/etc/parley/redis-ca/ca.crt",
        "redis+cluster://s:6379",
        "rediss+cluster://s:6379?ssl_ca_certs=/etc/parley/redis-ca/ca.crt",
    ],
)
def test_what_the_store_supports_may_be_named(url: str) -> None:
    Connection(url, StoreSettings())
    documents = manifests(f'redis={{"url": "{url}"}}', 'valkey={"enabled": false}', 'networkPolicy={"redisPorts": [6379, 6380, 26379]}')
    assert not of_kind(documents, "StatefulSet")


@pytest.mark.parametrize("url", ["redis+sentinel://s:26379/", "sentinel://s:26379/parley", "unix:///run/s.sock", "http://s"])
def test_what_it_does_not_is_refused(url: str) -> None:
    assert "redis" in refusal(f'redis={{"url": "{url}"}}', 'valkey={"enabled": false}')
