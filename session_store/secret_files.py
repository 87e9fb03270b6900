"""Settings that are secrets may lie in files: PARLEY_X is what the file holds that PARLEY_X_FILE names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource


def read_secret(variable: str) -> str:
    """What the variable holds, or the file that VARIABLE_FILE names; empty when neither says anything. Raises ValueError."""
    path = os.environ.get(f"{variable}_FILE", "")
    if not path:
        return os.environ.get(variable, "")
    if os.environ.get(variable):
        raise ValueError(f"{variable} and {variable}_FILE are both set: name one")
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as failure:
        raise ValueError(f"{variable}_FILE cannot be read: {getattr(failure, 'strerror', 'not UTF-8')}") from None
    if not text:
        raise ValueError(f"{variable}_FILE names an empty file")  # a secret that never arrived must not count as none
    return text


class SecretFiles(PydanticBaseSettingsSource):
    """Gives every SecretStr of a settings class the text of its file, without the white space around it.

    Raises ValueError when both the variable and the file are named, or the file cannot be read; no message quotes a value.
    """

    def __init__(self, settings: type[BaseSettings]) -> None:
        super().__init__(settings)
        self._prefix = str(settings.model_config.get("env_prefix", ""))

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """(text or None, name, False)."""
        variable = f"{self._prefix}{field_name}".upper()
        if field.annotation is not SecretStr or not os.environ.get(f"{variable}_FILE"):
            return None, field_name, False
        return read_secret(variable), field_name, False

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


class SecretSettings(BaseSettings):
    """Base of settings whose secrets may lie in files: first what the caller says, then files, then the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """See the class."""
        return init_settings, SecretFiles(settings_cls), env_settings
