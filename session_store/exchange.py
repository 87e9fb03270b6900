"""Commands and their answers over one connection of a pool, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions as failures

Value = str | bytes | int


async def exchange(pool: Any, commands: Sequence[tuple[Value, ...]]) -> list[Any]:
    """All commands in one write over a connection of this pool of redis-py's; an answer that is an error is given, not raised.

    Raises what the connection raises.
    """
    packed = b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command(packed)
        answers = [await _answer(connection) for _ in commands]
        if any(isinstance(answer, failures.ReadOnlyError) for answer in answers):
            await connection.disconnect(nowait=True)  # it leads to a primary that was demoted: the next one may not
        return answers
    except BaseException:
        await connection.disconnect(nowait=True)  # an answer that comes late is nobody's
        raise
    finally:
        await pool.release(connection)


def facts(answer: Any) -> dict[Any, Any]:
    """An answer of names and values, as either protocol gives it. Raises InvalidResponse for another one."""
    if isinstance(answer, dict):
        return answer
    if not isinstance(answer, list) or len(answer) % 2 or not all(isinstance(name, bytes) for name in answer[::2]):
        raise failures.InvalidResponse("no names and values")
    return dict(zip(answer[::2], answer[1::2], strict=True))


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except failures.ResponseError as error:
        return error
