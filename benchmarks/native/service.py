"""`python -m benchmarks.native.service thinker|talker|vocoder`: the service with one native engine, its sessions preloaded.

`PARLEY_BENCH_CONTEXT` and `PARLEY_BENCH_HELD` say how full they begin, `PARLEY_BENCH_STEPS` in which folder each stage writes its steps
down (`benchmarks/native/step_log.py`); everything else comes from the services' own settings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.native.step_log import logged
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
    stage, folder = sys.argv[1], os.environ.get("PARLEY_BENCH_STEPS")
    made = engine(stage)
    serve(service=stage, engines=[logged(made, Path(folder) / f"{stage}.steps") if folder else made])
