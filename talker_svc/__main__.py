"""`python -m talker_svc`: the service that turns text into speech latents, or a native model's thoughts into speech codes."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from stage_kit import Engine, serve


class ServiceSettings(BaseSettings):
    """Which engine speaks: `PARLEY_TALKER`."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore", frozen=True)

    talker: Literal["embedded", "minicpmo45"] = "embedded"


def engine(settings: ServiceSettings) -> Engine:
    """The chosen engine, and nothing imported for the other. Raises pydantic.ValidationError and ValueError for what it cannot use."""
    if settings.talker == "minicpmo45":
        from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
        from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings

        return MiniCpmTalkerEngine(MiniCpmTalkerSettings())
    from talker_svc.engine import TalkerEngine

    return TalkerEngine()


def main() -> None:
    """Exits with 1 after one line when a setting is wrong."""
    try:
        chosen = engine(ServiceSettings())
    except ValidationError as error:
        first = error.errors()[0]
        print(f"talker: setting {'.'.join(map(str, first['loc']))}: {first['msg']}", file=sys.stderr)
        raise SystemExit(1) from None
    except ValueError as error:
        print(f"talker: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    serve(service="talker", engines=[chosen])


if __name__ == "__main__":
    main()
