"""URLs of a store behind sentinels: what they say, and what is none, without a word of a password."""

from __future__ import annotations

import pytest

from session_store import StoreSettings
from session_store.connection import Connection
from session_store.errors import StoreUnavailable, StoreUrlError
from session_store.sentinel_url import parse_sentinel_url

SECRET = "s3/c#r?e@t:"
QUOTED = "s3%2Fc%23r%3Fe%40t%3A"


@pytest.mark.parametrize(
    ("url", "service", "sentinels", "server", "sentinel"),
    [
        ("redis+sentinel://a/p", "p", [("a", 26379)], {}, {}),
        ("redis+sentinel://a:1,b,[::1]:3/my-p.r_1/2", "my-p.r_1", [("a", 1), ("b", 26379), ("::1", 3)], {"db": 2}, {}),
        (f"redis+sentinel://u:{QUOTED}@a:1/p", "p", [("a", 1)], {"username": "u", "password": SECRET}, {}),
        (f"rediss+sentinel://:{QUOTED}@a/p?sentinel_password=x%2Fy", "p", [("a", 26379)], {"password": SECRET}, {"password": "x/y"}),
        ("redis+sentinel://a/p?sentinel_username=u&client_name=c", "p", [("a", 26379)], {"client_name": "c"}, {"username": "u"}),
    ],
)
def test_what_a_url_says(
    url: str, service: str, sentinels: list[tuple[str, int]], server: dict[str, object], sentinel: dict[str, object]
) -> None:
    parsed = parse_sentinel_url(url)
    assert (parsed.service, list(parsed.sentinels)) == (service, sentinels)
    assert (parsed.server_options, parsed.sentinel_options) == (server, sentinel)
    assert parsed.tls == url.startswith("rediss") and not {SECRET, "x/y"} & set(repr(parsed).split("'"))
    Connection(url, StoreSettings())


def test_both_are_asked_by_tls_with_the_same_authority() -> None:
    parsed = parse_sentinel_url("rediss+sentinel://a/p?ssl_ca_certs=/ca.crt")
    assert parsed.server_options == parsed.sentinel_options == {"ssl_ca_certs": "/ca.crt"}


@pytest.mark.parametrize(
    "rest",
    [
        *("a, b/p", "a b/p", "a", "a/", "a//0", "/p", "a,/p", "a:/p", "a:0/p", "a:65536/p", "a:x/p", "[::1/p", "a/p/x", "a/p/0/1", "a/p q"),
        *("a/p?bogus=1", "a/p?sentinel_bogus=1", "a/p?sentinels=x", "a/p?db=x", "a/p?retry=x", "a/p?ssl_ca_certs=x"),
        *(f"u:se{mark}cret@a:1/p" for mark in "/#?["),
    ],
)
def test_what_is_no_such_url(rest: str) -> None:
    with pytest.raises(StoreUrlError) as refused:
        Connection(f"redis+sentinel://{rest}", StoreSettings())
    assert "cret" not in str(refused.value) and refused.value.__suppress_context__


@pytest.mark.parametrize("url", [f"redis://u:{QUOTED}@a/1", f"redis+sentinel://u:{QUOTED}@a/p?sentinel_password={QUOTED}"])
async def test_nothing_that_holds_a_password_shows_it(url: str) -> None:
    """Neither in logs nor where the command line shows what failed: there msgspec has a way of its own."""
    connection = Connection(url, StoreSettings())
    shown = repr(connection) + repr(connection._client) + repr(connection._client.connection_pool)
    if (sentinels := connection._sentinels) is not None:
        parsed = parse_sentinel_url(url)
        shown += repr(parsed) + repr(parsed.__rich_repr__()) + repr(vars(sentinels)) + repr(vars(sentinels._all[0]))
    assert SECRET not in shown and QUOTED not in shown
    await connection.close()


async def test_a_closed_connection_has_closed_its_sentinels_and_asks_no_more() -> None:
    connection = Connection("redis+sentinel://a/p", StoreSettings())
    await connection.close()
    with pytest.raises(StoreUnavailable, match="NoPrimary"):
        await connection.load()
