"""Whose request it is. An address that a request tells of itself is believed only where a trusted proxy wrote it down."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
LOCAL = "local"
"""A peer without an address: a unix socket."""
IPV6_PREFIX = 64
"""What one subscriber has; a single address of it is free to change."""


class Proxies:
    """The proxies in front of the gateway."""

    def __init__(self, trusted: str) -> None:
        """trusted: comma-separated addresses and networks. Raises ValueError."""
        names = [name.strip() for name in trusted.split(",") if name.strip()]
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(name, strict=False) for name in names]

    def client(self, peer: str | None, forwarded: str) -> str:
        """The nearest address that is no trusted proxy's.

        peer: who holds the connection. forwarded: X-Forwarded-For, the values of several such headers joined by commas.
        """
        address = parse(peer)
        if address is None:
            return LOCAL
        for hop in reversed(forwarded.split(",")):
            if not self._trusts(address):
                break
            if (before := parse(hop)) is None:
                break
            address = before
        return str(address)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks if network.version == address.version)


def parse(text: str | None) -> Address | None:
    """The address, without a port or brackets around it; an IPv4 one also where it is written as IPv6. None: it is none."""
    text = (text or "").strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def neighbourhood(address: str) -> str:
    """What is counted as one: an IPv4 address, or an IPv6 network."""
    parsed = parse(address)
    return str(ip_network((parsed, IPV6_PREFIX), strict=False)) if isinstance(parsed, IPv6Address) else address
