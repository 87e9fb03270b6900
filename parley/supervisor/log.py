"""What a process said last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

TAIL_BYTES = 64 * 1024
MAX_LINE_CHARS = 240


def last_line(log: Path) -> str:
    """The last line of a log file that says something, shortened; of a JSON line its event and error. "" when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    said = _said(line)
    return said if len(said) <= MAX_LINE_CHARS else said[: MAX_LINE_CHARS - 1] + "…"


def _said(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return line
    event = next((str(record[key]) for key in ("event", "message", "msg") if record.get(key)), "")
    failure = next(
        (str(record[key]).strip().splitlines()[-1] for key in ("exception", "error", "exc_info") if str(record.get(key) or "").strip()), ""
    )
    return ": ".join(part for part in (event, failure) if part) or line
