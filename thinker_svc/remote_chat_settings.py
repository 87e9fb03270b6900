"""Settings of the outside chat service, and what a session's profile may set of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from session_store.secret_files import read_secret

OWN_FIELDS = ("model", "messages", "stream", "max_tokens", "temperature")


def check_base_url(url: str) -> None:
    """Raises ValueError with one line that does not quote the address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("base_url must be an http or https address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url must not carry credentials")


def check_extra_body(extra_body: dict[str, Any]) -> None:
    """Raises ValueError: what the engine itself sends cannot be overridden."""
    if taken := [field for field in extra_body if field in OWN_FIELDS]:
        raise ValueError(f"extra_body cannot set {taken}")


class RemoteChatSettings(BaseSettings):
    """Read from the environment with prefix `PARLEY_CHAT_`."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_CHAT_", frozen=True)

    base_url: str = ""
    """Of the service's API, such as http://127.0.0.1:8000/v1; empty: each profile names its own."""
    model: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key, or with `_FILE` behind it names its file; unset: the service needs none."""
    temperature: float | None = Field(None, ge=0, le=2)
    extra_body: dict[str, Any] = {}
    """Further fields of the request, JSON."""
    slots: int = Field(64, ge=1)
    max_tokens: int = Field(512, ge=1)
    """Most tokens of one answer."""
    max_output_chars: int = Field(65_536, ge=1)
    """Most characters of one answer, its calls' arguments included."""
    event_bytes: int = Field(1_048_576, ge=1024)
    """Longest line of the service's stream."""
    connect_timeout_ms: int = Field(5_000, ge=1)
    timeout_ms: int = Field(30_000, ge=1)
    """Longest silence of the service, before its first event and between two."""

    @field_validator("base_url")
    @classmethod
    def _http_only(cls, base_url: str) -> str:
        if base_url:
            check_base_url(base_url)
        return base_url

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours_alone(cls, extra_body: dict[str, Any]) -> dict[str, Any]:
        check_extra_body(extra_body)
        return extra_body


class ChatOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stage configuration of a session, as a profile gives it. What is unset is the operator's setting."""

    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    extra_body: dict[str, Any] | None = None


class Target(msgspec.Struct, frozen=True):
    """Where and how one session asks. Holds the key's variable, never the key."""

    base_url: str
    model: str
    api_key_env: str
    max_tokens: int
    temperature: float | None
    extra_body: dict[str, Any]

    @property
    def url(self) -> str:
        return f"{self.base_url.rstrip('/')}/chat/completions"

    def headers(self) -> dict[str, str]:
        """Read at each request, so that a rotated key counts. A file that cannot be read holds none, and the service says so."""
        key = ""
        if self.api_key_env:
            with contextlib.suppress(ValueError):
                key = read_secret(self.api_key_env)
        return {"Authorization": f"Bearer {key}"} if key else {}


def target(settings: RemoteChatSettings, options: ChatOptions) -> Target:
    """Raises ValueError with the field's name first, as `field: why`."""
    # a key goes to no other service than the one that it was configured for
    own_service = options.base_url is None
    key = options.api_key_env if options.api_key_env is not None else settings.api_key_env if own_service else ""
    chosen = Target(
        base_url=settings.base_url if options.base_url is None else options.base_url,
        model=settings.model if options.model is None else options.model,
        api_key_env=key,
        max_tokens=settings.max_tokens if options.max_tokens is None else min(options.max_tokens, settings.max_tokens),
        temperature=settings.temperature if options.temperature is None else options.temperature,
        extra_body=settings.extra_body if options.extra_body is None else options.extra_body,
    )
    if not chosen.base_url:
        raise ValueError("base_url: neither the profile nor PARLEY_CHAT_BASE_URL names the service")
    if not chosen.model:
        raise ValueError("model: neither the profile nor PARLEY_CHAT_MODEL names a model")
    _named("base_url", check_base_url, chosen.base_url)
    _named("extra_body", check_extra_body, chosen.extra_body)
    if chosen.max_tokens < 1:
        raise ValueError("max_tokens: must be at least 1")
    if chosen.temperature is not None and not 0 <= chosen.temperature <= 2:
        raise ValueError("temperature: must be between 0 and 2")
    return chosen


def _named(field: str, check: Callable[[Any], None], value: Any) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
