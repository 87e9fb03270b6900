"""What can go wrong for a client.

    ParleyError
      ConnectError          no conversation was opened
        Unreachable         nobody answers at the address
        Refused             the server said no, before or right after the upgrade
          Unauthorized      the API key is missing or wrong
          UnknownModel      the server does not serve this model or mode
          AtCapacity        every place is taken; retry_after_s says when to come again
      ConnectionLost        the connection ended and the client did not ask for it
      SessionClosed         the session was used after its end
      ProtocolError         the server sent something that is not a Realtime event

Errors that the server reports inside a conversation are no exceptions: they arrive as `events.Error` and the conversation goes on.
"""

from __future__ import annotations


class ParleyError(Exception):
    """Base of everything that the client raises."""


class ConnectError(ParleyError):
    """No conversation was opened."""


class Unreachable(ConnectError):
    """Nobody answers at the address."""


class Refused(ConnectError):
    """The server said no. `status` is the HTTP status (0 when it refused after the upgrade), `code` the server's error code or ""."""

    def __init__(self, message: str, *, status: int = 0, code: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_s = status, code, retry_after_s


class Unauthorized(Refused):
    """The API key is missing or wrong."""


class UnknownModel(Refused):
    """The server does not serve this model or mode."""


class AtCapacity(Refused):
    """Every place is taken; come again after `retry_after_s` seconds (None: not said)."""


class ConnectionLost(ParleyError):
    """The connection ended and the client did not ask for it. `code` is the WebSocket close code, 1006 when there was none."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the connection was lost (close code {code}{': ' + reason if reason else ''})")
        self.code, self.reason = code, reason


class SessionClosed(ParleyError):
    """The session was used after its end."""


class ProtocolError(ParleyError):
    """The server sent something that is not a Realtime event."""
