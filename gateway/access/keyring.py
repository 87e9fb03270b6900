"""All keys that open this gateway: the settings' own, a file's, and the store's."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Iterable

import structlog

from gateway.settings import Settings
from gateway.wire.handshake import digest_key
from session_store import ApiKey, Store

from .key_file import KeyFile

log = structlog.get_logger()
CACHED = 4096
"""Keys of the store that are remembered; the one that was asked for longest ago is forgotten first."""


class Keyring:
    def __init__(self, settings: Settings, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        """Raises KeyFileError."""
        self._plain = [_plain(digest_key(key)) for key in settings.accepted_keys()]
        self._file = KeyFile(settings.keys_file) if settings.keys_file is not None else None
        self._store = store if settings.keys_in_redis else None
        self._cache_s, self._now = settings.keys_cache_ms / 1000, now
        self._cached: dict[str, tuple[float, ApiKey]] = {}

    @property
    def asks(self) -> bool:
        """Whether a key is needed. A file or a store without keys lets nobody in."""
        return bool(self._plain) or self._file is not None or self._store is not None

    async def find(self, digest: str) -> ApiKey | None:
        """The key with this digest, also an expired or revoked one. Raises StoreError."""
        local = await self._local()
        if (key := _among(local, digest)) is not None:
            return key
        key = await self._stored(f"digest {digest}")
        if key is not None and any(other.id == key.id for other in local):
            log.warning("a key of the store has the id of another, and lets nobody in", key=key.id)
            return None
        return key

    async def kept(self, key_ids: Collection[str]) -> dict[str, ApiKey]:
        """Those of the ids that the settings or the file know, without asking the store."""
        return {key.id: key for key in await self._local() if key.id in key_ids}

    async def get(self, key_id: str) -> ApiKey | None:
        """The key of this id, also an expired or revoked one. Raises StoreError."""
        return (await self.kept((key_id,))).get(key_id) or await self._stored(f"id {key_id}")

    async def _local(self) -> list[ApiKey]:
        return self._plain + (await self._file.keys() if self._file is not None else [])

    async def _stored(self, asked: str) -> ApiKey | None:
        """Only what is found is remembered, so that a new key is good at once."""
        if self._store is None:
            return None
        believed = self._cached.get(asked)
        if believed is not None and self._now() < believed[0]:
            return believed[1]
        by, _, value = asked.partition(" ")
        keys = self._store.api_keys
        key = await (keys.find(value) if by == "digest" else keys.get(value))
        self._cached.pop(asked, None)
        if key is None or (by == "digest" and not hmac.compare_digest(key.sha256, value)):
            return None
        self._cached[asked] = (self._now() + self._cache_s, key)
        if len(self._cached) > CACHED:
            del self._cached[next(iter(self._cached))]
        return key


def _plain(digest: str) -> ApiKey:
    """A key that the settings name is a tenant of its own."""
    return ApiKey(id=f"env_{digest[:12]}", tenant=digest, sha256=digest)


def _among(keys: Iterable[ApiKey], digest: str) -> ApiKey | None:
    """Every digest is compared, so that the time taken says nothing."""
    found = None
    for key in keys:
        if hmac.compare_digest(key.sha256, digest):
            found = key
    return found
