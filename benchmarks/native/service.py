"""`python -m benchmarks.native.service thinker|talker|vocoder`: the service with one native engine, its sessions preloaded.

`PARLEY_BENCH_CONTEXT` and `PARLEY_BENCH_HELD` say how full they begin; everything else comes from the services' own settings.
"""

from __future__ import annotations

import os
import sys

from stage_kit import Engine, serve


def engine(stage: str) -> Engine:
    """Imports what the stage needs."""
    if stage == "thinker":
        from benchmarks.native.preload import PreloadedThinker
        from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

        return PreloadedThinker(MiniCpmThinkerSettings(), int(os.environ.get("PARLEY_BENCH_CONTEXT", "0")))
    if stage == "talker":
        from benchmarks.native.preload import PreloadedTalker
        from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings

        return PreloadedTalker(MiniCpmTalkerSettings(), int(os.environ.get("PARLEY_BENCH_HELD", "0")))
    from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
    from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

    return MiniCpmVocoderEngine(MiniCpmVocoderSettings())


if __name__ == "__main__":
    serve(service=sys.argv[1], engines=[engine(sys.argv[1])])
