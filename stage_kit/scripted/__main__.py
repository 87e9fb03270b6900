"""`python -m stage_kit.scripted --service vad|thinker|talker|vocoder|all|duplex|model`: serves scripted stages until SIGTERM.

`duplex` is a native model with a detector beside it, `model` the model alone.
"""

from __future__ import annotations

import argparse

from stage_kit.scripted import SERVICES, ScriptedTurn, duplex_engines, engines
from stage_kit.service import serve


def main() -> None:
    """Reads the command line; settings come from the environment as for every service."""
    parser = argparse.ArgumentParser(prog="python -m stage_kit.scripted", description="Serves scripted stages.")
    parser.add_argument("--service", choices=(*SERVICES, "all", "duplex", "model"), default="all")
    parser.add_argument("--slots", type=int, default=64, help="most sessions at once in each stage")
    parser.add_argument("--unit-ms", type=int, default=1000, help="length of a native unit (duplex, model)")
    arguments = parser.parse_args()
    if arguments.service in ("duplex", "model"):
        made = duplex_engines(arguments.slots, arguments.unit_ms)
        made += [ScriptedTurn(arguments.slots)] if arguments.service == "duplex" else []
    else:
        made = engines(arguments.service, arguments.slots)
    serve(service=arguments.service, engines=made)


if __name__ == "__main__":
    main()
