"""`python -m benchmarks.native.soak_service thinker|talker|vocoder`: the service of a soak run.

`PARLEY_BENCH_ORDERS` is the folder of ordered failures; the rest is as for `benchmarks.native.service`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.native.soak_engines import SoakTalker, SoakThinker, SoakVocoder
from stage_kit import Engine, serve
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings


def engine(stage: str) -> Engine:
    """Of one stage."""
    orders = Path(os.environ["PARLEY_BENCH_ORDERS"])
    if stage == "thinker":
        return SoakThinker(MiniCpmThinkerSettings(), int(os.environ["PARLEY_BENCH_CONTEXT"]), orders)
    if stage == "talker":
        return SoakTalker(MiniCpmTalkerSettings(), int(os.environ["PARLEY_BENCH_HELD"]), orders)
    return SoakVocoder(MiniCpmVocoderSettings(), orders)


if __name__ == "__main__":
    serve(service=sys.argv[1], engines=[engine(sys.argv[1])])
