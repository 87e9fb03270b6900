"""Short-lived secrets for clients that no key is entrusted to: Redis has their digests, and forgets them when they expire."""

from __future__ import annotations

import msgspec

from session_store.connection import Connection
from session_store.errors import StoreError
from session_store.keys import check_id, secret_key


class ClientSecret(msgspec.Struct, frozen=True, kw_only=True):
    """What a secret stands for."""

    key_id: str
    """Of the key that made it, whose limits and revocation are the secret's; empty where no key is asked for."""
    tenant: str
    session: bytes = b""
    """What its sessions begin with, in the gateway's own form; empty: nothing."""

    def __repr__(self) -> str:
        return f"ClientSecret(key_id={self.key_id!r}, tenant={self.tenant!r})"


class ClientSecrets:
    """Every call raises StoreUnavailable when Redis does not answer in time, and StoreError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, secret_digest: str, stands_for: ClientSecret, ttl_s: int) -> int:
        """Keeps what the secret of this digest stands for. Returns when it expires: Unix seconds of Redis' clock, rounded down."""
        check_id(stands_for.tenant)
        payload = msgspec.msgpack.encode(stands_for)
        expires_ms = await self._connection.run("secret_put", (secret_key(secret_digest),), payload, ttl_s * 1000)
        return int(expires_ms) // 1000

    async def find(self, secret_digest: str) -> ClientSecret | None:
        """None: it expired, or never was."""
        payload = await self._connection.run("secret_get", (secret_key(secret_digest),))
        try:
            return None if payload is None else msgspec.msgpack.decode(payload, type=ClientSecret)
        except (msgspec.MsgspecError, UnicodeError):
            raise StoreError("a client secret in the store cannot be read") from None
