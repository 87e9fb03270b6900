"""Resume tokens: the client has the token, Redis its digest, and nothing else has either."""

from __future__ import annotations

import hashlib
import re
import secrets

_TOKEN_BYTES = 32
_DIGEST = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """256 random bits in url-safe base64, 43 characters."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def digest(token: str) -> str:
    """SHA-256 of whatever text a client presents, 64 hexadecimal digits."""
    # A client's JSON may hold half a surrogate pair, and an encoding error would quote the token.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_digest(value: str) -> str:
    """The digest itself. Raises ValueError, above all for a token given in its place."""
    if not _DIGEST.fullmatch(value):
        raise ValueError("a token's digest has 64 hexadecimal digits")
    return value
