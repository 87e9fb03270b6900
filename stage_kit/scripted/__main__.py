"""`python -m stage_kit.scripted --service vad|thinker|talker|vocoder|all`: serves scripted stages until SIGTERM."""

from __future__ import annotations

import argparse

from stage_kit.scripted import SERVICES, engines
from stage_kit.service import serve


def main() -> None:
    """Reads the command line; settings come from the environment as for every service."""
    parser = argparse.ArgumentParser(prog="python -m stage_kit.scripted", description="Serves scripted stages.")
    parser.add_argument("--service", choices=(*SERVICES, "all"), default="all")
    parser.add_argument("--slots", type=int, default=64, help="most sessions at once in each stage")
    arguments = parser.parse_args()
    serve(service=arguments.service, engines=engines(arguments.service, arguments.slots))


if __name__ == "__main__":
    main()
