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

PROFILE = load_profile_file(Path(__file__).parents[3] / "profiles" / "embedded.yaml")
NUMBERS = {name: field for name, field in Settings.model_fields.items() if field.annotation in (int, float)}


def test_every_number_names_its_unit() -> None:
    units = ("_bytes", "_ms", "_s", "_items", "_sessions", "_frames")
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
