"""Whether a process serves: what health checks of containers run. Needs the standard library alone, and grpcio for grpc:// addresses.

A program, too: `python -I probe.py URL`, since importing the package would take longer than asking.
"""

from __future__ import annotations

import argparse
import http.client
import sys
from enum import IntEnum
from urllib.parse import SplitResult, urlsplit

TIMEOUT_S = 3.0
HOW = "http://HOST:PORT/PATH (2xx serves), or grpc://HOST:PORT/NAME for the state that a process gives NAME (startup, ready, live)"


class Answer(IntEnum):
    """Also the exit code of a probe. 2 is what programs say of wrong arguments."""

    SERVES = 0
    DOES_NOT = 1
    NONE = 3


class BadAddress(ValueError):
    """Nobody can be asked there; the message says why in one line."""


def probe(url: str, timeout_s: float = TIMEOUT_S) -> tuple[Answer, str]:
    """Asks once. Returns what came, and one line for people. Raises BadAddress."""
    address = urlsplit(url)
    try:
        known = address.scheme in ("http", "https", "grpc") and bool(address.hostname and address.port)
    except ValueError:
        known = False
    if not known:
        raise BadAddress(f"{url!r} is no address: {HOW}")
    return _grpc(address, timeout_s) if address.scheme == "grpc" else _http(address, timeout_s)


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="parley probe", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("url", help=HOW)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S)
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        answer, said = probe(asked.url, asked.timeout_s)
    except BadAddress as error:
        parser.error(str(error))
    if not asked.quiet:
        print(said)
    return int(answer)


def _http(address: SplitResult, timeout_s: float) -> tuple[Answer, str]:
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=timeout_s)
    try:
        connection.request("GET", f"{address.path or '/'}{'?' if address.query else ''}{address.query}")
        response = connection.getresponse()
        words = response.read(200).decode(errors="replace").split()
    except (OSError, http.client.HTTPException) as error:
        return Answer.NONE, f"no answer: {error or type(error).__name__}"
    finally:
        connection.close()
    serves = 200 <= response.status < 300
    return Answer.SERVES if serves else Answer.DOES_NOT, f"{response.status} {' '.join(words)}".strip()


def _grpc(address: SplitResult, timeout_s: float) -> tuple[Answer, str]:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"{_host(address)}:{address.port}") as channel:
        try:
            asked = health_pb2.HealthCheckRequest(service=address.path.strip("/"))
            status = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=timeout_s).status
        except grpc.RpcError as error:
            known = error.code() is grpc.StatusCode.NOT_FOUND
            return (
                (Answer.DOES_NOT, f"{address.path.strip('/')} is not known there")
                if known
                else (Answer.NONE, f"no answer: {error.details()}")
            )
    serves = status == health_pb2.HealthCheckResponse.SERVING
    return Answer.SERVES if serves else Answer.DOES_NOT, str(health_pb2.HealthCheckResponse.ServingStatus.Name(status)).lower()


def _host(address: SplitResult) -> str:
    host = address.hostname or ""
    return f"[{host}]" if ":" in host else host


if __name__ == "__main__":
    sys.exit(main())
