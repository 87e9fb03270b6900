"""`python -m thinker_svc`: serves the stages `asr` and `llm`, or the stage `thinker` of a native model, until SIGTERM."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from stage_kit import Engine, RemoteEngine, serve


class ThinkerSettings(BaseSettings):
    """Which engine answers: `PARLEY_THINKER`; `embedded` leaves the choice of the language model to `PARLEY_LLM`."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore", frozen=True)

    thinker: Literal["embedded", "minicpmo45"] = "embedded"
    llm: Literal["embedded", "openai-chat"] = "embedded"


def engines(settings: ThinkerSettings) -> list[Engine | RemoteEngine]:
    """One engine a stage. Imports only what is chosen. Raises pydantic.ValidationError and ValueError for what it cannot use."""
    if settings.thinker == "minicpmo45":
        from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
        from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

        return [MiniCpmThinkerEngine(MiniCpmThinkerSettings())]
    from thinker_svc.embedded.asr import AsrEngine

    return [AsrEngine(), _llm(settings)]


def _llm(settings: ThinkerSettings) -> Engine | RemoteEngine:
    if settings.llm == "openai-chat":
        from thinker_svc.remote_chat import RemoteChatEngine

        return RemoteChatEngine()
    from thinker_svc.embedded.llm import LlmEngine

    return LlmEngine()


def main() -> None:
    """Exits with 1 after one line when a setting is wrong."""
    try:
        chosen = engines(ThinkerSettings())
    except ValidationError as error:
        first = error.errors()[0]
        print(f"thinker: setting {'.'.join(map(str, first['loc']))}: {first['msg']}", file=sys.stderr)
        raise SystemExit(1) from None
    except ValueError as error:
        print(f"thinker: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    serve(service="thinker", engines=chosen)


if __name__ == "__main__":
    main()
