"""JSON lines on standard error, with the session id where there is one. Exceptions are logged by type and place, never by their text."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog


def configure(level: str, service: str) -> None:
    """Sets the process's logging; `level` is a name of the logging module, in any case."""
    threshold = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


def logger(**fields: Any) -> Any:
    """A logger with these fields on every line."""
    return structlog.get_logger(**fields)


def describe(error: BaseException) -> str:
    """Type and place of an exception. Its message may quote what a user said, so it stays out."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
