"""Between machines, gateways and stages show each other certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc
import pytest
from parley_stage.v1 import stage_pb2

from gateway.pool import StagePool
from gateway.settings import Settings
from stage_kit import Service
from stage_kit import Settings as KitSettings
from stage_kit.scripted import engines


def _openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, one.pem and one.key, for the name stage.parley."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "rsa:2048", "-nodes")
    _openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=parley test", cwd=folder)
    _openssl("req", *key, "-keyout", "one.key", "-out", "one.csr", "-subj", "/CN=stage.parley", cwd=folder)
    (folder / "san").write_text("subjectAltName=DNS:stage.parley")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    _openssl("x509", "-req", "-in", "one.csr", *signed, "-out", "one.pem", cwd=folder)
    return folder


def _gateway(folder: Path, **changes: str) -> Settings:
    files = {"tls_certificate": folder / "one.pem", "tls_key": folder / "one.key", "tls_ca": folder / "ca.pem"}
    return Settings(**{**files, "tls_server_name": "stage.parley", **changes})  # type: ignore[arg-type]


async def test_a_gateway_with_a_certificate_is_served_and_one_without_is_not(certificates: Path) -> None:
    settings = KitSettings(
        tls_certificate=certificates / "one.pem", tls_key=certificates / "one.key", tls_ca=certificates / "ca.pem"
    )  # fmt: skip
    service = Service("vad", engines("vad", 4), settings)
    await service.start()
    try:
        trusted, stranger = StagePool(_gateway(certificates).tls()), StagePool()
        card = await trusted.stub(service.address).Describe(stage_pb2.DescribeRequest(), timeout=10)
        assert card.service == "vad"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stranger.stub(service.address).Describe(stage_pb2.DescribeRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await trusted.close()
        await stranger.close()
    finally:
        await service.stop()


def test_half_a_certificate_is_refused(certificates: Path) -> None:
    with pytest.raises(ValueError, match="tls_certificate, tls_key and tls_ca"):
        Settings(tls_key=certificates / "one.key").tls()
    assert Settings().tls() is None
