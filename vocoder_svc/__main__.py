"""`python -m vocoder_svc`: the service that turns speech latents, or a native model's speech codes, into sound."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from stage_kit import Engine, serve


class ServiceSettings(BaseSettings):
    """Which engine speaks: `PARLEY_VOCODER`."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore", frozen=True)

    vocoder: Literal["embedded", "minicpmo45"] = "embedded"


def engine(settings: ServiceSettings) -> Engine:
    """The chosen engine, and nothing imported for the other. Raises pydantic.ValidationError and ValueError for what it cannot use."""
    if settings.vocoder == "minicpmo45":
        from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
        from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

        return MiniCpmVocoderEngine(MiniCpmVocoderSettings())
    from vocoder_svc.engine import VocoderEngine

    return VocoderEngine()


def main() -> None:
    """Exits with 1 after one line when a setting is wrong."""
    try:
        chosen = engine(ServiceSettings())
    except ValidationError as error:
        first = error.errors()[0]
        print(f"vocoder: setting {'.'.join(map(str, first['loc']))}: {first['msg']}", file=sys.stderr)
        raise SystemExit(1) from None
    except ValueError as error:
        print(f"vocoder: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    serve(service="vocoder", engines=[chosen])


if __name__ == "__main__":
    main()
