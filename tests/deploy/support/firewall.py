"""What a container engine leaves behind in the machine's network, and its removal."""

from __future__ import annotations

import re
from pathlib import Path

from .shell import Failed, run

TABLES = ("filter", "nat")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_ITS_OWN = re.compile(r"\bDOCKER|\bdocker0\b|\bbr-[0-9a-f]{12}\b|\b172\.(?:1[789]|2\d|3[01])\.\d+\.\d+/\d+ ! -o ")


class Firewall:
    """As it was when this was made."""

    def __init__(self) -> None:
        self._policies = {table: _policies(saved(table)) for table in TABLES}
        self._forwarding = FORWARDING.read_text()

    def restore(self) -> None:
        """The engine's chains, rules and bridge are gone; policies and forwarding are what they were."""
        for table in TABLES:
            kept = [line for line in saved(table).splitlines() if not _ITS_OWN.search(line)]
            lines = [_with_policy(line, self._policies[table]) for line in kept]
            if lines:
                run("iptables-restore", "--table", table, given="\n".join(lines) + "\n")
        if Path("/sys/class/net/docker0").exists():
            run("ip", "link", "del", "docker0")
        FORWARDING.write_text(self._forwarding)


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
