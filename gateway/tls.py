"""TLS towards clients. A renewed certificate is taken without a restart: connections from then on are shown it."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import structlog

log = structlog.get_logger()
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good."""


def load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Raises ValueError with one line; the context is then as it was."""
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks whoever sits at the terminal, and waits
    except (OSError, ssl.SSLError) as failure:
        raise ValueError(f"TLS certificate or key not usable: {getattr(failure, 'reason', None) or failure.strerror}") from None


def check(certificate: Path, key: Path) -> None:
    """Raises ValueError when they cannot be used together."""
    load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


async def watch(context: ssl.SSLContext, certificate: Path, key: Path, every_s: float) -> None:
    """Runs until it is cancelled. A pair that does not fit, as while one of the two is being written, is tried again."""
    shown = _stamps(certificate, key)
    while True:
        await asyncio.sleep(every_s)
        if (found := _stamps(certificate, key)) == shown:
            continue
        try:
            # looked at apart first: a context that took half a pair would refuse everybody
            await asyncio.to_thread(check, certificate, key)
            load(context, certificate, key)
        except ValueError as failure:
            log.error("certificate not renewed", why=str(failure))
        else:
            shown = found
            log.info("certificate renewed")


def _stamps(*paths: Path) -> list[tuple[int, int] | None]:
    return [(found.st_mtime_ns, found.st_ino) if (found := _stat(path)) else None for path in paths]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
