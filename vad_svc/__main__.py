"""`python -m vad_svc`: serves stage `turn` until SIGTERM."""

from __future__ import annotations

from stage_kit import serve
from vad_svc.engine import TurnEngine


def main() -> None:
    serve(service="vad", engines=[TurnEngine()])


if __name__ == "__main__":
    main()
