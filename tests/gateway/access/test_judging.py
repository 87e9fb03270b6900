"""Addresses, origins, refused tries, and whether a key is good: pure judgements."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.access.addresses import LOCAL, Proxies, neighbourhood
from gateway.access.failures import REMEMBERED, WINDOW_S, Failures
from gateway.access.origins import Origins
from gateway.access.validity import fault
from session_store import ApiKey
from session_store.tokens import digest


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        ("", "203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.0/8", "203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.0/8", "10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.0/8", "10.1.2.3", "1.2.3.4, 198.51.100.1, 10.9.9.9", "198.51.100.1"),
        ("10.0.0.0/8", "10.1.2.3", "", "10.1.2.3"),
        ("10.0.0.0/8", "10.1.2.3", "unknown", "10.1.2.3"),
        ("10.0.0.0/8", "10.1.2.3", "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("fd00::/8, 127.0.0.1", "fd00::1", "[2001:db8::7]:99", "2001:db8::7"),
        ("0.0.0.0/0", "10.1.2.3", "1.2.3.4", "1.2.3.4"),
        ("", None, "1.2.3.4", LOCAL),
    ],
)
def test_an_address_is_believed_only_where_a_trusted_proxy_wrote_it(trusted: str, peer: str | None, forwarded: str, client: str) -> None:
    assert Proxies(trusted).client(peer, forwarded) == client


def test_one_subscriber_of_ipv6_is_one() -> None:
    assert neighbourhood("2001:db8:0:7::1") == neighbourhood("2001:db8:0:7:ffff::2") != neighbourhood("2001:db8:0:8::1")
    assert neighbourhood("203.0.113.9") == "203.0.113.9" and neighbourhood(LOCAL) == LOCAL


@pytest.mark.parametrize(
    ("allowed", "origin", "host", "let_in"),
    [
        ("", None, "parley.example:8080", True),
        ("", "http://parley.example:8080", "parley.example:8080", True),
        ("", "https://parley.example", "parley.example", True),
        ("", "https://parley.example", "parley.example:443", True),
        ("", "http://PARLEY.example:80", "parley.example", True),
        ("", "https://parley.example", "parley.example:8080", False),
        ("", "https://evil.example", "parley.example", False),
        ("", "https://parley.example.evil.example", "parley.example", False),
        ("", "null", "parley.example", False),
        ("", "https://parley.example", None, False),
        ("", "http://[::1]:8080", "[::1]:8080", True),
        ("https://app.example", "https://app.example", "parley.example", True),
        ("https://app.example/", "https://app.example:443", "parley.example", True),
        ("https://app.example", "http://app.example", "parley.example", False),
        ("https://app.example", "https://parley.example", "parley.example", False),
        ("https://app.example", None, "parley.example", True),
        ("https://xn--bcher-kva.example, http://[::1]:8080", "https://xn--bcher-kva.example", "x", True),
        ("https://xn--bcher-kva.example, http://[::1]:8080", "http://[::1]:8080", "x", True),
        ("https://a.example, https://b.example:8443", "https://b.example:8443", "x", True),
        ("*", "null", "parley.example", True),
        ("", "http://parley.example:99999", "parley.example:99999", False),
        ("", "http://user@parley.example", "parley.example", False),
    ],
)
def test_which_pages_may_connect(allowed: str, origin: str | None, host: str | None, let_in: bool) -> None:
    assert Origins(allowed).allow(origin, host) is let_in


@pytest.mark.parametrize(
    "allowed",
    [
        "app.example",
        "https://",
        "https://app.example/path",
        "https://a.example https://b.example",
        "https://*.example.com",
        "https://b\u00fccher.example",
    ],
)
def test_what_is_no_origin_is_refused_at_the_start(allowed: str) -> None:
    with pytest.raises(ValueError):
        Origins(allowed)


@pytest.mark.behaviour("X14")
def test_an_address_may_fail_so_often_within_a_minute_and_then_waits() -> None:
    clock = Clock()
    failures = Failures(3, clock)
    for _ in range(3):
        assert failures.wait_ms("a") == 0
        failures.note("a")
        clock.now += 10
    assert failures.wait_ms("a") == (WINDOW_S - 30) * 1000 and failures.wait_ms("b") == 0
    clock.now += WINDOW_S - 30
    assert failures.wait_ms("a") == 0
    failures.note("a")
    assert failures.wait_ms("a") == 10_000, "until the second of them is a minute old"


def test_only_so_many_addresses_are_remembered() -> None:
    failures = Failures(1, Clock())
    for number in range(REMEMBERED + 1):
        failures.note(str(number))
    assert failures.wait_ms("0") == 0 and failures.wait_ms("1") and failures.wait_ms(str(REMEMBERED))


def test_when_a_key_is_good() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)

    def key(**fields: object) -> ApiKey:
        return ApiKey(id="k", tenant="t", sha256=digest("x"), **fields)  # type: ignore[arg-type]

    assert fault(None) == "unknown"
    assert fault(key()) is None
    assert fault(key(revoked=True)) == "revoked"
    assert fault(key(not_after="2030-01-01T00:00:01Z"), now) is None
    assert fault(key(not_after="2030-01-01T00:00:00Z"), now) == "expired"
    assert fault(key(not_after="2030-01-01T01:00:01+01:00"), now) is None
    assert fault(key(not_after="2030-99-01T00:00:00Z"), now) == "expired"
