"""`python -m talker_svc`: the service that turns text into speech latents."""

from __future__ import annotations

from stage_kit import serve
from talker_svc.engine import TalkerEngine

if __name__ == "__main__":
    serve(service="talker", engines=[TalkerEngine()])
