"""What can go wrong for a client.

    ParleyError
      ConnectError          no conversation was opened
        Unreachable         nobody answers at the address
        Refused             the server said no, before or right after the upgrade
          Unauthorized      the API key is missing or wrong
          UnknownModel      the server does not serve this model or mode
          AtCapacity        every place is taken; retry_after_s says when to come again
      ConnectionLost        the connection ended and the client did not ask for it
        ResumeFailed        it could not be resumed, either; error_code says why
        TakenOver           another connection has the session now
      OutageTooLong         the connection is away for longer than what is said can be kept
      BadPicture            what was to be shown is no picture, or too large a one; nothing was sent
      RequestFailed         the server refused what was asked of it
      EventsLost            a reply is not whole: the server could not keep some of its events
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


class ResumeFailed(ConnectionLost):
    """The connection was lost, and the session with it.

    `code` and `reason` are those of the loss. `error_code` is the server's (invalid_resume_token, session_resume_expired,
    session_resume_conflict, ...), "grace_expired" when nobody let the client in again in time, "internal_error" when the server
    failed twice in a row.
    """

    def __init__(self, lost: ConnectionLost, error_code: str) -> None:
        super().__init__(lost.code, lost.reason)
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{super().__str__()} and could not be resumed: {self.error_code}"


class TakenOver(ConnectionLost):
    """Another connection has the session now."""


class OutageTooLong(ParleyError):
    """The connection is away for longer than what is said can be kept. Of the audio of this call the first `accepted_bytes` were taken."""

    def __init__(self, kept_ms: int) -> None:
        super().__init__(f"the connection is away for longer than the {kept_ms} ms that are kept")
        self.accepted_bytes = 0


class BadPicture(ParleyError):
    """What was to be shown is no picture, or too large a one: nothing was sent. `param` names the argument at fault."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param} {why}")
        self.param, self.why = param, why


class RequestFailed(ParleyError):
    """The server refused what was asked of it; `code` is its error code or ""."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class EventsLost(ParleyError):
    """A reply is not whole: the server could not keep some of its events. What follows goes to the session."""


class SessionClosed(ParleyError):
    """The session was used after its end."""


class ProtocolError(ParleyError):
    """The server sent something that is not a Realtime event."""
