"""API keys: who may come in, for which tenant, until when, and how much. Only a key's digest is kept anywhere."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from session_store.connection import Connection
from session_store.errors import KeyTaken, StoreError
from session_store.keys import API_KEYS, check_id
from session_store.tokens import check_digest

Id = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,128}\Z")]
_RFC_3339 = r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)\Z"
Bound = Annotated[int, Meta(ge=1, le=2**31)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key, by the digest of its text. A bound that is not given is the gateway's setting of the same name."""

    id: Id
    """Stands for the key in quotas, lists and logs."""
    tenant: Id
    """Sessions are the tenant's: another key of it may resume them."""
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    not_after: Annotated[str, Meta(pattern=_RFC_3339)] | None = None
    """No session is opened or resumed with it from then on: RFC 3339, with its offset."""
    revoked: bool = False
    """Nothing is opened or resumed with it, and its running sessions end."""
    max_sessions: Bound | None = None
    """At once, opened with this key."""
    tenant_max_sessions: Bound | None = None
    """At once, of the whole tenant, as far as this key may open more."""
    opens_per_minute: Bound | None = None

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r}, tenant={self.tenant!r}, not_after={self.not_after}, revoked={self.revoked})"


class ApiKeys:
    """Keys that every gateway of the deployment knows. They have no time to live: a Redis that holds them should keep its data.

    Every call raises StoreUnavailable when Redis does not answer in time, and StoreError.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, key: ApiKey) -> None:
        """Adds the key, or replaces the one of its id. Raises KeyTaken when another id has the same digest."""
        text = msgspec.json.encode(key).decode()
        answer = await self._connection.run("api_key_put", (API_KEYS,), check_id(key.id), check_digest(key.sha256), text)
        if answer[0] == b"taken":
            raise KeyTaken(answer[1].decode())

    async def find(self, digest: str) -> ApiKey | None:
        """The key with this digest, also an expired or revoked one."""
        return await self._get("digest", check_digest(digest))

    async def get(self, key_id: str) -> ApiKey | None:
        """The key with this id, also an expired or revoked one."""
        return await self._get("id", check_id(key_id))

    async def list(self) -> list[ApiKey]:
        """Every key, by id."""
        answers = await self._connection.run("api_key_list", (API_KEYS,))
        return sorted(map(_decoded, answers), key=lambda key: key.id)

    async def revoke(self, key_id: str) -> bool:
        """False when there is no such key."""
        return bool(await self._connection.run("api_key_revoke", (API_KEYS,), check_id(key_id)))

    async def _get(self, by: str, value: str) -> ApiKey | None:
        answer = await self._connection.run("api_key_get", (API_KEYS,), by, value)
        return None if answer is None else _decoded(answer)


def _decoded(text: bytes) -> ApiKey:
    """Raises StoreError for what another program, or a newer version, wrote in its own way."""
    try:
        return msgspec.json.decode(text, type=ApiKey)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as failure:
        raise StoreError(f"a key in the store cannot be read: {failure}") from None
