"""Settings: one place, units in names, every bound enforced, reported, and passed on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pydantic import ValidationError

from gateway.capabilities import capabilities
from gateway.graph import Graph
from gateway.profile_file import load_profile_file
from gateway.settings import Settings
from gateway.wire import WireLimits
from stage_kit import Settings as StageSettings

PROFILE = load_profile_file(Path(__file__).parents[3] / "profiles" / "embedded.yaml")
NUMBERS = {name: field for name, field in Settings.model_fields.items() if field.annotation in (int, float)}


def test_every_number_names_its_unit() -> None:
    units = ("_bytes", "_ms", "_s", "_items", "_sessions", "_frames", "_per_minute")
    assert not [name for name in NUMBERS if not name.endswith(units)]


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_every_number_has_a_least_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PARLEY_{name.upper()}", "-1")
    with pytest.raises(ValidationError):
        Settings()


def test_the_environment_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_MAX_ITEMS", "7")
    monkeypatch.setenv("PARLEY_API_KEYS", " first-key, second-key ,,")
    settings = Settings()
    assert settings.max_items == 7 and settings.accepted_keys() == {"first-key", "second-key"}
    assert "first-key" not in repr(settings) and "first-key" not in str(settings.model_dump())


@pytest.mark.parametrize("settings", [Settings, StageSettings], ids=["gateway", "stage_kit"])
def test_a_secret_setting_may_lie_in_a_file(settings: type[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://:a-password@store:6379/0"
    (tmp_path / "url").write_text(f"{url}\n")
    monkeypatch.setenv("PARLEY_REDIS_URL_FILE", str(tmp_path / "url"))
    made = settings()
    assert made.redis_url.get_secret_value() == url
    assert "a-password" not in repr(made) + str(made.model_dump())
    monkeypatch.setenv("PARLEY_REDIS_URL", "redis://another")
    with pytest.raises(ValueError, match="PARLEY_REDIS_URL and PARLEY_REDIS_URL_FILE"):
        settings()
    monkeypatch.delenv("PARLEY_REDIS_URL")
    monkeypatch.setenv("PARLEY_REDIS_URL_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        settings()


def test_only_what_is_a_secret_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("one, two")
    monkeypatch.setenv("PARLEY_API_KEYS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("PARLEY_LOG_LEVEL_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("PARLEY_KEYS_FILE", str(tmp_path / "keys"))
    settings = Settings()
    assert settings.accepted_keys() == {"one", "two"} and settings.log_level == "INFO" and settings.keys_file == tmp_path / "keys"


@pytest.mark.parametrize("held", ["", " \n"])
def test_a_secret_that_never_arrived_is_not_taken_for_none(held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file of keys would let everybody in."""
    (tmp_path / "keys").write_text(held)
    monkeypatch.setenv("PARLEY_API_KEYS_FILE", str(tmp_path / "keys"))
    with pytest.raises(ValueError, match="PARLEY_API_KEYS_FILE names an empty file"):
        Settings()


@pytest.mark.parametrize("said", [" , ", "a-good-one, ek_x1y2", "schl\u00fcssel-x1y2", "x1y2 with spaces", "x1y2" * 129])
def test_keys_that_nobody_can_show_are_refused_and_not_quoted(said: str) -> None:
    with pytest.raises(ValueError, match="PARLEY_API_KEYS") as refused:
        Settings(api_keys=said).accepted_keys()  # type: ignore[arg-type]
    assert "x1y2" not in str(refused.value)
    assert Settings(api_keys="").accepted_keys() == frozenset()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["allowed_origins", "trusted_proxies"])
def test_a_list_that_cannot_be_meant_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ValidationError):
        Settings(**{name: "not/one"})  # type: ignore[arg-type]


def test_half_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="http_tls_certificate and http_tls_key"):
        Settings(http_tls_key=Path("key")).http_tls()
    assert Settings().http_tls() is None


@pytest.mark.behaviour("X14")
def test_the_core_gets_what_settings_and_profile_say() -> None:
    settings = Settings(max_items=9, stall_timeout_ms=11, max_pending_input_bytes=4096)
    limits = settings.core_limits(PROFILE)
    assert (limits.max_items, limits.stall_timeout_ms, limits.max_pending_input_bytes) == (9, 11, 4096)
    assert limits.max_output_lead_ms == PROFILE.pacing.max_output_lead_ms
    assert limits.max_session_ms == PROFILE.session.max_session_ms
    shared = set(msgspec.structs.asdict(limits)) & set(Settings.model_fields)
    assert all(getattr(limits, name) == getattr(settings, name) for name in shared)


@pytest.mark.behaviour("X14")
def test_capabilities_report_every_number_with_its_value() -> None:
    settings, wire = Settings(max_items=9), WireLimits()
    told = capabilities(settings, PROFILE, Graph(PROFILE), wire)["limits"]
    for name in NUMBERS:
        assert told[name] == getattr(settings, name)
    for source in (settings.core_limits(PROFILE), wire):
        assert msgspec.structs.asdict(source).items() <= told.items()
