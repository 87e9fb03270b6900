"""The talk page: static files, read once, served at `/`."""

from __future__ import annotations

from importlib import resources

from msgspec import Struct

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self)",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Sent with every file of the page."""


class Asset(Struct, frozen=True):
    body: bytes
    media_type: str


def load_assets() -> dict[str, Asset]:
    """URL path -> file; the page itself is at "/", everything else at "/<file name>"."""
    assets = {}
    for entry in resources.files(__name__).iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _MEDIA_TYPES:
            path = "/" if entry.name == "index.html" else f"/{entry.name}"
            assets[path] = Asset(entry.read_bytes(), _MEDIA_TYPES[suffix])
    return assets
