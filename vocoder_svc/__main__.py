"""`python -m vocoder_svc`: the service that turns speech latents into sound."""

from __future__ import annotations

from stage_kit import serve
from vocoder_svc.engine import VocoderEngine

if __name__ == "__main__":
    serve(service="vocoder", engines=[VocoderEngine()])
