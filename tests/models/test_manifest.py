"""The manifest, the cache's place, and the command that shows both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parley.models import MODELS, cache_root, fetch_models, list_models
from parley.models.__main__ import main

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_layout_is_what_the_services_expect() -> None:
    files = {f"{model.name}/{file}" for model in MODELS for file in model.files}
    assert files == {
        "moonshine-tiny/encoder_model.ort",
        "moonshine-tiny/decoder_model_merged.ort",
        "moonshine-tiny/tokenizer.bin",
        "smollm2-135m/ct2/model.bin",
        "smollm2-135m/ct2/config.json",
        "smollm2-135m/ct2/vocabulary.json",
        "smollm2-135m/tokenizer.json",
        "smollm2-135m/meta.json",
        "piper-joe/en_US-joe-medium.onnx.json",
        "piper-joe/frontend.onnx",
        "piper-joe/decoder.onnx",
        "silero/silero_vad.onnx",
        "smart-turn/smart-turn-v3.2-cpu.onnx",
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PARLEY_MODELS": "/srv/models", "XDG_CACHE_HOME": "/var/cache"}, "/srv/models"),
        ({"XDG_CACHE_HOME": "/var/cache"}, "/var/cache/parley/models"),
        ({"HOME": "/home/someone"}, "/home/someone/.cache/parley/models"),
    ],
)
def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("PARLEY_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected)


def test_the_list_shows_every_checksum_licence_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARLEY_MODELS", str(tmp_path))
    assert main([]) == 0
    shown = capsys.readouterr().out
    for model in MODELS:
        assert model.name in shown and model.wheel.requirement in shown and model.licence.split()[0] in shown
        assert all(member.sha256 in shown for member in model.members)
    assert str(tmp_path) in shown


def test_the_docs_name_every_checksum_licence_and_package() -> None:
    text = DOCS.read_text()
    for model in MODELS:
        assert model.name in text and model.wheel.requirement in text
        assert all(member.sha256 in text for member in model.members)


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "nobody"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_no_service_is_imported() -> None:
    code = "import sys, parley.models.show; sys.exit(any(name.endswith('_svc') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.models
def test_the_real_models_are_there() -> None:
    assert all(entry.present for entry in fetch_models())
    assert all(entry.present for entry in list_models())
