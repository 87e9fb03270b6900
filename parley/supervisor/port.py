"""Whether the gateway's port is free, asked before anything is started."""

from __future__ import annotations

import errno
import socket

from .errors import BusyPort


def check_port(host: str, port: int) -> None:
    """Raises BusyPort when nobody could listen there now. Port 0 is always free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # as the gateway's own listener does: connections in TIME_WAIT must not look busy
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                another = f"make run PORT={port + 1}, or parley up --port {port + 1}"
                raise BusyPort(f"port {port} on {host} is in use by another process; choose another: {another}") from error
            raise BusyPort(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
