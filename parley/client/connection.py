"""One WebSocket to a server, and how to dial it. A session keeps the dialer, so that it can outlive a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay, wait_random_exponential
from tenacity.wait import wait_base
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response

from .errors import AtCapacity, ConnectionLost, Refused, SessionClosed, Unauthorized, UnknownModel, Unreachable
from .limits import Limits

MAX_FRAME_BYTES = 20 * 1024 * 1024
REALTIME_PATH = "/v1/realtime"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Connection:
    """An open WebSocket that carries one JSON event a text frame."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._closing = False

    async def send(self, frame: str) -> None:
        """Sends one event; waits while the peer does not read. Raises ConnectionLost or SessionClosed."""
        try:
            await self._websocket.send(frame)
        except ConnectionClosed as error:
            raise self._ended(error) from error

    async def receive(self) -> bytes:
        """The next event. Raises SessionClosed after close(), ConnectionLost when the peer ended it."""
        try:
            frame = await self._websocket.recv(decode=False)
        except ConnectionClosed as error:
            raise self._ended(error) from error
        return frame if isinstance(frame, bytes) else frame.encode()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes it; harmless when it is closed already."""
        self._closing = True
        await self._websocket.close(code, reason)

    def cut(self) -> None:
        """Drops the TCP connection without a word."""
        self._websocket.transport.abort()

    async def wait_closed(self) -> None:
        """Returns once nothing more can arrive."""
        await self._websocket.wait_closed()

    def _ended(self, error: ConnectionClosed) -> ConnectionLost | SessionClosed:
        if self._closing:
            return SessionClosed("the session is closed")
        return ConnectionLost(error.rcvd.code, error.rcvd.reason) if error.rcvd else ConnectionLost(1006, "")


class Dialer:
    """Where a server is and how to enter: everything that is needed to open a connection, again and again."""

    def __init__(self, url: str, *, api_key: str | None, model: str | None, limits: Limits, resume: bool = False) -> None:
        self.url = realtime_url(url, {**({"parley": "1"} if resume else {}), **({"model": model} if model else {})})
        self.limits = limits
        self.resume = resume
        self._resume_url = realtime_url(self.url, {"resume": "1"})
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def dial(self) -> Connection:
        """Opens a connection. Dials again for `patience_s` while nobody answers or every place is taken. Raises a ConnectError."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((Unreachable, AtCapacity)),
            stop=stop_before_delay(self.limits.patience_s),
            wait=_backoff,
            reraise=True,
        )
        return await retrying(self._dial_once, self.url)

    async def dial_to_resume(self) -> Connection:
        """Opens one connection that asks for a session that exists. Raises a ConnectError."""
        return await self._dial_once(self._resume_url)

    async def _dial_once(self, url: str) -> Connection:
        limits = self.limits
        try:
            websocket = await open_websocket(
                url, additional_headers=self._headers, compression=None, max_size=MAX_FRAME_BYTES, open_timeout=limits.open_timeout_s,
                ping_interval=limits.ping_interval_s, ping_timeout=limits.ping_timeout_s, close_timeout=limits.close_timeout_s,
                process_exception=_never_retry,
            )  # fmt: skip
        except InvalidStatus as error:
            raise refusal(error.response) from error
        except InvalidURI as error:
            raise Unreachable(f"{self.url} is not a WebSocket address") from error
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
            raise Unreachable(f"nobody speaks WebSocket at {self.url}: {error or type(error).__name__}") from error
        return Connection(websocket)


def _never_retry(error: Exception) -> Exception | None:
    return error


def told_or(wait: wait_base) -> Callable[[RetryCallState], float]:
    """Seconds to wait: what the server told, else what `wait` says."""

    def wait_s(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        told = error.retry_after_s if isinstance(error, AtCapacity) else None
        return told if told is not None else wait(state)

    return wait_s


_backoff = told_or(wait_random_exponential(multiplier=0.2, max=5.0))


def realtime_url(url: str, query: Mapping[str, str]) -> str:
    """The WebSocket address for a server's address: http(s) becomes ws(s), a bare host gets the Realtime path, query is added.

    Raises Unreachable for an address of another scheme, without a host, or with a port that cannot be.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        good = parts.scheme in _SCHEMES and bool(parts.netloc) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise Unreachable(f"{url} is not an http, https, ws or wss address")
    path = parts.path.rstrip("/")
    if not path.endswith("/realtime"):
        path = path + ("/realtime" if path.endswith("/v1") else REALTIME_PATH)
    joined = urlencode({**dict(parse_qsl(parts.query)), **query})
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, joined, ""))


class _ErrorBody(Struct):
    message: str = ""
    code: str | None = None


class _Refusal(Struct):
    error: _ErrorBody


def refusal(response: Response) -> Refused:
    """The typed error for an HTTP answer that was no upgrade."""
    status = response.status_code
    try:
        body = msgspec.json.decode(response.body or b"", type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = _ErrorBody()
    kind = Refused
    if status in (401, 403):
        kind = Unauthorized
    elif status in (429, 503):
        kind = AtCapacity
    elif status == 404 or body.code in ("model_not_found", "unsupported_mode"):
        kind = UnknownModel
    message = body.message or f"the server refused the connection with HTTP {status}"
    return kind(message, status=status, code=body.code or "", retry_after_s=_seconds(response.headers.get("Retry-After")))


def _seconds(header: str | None) -> float | None:
    try:
        return max(float(header), 0.0) if header is not None else None
    except ValueError:
        return None
