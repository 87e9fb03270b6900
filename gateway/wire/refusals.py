"""How a refusal leaves the gateway where no event can: as an HTTP answer before the upgrade, or as a close code after it."""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from gateway.conversation.errors import ERRORS, Refusal

HTTP_STATUS: dict[str, int] = {
    "invalid_api_key": 401,
    "origin_not_allowed": 403,
    "rate_limit_exceeded": 429,
    "body_too_large": 413,
    "body_timeout": 408,
    **dict.fromkeys(
        (
            "invalid_json",
            "missing_field",
            "invalid_field",
            "invalid_audio",
            "limit_exceeded",
            "nesting_too_deep",
            "unsupported_value",
            "native_unsupported",
            "update_refused",
        ),
        400,
    ),
    "beta_api_unsupported": 400,
    "unsupported_mode": 400,
    "model_not_found": 404,
    "invalid_resume_token": 403,
    "session_resume_expired": 410,
    "session_resume_conflict": 409,
    "tenant_limit": 429,
    "at_capacity": 503,
    "stages_unavailable": 503,
    "server_draining": 503,
    "internal_error": 500,
}
"""Codes that can refuse an upgrade or an HTTP request. Any other is a defect and answers as internal_error does."""

CLOSE_CODES: dict[str, int] = {
    "session_expired": 1000,
    "invalid_api_key": 1008,
    "api_key_revoked": 1008,
    "session_taken_over": 1008,
    "invalid_resume_token": 1008,
    "session_resume_expired": 1008,
    "session_resume_conflict": 1008,
    "resume_timeout": 1008,
    "invalid_json": 1008,
    "missing_field": 1008,
    "invalid_field": 1008,
    "event_too_large": 1009,
    "internal_error": 1011,
    "stage_lost": 1011,
    "stage_timeout": 1011,
    "stages_unavailable": 1011,
    "server_draining": 1012,
    "at_capacity": 1013,
}
"""1011, 1012 and 1013 make stock clients dial again; 1000 and 1008 do not."""

_RETRIED = ("rate_limit_exceeded", "tenant_limit", "at_capacity", "stages_unavailable", "server_draining")


class HttpRefusal(Struct, frozen=True):
    """The whole HTTP answer to an upgrade that is refused."""

    status: int
    headers: dict[str, str]
    body: bytes
    """JSON: the error object of an `error` event, without ids."""


def http_refusal(refusal: Refusal, retry_after_ms: int = 1000) -> HttpRefusal:
    """The answer before the upgrade. Retry-After is in whole seconds, rounded up, at least 1."""
    code = refusal.code if refusal.code in HTTP_STATUS else "internal_error"
    kind = ERRORS[code]
    message = refusal.message if code == refusal.code else kind.message
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    if code in _RETRIED:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_ms / 1000)))
    if code == "invalid_api_key":
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": {"type": kind.type, "code": code, "message": message, "param": refusal.param}})
    return HttpRefusal(HTTP_STATUS[code], headers, body)


def close_code(code: str) -> int:
    """The WebSocket close code for a code that ends a connection (the code itself is the reason); 1011 for one that should not have."""
    return CLOSE_CODES.get(code, 1011)
