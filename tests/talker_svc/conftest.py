"""The real voice, read once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from talker_svc.embedded.folder import voice_folder
from talker_svc.embedded.voice import PiperVoice


@pytest.fixture(scope="session")
def voice() -> PiperVoice:
    """The voice of the models cache."""
    models = os.environ.get("PARLEY_MODELS")
    return PiperVoice(voice_folder(Path(models) if models else None))
