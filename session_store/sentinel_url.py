"""`redis+sentinel://[user:password@]host[:port][,host[:port]...]/SERVICE[/DB][?option=value...]`, or `rediss+sentinel://`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from redis.asyncio.connection import parse_url

SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
PORT = 26379
_SERVICE = re.compile(r"[A-Za-z0-9._-]+")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@\s]+)(?::([0-9]{1,5}))?")
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}


class SentinelUrl(msgspec.Struct, frozen=True):
    """Where the sentinels are, what they call the primary, and how both are spoken to. With `tls` both speak TLS."""

    service: str
    sentinels: tuple[tuple[str, int], ...]
    tls: bool
    server_options: dict[str, Any]
    """Of a connection to the primary: user and password, number of the database, options of the URL."""
    sentinel_options: dict[str, Any]
    """Of a connection to a sentinel: its own user and password (`sentinel_username`, `sentinel_password`), and those of TLS."""

    def __repr__(self) -> str:
        return f"SentinelUrl({self.service!r}, {self.sentinels})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What tracebacks of the command line would show: msgspec's own tells the passwords."""
        return [("service", self.service), ("sentinels", self.sentinels)]


def parse_sentinel_url(url: str) -> SentinelUrl:
    """Raises ValueError, whose words may hold a piece of a password."""
    scheme, _, rest = url.partition("+sentinel://")
    rest, asked, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    service, _, database = path.partition("/")
    if "#" in url or not _SERVICE.fullmatch(service) or not (database.isdecimal() or not database):
        raise ValueError("no service, or no database")
    options: dict[str, Any] = dict(parse_url(f"{scheme}://{login}{at}sentinels/{database}{asked}{query}"))
    for name in ("host", "port", "path", "connection_class"):
        options.pop(name, None)
    own = {name: options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    if unknown := own.keys() - _OF_SENTINELS:
        raise ValueError(f"no such options: {unknown}")
    tls = scheme == "rediss"
    of_tls = {name: value for name, value in options.items() if name.startswith("ssl_")} if tls else {}
    sentinels = tuple(_address(host) for host in hosts.split(","))
    return SentinelUrl(service, sentinels, tls, options, {_OF_SENTINELS[name]: value for name, value in own.items()} | of_tls)


def _address(text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None or not 0 < (port := int(found[2] or PORT)) < 65536:
        raise ValueError("no address of a sentinel")
    return found[1].strip("[]"), port
