"""JSON lines on stderr. Nothing of what is said, and no key, is ever given to the log."""

from __future__ import annotations

import logging
import sys
import traceback

import structlog


def configure(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )

    foreign = _Foreign()
    foreign.addFilter(_worth_telling)
    logging.basicConfig(level=logging.WARNING, handlers=[foreign], force=True)


class _Foreign(logging.Handler):
    """What libraries log becomes JSON lines, too, without the texts of their exceptions."""

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        details = {} if failure is None else {"failure": describe(failure)}
        structlog.get_logger().log(record.levelno, record.getMessage().strip(), logger=record.name, **details)


def _worth_telling(record: logging.LogRecord) -> bool:
    # uvicorn says this of every upgrade that is refused by an HTTP answer
    return record.msg != "ASGI callable returned without completing handshake."


def describe(error: BaseException) -> list[str]:
    """Type and places of an exception, innermost last. Its message may quote what a user said, so it stays out."""
    frames = traceback.extract_tb(error.__traceback__)
    return [type(error).__name__, *(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames)]
