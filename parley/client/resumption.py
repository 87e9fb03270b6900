"""How a session finds back to its server after its connection was lost."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
from msgspec import Struct
from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay
from tenacity.wait import wait_random_exponential

from . import events
from .connection import Connection, Dialer, told_or
from .errors import AtCapacity, ConnectionLost, ProtocolError, Refused, ResumeFailed, Unreachable

COMES_BACK = frozenset({1001, 1006, 1011, 1012, 1013})
"""Close codes after which the session may still be there."""


class _NotYet(Refused):
    """This attempt failed, the next may succeed."""


class Return(Struct):
    """A connection that has the session again, what the server told of it, and the events that it told before."""

    connection: Connection
    resumed: events.Resumed
    before: list[events.Event]


class Resumption:
    """Redials with the session's token, which every resume renews. Attempts go on for the grace, ever more rarely."""

    def __init__(self, dialer: Dialer, session_id: str, token: str) -> None:
        self._dialer, self._limits = dialer, dialer.limits
        self._session_id, self._token = session_id, token
        self._outage_began = self._returned = time.monotonic()
        self._fruitless = 0
        self._conflicts = 0

    def proven(self) -> None:
        """The connection is a good one: its loss begins a new outage."""
        self._fruitless = 0

    async def come_back(self, lost: ConnectionLost, last_seq: int, unnumbered: int) -> Return:
        """last_seq: number of the last event that has one; unnumbered: how many came after it. Raises ResumeFailed, or ProtocolError."""
        now, limits = time.monotonic(), self._limits
        if self._fruitless == 0 or now - self._returned >= limits.backoff_max_s:
            self._outage_began, self._fruitless = now, 0
        self._conflicts = 0
        if self._fruitless:
            ceiling_s = min(limits.backoff_first_s * 2**self._fruitless, limits.backoff_max_s)
            await asyncio.sleep(random.uniform(0, ceiling_s))
        self._fruitless += 1
        retrying = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_before_delay(max(self._outage_began + limits.grace_s - time.monotonic(), 0)),
            wait=told_or(wait_random_exponential(multiplier=limits.backoff_first_s, max=limits.backoff_max_s)),
            reraise=True,
        )
        try:
            returned: Return = await retrying(self._attempt, self._claim(last_seq, unnumbered))
        except (Refused, Unreachable, ConnectionLost) as error:
            raise ResumeFailed(lost, _why(error)) from error
        self._returned = time.monotonic()
        return returned

    async def _attempt(self, claim: dict[str, str | int]) -> Return:
        limits = self._limits
        left_s = self._outage_began + limits.grace_s - time.monotonic()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(max(min(limits.resume_timeout_s, left_s), 0)):
                connection = await self._dialer.dial_to_resume()
                await connection.send(msgspec.json.encode({**claim, "resume_token": self._token}).decode())
                return await self._answered(connection)
        except BaseException as error:
            if connection is not None:
                connection.cut()
            if isinstance(error, TimeoutError):
                raise Unreachable(f"the session was not resumed within {limits.resume_timeout_s:g} s") from error
            raise

    def _claim(self, last_seq: int, unnumbered: int) -> dict[str, str | int]:
        return {"type": "session.resume", "session_id": self._session_id, "last_seq": last_seq, "unnumbered": unnumbered}

    async def _answered(self, connection: Connection) -> Return:
        before: list[events.Event] = []
        while True:
            match event := events.decode(await connection.receive()):
                case events.Resumed(resume_token=token, session=session):
                    self._token = token or self._token
                    session.pop("resume_token", None)
                    return Return(connection, msgspec.structs.replace(event, resume_token=""), before)
                case events.Error(error=error) if error.code != "journal_gap":
                    raise self._refusal(error)
                case events.Error() | events.ResyncRequired() | events.Durability():
                    before.append(event)
                case _:
                    raise ProtocolError("the server answered a resume with something else")

    def _refusal(self, error: events.ErrorDetail) -> Refused:
        later = error.type == "server_error"
        if error.code == "session_resume_conflict":
            # our own attempt before may still be at work: its answer was lost
            self._conflicts += 1
            later = self._conflicts == 1
        return (_NotYet if later else Refused)(error.message, code=error.code or "")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ConnectionLost):
        return error.code in COMES_BACK
    return isinstance(error, Unreachable | AtCapacity | _NotYet) or (isinstance(error, Refused) and error.status >= 500)


def _why(error: Refused | Unreachable | ConnectionLost) -> str:
    if _may_pass(error):
        return "grace_expired"
    return (error.code if isinstance(error, Refused) else str(error)) or "refused"
