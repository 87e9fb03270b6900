"""Which web pages may connect. A browser says where a page is from, and a page cannot make it lie; everything else says nothing."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

ANY = "*"
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Origins:
    def __init__(self, allowed: str) -> None:
        """allowed: comma-separated origins, `*` for any; empty: only pages of the host that is asked. Raises ValueError."""
        names = [name.strip() for name in allowed.split(",") if name.strip()]
        self._any = ANY in names
        self._allowed = frozenset(_listed(name) for name in names if name != ANY)

    def allow(self, origin: str | None, host: str | None) -> bool:
        """origin, host: the headers of that name; without an origin it is no page that asks."""
        if origin is None or self._any:
            return True
        asking = _canonical(origin)
        if asking is None:
            return False
        if self._allowed:
            return asking in self._allowed
        scheme, _, _ = asking.partition("://")
        return host is not None and asking == _canonical(f"{scheme}://{host}")


def _listed(name: str) -> str:
    """As browsers write it: a pattern, or a name that is not in its ASCII form, would match nothing."""
    origin = _canonical(name.removesuffix("/"))
    if origin is None or not _HOST.fullmatch(re.sub(r":\d+$", "", origin.partition("://")[2])):
        raise ValueError("an origin is a scheme and a host, such as https://app.example.com or https://xn--bcher-kva.example")
    return origin


def _canonical(origin: str) -> str | None:
    """In lower case and without the scheme's own port; None for what is no origin."""
    try:
        parts = urlsplit(origin.lower())
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if port in (None, _PORTS.get(parts.scheme)) else f"{parts.scheme}://{host}:{port}"
