"""What the tests need of the system: Debian's packages, and a base for images out of Debian's archive."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from .shell import run

PACKAGES = ("docker.io", "containerd", "runc", "iptables", "iproute2", "debootstrap")
PROGRAMS = ("/usr/bin/docker", "/usr/sbin/dockerd", "/usr/sbin/debootstrap", "/usr/sbin/iptables-save", "/sbin/ip")
POLICY = Path("/usr/sbin/policy-rc.d")
SUITE = "bookworm"
"""Of the base that users have: python:3.11-slim-bookworm."""
INCLUDED = ("ca-certificates", "python3", "python3-venv", "python3-pip")
INSTALL_S = 300.0
BOOTSTRAP_S = 600.0


class NotHere(RuntimeError):
    """These tests cannot run on this machine; the message says why in one line."""


def install() -> None:
    """Engine and debootstrap are there. Raises NotHere."""
    if os.getuid() != 0:
        raise NotHere("these tests start a container engine of their own, which takes root")
    if all(Path(program).exists() for program in PROGRAMS):
        return
    add(*PACKAGES)


def add(*packages: str) -> None:
    """Debian's, without starting what they bring: an engine of the system would be in the way of ours. Raises NotHere."""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise NotHere(f"these tests need {', '.join(packages)}, which root could install with apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ("apt-get", "-o", "DPkg::Lock::Timeout=120", "-qq")
    run(*apt, "update", timeout_s=INSTALL_S, env=env)
    with _nothing_starts():
        run(*apt, "install", "-y", "--no-install-recommends", *packages, timeout_s=INSTALL_S, env=env)


@contextlib.contextmanager
def _nothing_starts() -> Iterator[None]:
    """Debian asks POLICY before a package starts its service; a policy that is there stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()


def base_archive() -> Path:
    """A tar of a root with Debian's own Python. Made once; the user's cache keeps it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parley" / "test-tools"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"base-{SUITE}.tar"
    with FileLock(folder / f".{archive.name}.lock"):
        if not archive.exists():
            for killed in folder.glob(".base-*"):
                if killed.is_dir():
                    shutil.rmtree(killed)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".base-") as scratch:
                root, fresh = Path(scratch) / "root", Path(scratch) / archive.name
                # what it mounts goes with it, however it ends
                command = ("unshare", "--mount", "/usr/sbin/debootstrap", "--variant=minbase", f"--include={','.join(INCLUDED)}", SUITE)
                run(*command, root, mirror(), timeout_s=BOOTSTRAP_S)
                with tarfile.open(fresh, "w") as packed:
                    packed.add(root, arcname=".")
                fresh.rename(archive)
    return archive


def mirror() -> str:
    """The archive that this machine's own packages come from. Raises NotHere."""
    for sources in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        text = sources.read_text() if sources.exists() else ""
        if found := re.search(r"^(?:URIs:|deb)\s+(?:\[[^]]*]\s+)?(\S+://\S+)", text, re.MULTILINE):
            return found[1]
    raise NotHere("no archive of Debian's packages is configured on this machine")


def authority() -> Path | None:
    """The bundle that this machine trusts."""
    named = (os.environ.get(name) for name in ("PIP_CERT", "SSL_CERT_FILE"))
    bundles = (Path(path) for path in (*filter(None, named), "/etc/ssl/certs/ca-certificates.crt"))
    return next((bundle for bundle in bundles if bundle.is_file()), None)
