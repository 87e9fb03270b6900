"""Typed refusals."""

from __future__ import annotations

from parley_stage.v1 import stage_pb2

Code = stage_pb2.StageError


class Refusal(Exception):
    """A command is refused and changed nothing. `ends_stream`: its sender has nothing more to say on this stream."""

    def __init__(self, code: int, message: str, *, param: str = "", ends_stream: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.ends_stream = ends_stream

    def proto(self, label: stage_pb2.Label | None = None, *, session_ended: bool = False) -> stage_pb2.StageError:
        """The same as a message."""
        return stage_pb2.StageError(code=self.name, message=self.message, param=self.param, session_ended=session_ended, label=label)

    @property
    def name(self) -> str:
        """The code's name."""
        return stage_pb2.StageError.Code.Name(self.code)


def stale(message: str = "another gateway holds this session") -> Refusal:
    """The sender lost the session; its stream ends."""
    return Refusal(Code.CODE_STALE_AUTHORITY, message, ends_stream=True)


def unknown() -> Refusal:
    """Nothing is held under this id."""
    return Refusal(Code.CODE_UNKNOWN_SESSION, "the stage holds no such session", ends_stream=True)
