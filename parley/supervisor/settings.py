"""Every limit of the supervisor, from the environment (`PARLEY_` prefix). Seconds."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SupervisorSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore")

    run_dir: Path | None = None
    """Folder in which each run makes its own; None: the system's temporary folder."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for one process to become ready."""
    poll_interval_s: float = Field(default=0.05, gt=0)
    """How often readiness is looked at."""
    stop_gateway_s: float = Field(default=1.5, gt=0)
    """After SIGTERM to the gateway, the services are told at the latest after this."""
    stop_services_s: float = Field(default=3.5, gt=0)
    """The store is told at the latest after this, counted from the beginning of the stop."""
    stop_kill_s: float = Field(default=4.0, gt=0)
    """Whatever still lives is killed after this, counted from the beginning of the stop."""
    mps_start_s: float = Field(default=5.0, gt=0)
    """A daemon for services that share a card answers within this, or they share it by time slices."""
    mps_stop_s: float = Field(default=0.7, gt=0)
    """It is told to quit when they are gone, and killed after this."""
    max_restarts: int = Field(default=5, ge=0)
    """A service that died while serving is started again at most so often within the window."""
    restart_window_s: float = Field(default=120.0, gt=0)
    restart_backoff_s: float = Field(default=0.25, gt=0)
    """Wait before the first restart; doubles with each further one within the window."""
    restart_backoff_max_s: float = Field(default=8.0, gt=0)
