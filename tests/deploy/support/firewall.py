"""What a container engine leaves behind in the machine's network, and its removal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Self

from .shell import Failed, run

TABLES = ("filter", "nat")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_BRIDGE = re.compile(r"docker0|br-[0-9a-f]{12}")
_ITS_OWN = re.compile(r"\bDOCKER|\bdocker0\b|\bbr-[0-9a-f]{12}\b|\b172\.(?:1[789]|2\d|3[01])\.\d+\.\d+/\d+ ! -o ")


class Firewall:
    """As it was at some time: policies by table and chain, and whether packets are forwarded."""

    def __init__(self, policies: dict[str, dict[str, str]], forwarding: str) -> None:
        self._policies, self._forwarding = policies, forwarding

    @classmethod
    def now(cls) -> Self:
        return cls({table: _policies(saved(table)) for table in TABLES}, FORWARDING.read_text())

    @classmethod
    def read(cls, file: Path) -> Self:
        """What `write` wrote. Raises OSError."""
        return cls(*json.loads(file.read_text()))

    def write(self, file: Path) -> None:
        """Whole, or not at all."""
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps([self._policies, self._forwarding]))
        fresh.replace(file)

    def restore(self) -> None:
        """The engine's chains, rules and bridges are gone; policies and forwarding are what they were."""
        for table in TABLES:
            kept = [line for line in saved(table).splitlines() if not _ITS_OWN.search(line)]
            lines = [_with_policy(line, self._policies[table]) for line in kept]
            if lines:
                run("iptables-restore", "--table", table, given="\n".join(lines) + "\n")
        for bridge in bridges():
            run("ip", "link", "del", bridge)
        FORWARDING.write_text(self._forwarding)


def bridges() -> list[str]:
    """An engine's."""
    return sorted(path.name for path in Path("/sys/class/net").iterdir() if _BRIDGE.fullmatch(path.name))


def saved(table: str) -> str:
    """Of a table, as iptables-save writes it; empty where the kernel has none."""
    try:
        return run("iptables-save", "--table", table)
    except Failed:
        return ""


def is_engines() -> bool:
    """Whether an engine's chains are there."""
    return any("DOCKER" in saved(table) for table in TABLES)


def _policies(text: str) -> dict[str, str]:
    return dict(re.findall(r"^:(\S+) (ACCEPT|DROP)", text, re.MULTILINE))


def _with_policy(line: str, policies: dict[str, str]) -> str:
    found = re.match(r":(\S+) (?:ACCEPT|DROP)(.*)", line)
    return f":{found[1]} {policies.get(found[1], 'ACCEPT')}{found[2]}" if found else line
