"""Keys in a file and in the store: read again, remembered for a while, and never kept as text. And the tool that makes them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from gateway.access.key_file import KeyFile, KeyFileError, read_keys
from gateway.access.keyring import Keyring
from gateway.access.keys_tool import main as keys_tool
from gateway.access.validity import fault
from gateway.settings import Settings
from gateway.wire.handshake import digest_key
from session_store import ApiKey, Store

LISTED = """
- id: one
  tenant: acme
  sha256: {digest}
  not_after: 2100-01-01T00:00:00Z
  max_sessions: 3
"""


def _entry(key_id: str = "one", text: str = "text of a key", **fields: object) -> dict[str, object]:
    return {"id": key_id, "tenant": "acme", "sha256": digest_key(text), **fields}


def _write(path: Path, *entries: dict[str, object]) -> Path:
    """As an operator, or a mounted Secret, replaces it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(list(entries)))
    new.replace(path)
    return path


def test_yaml_and_json_and_a_list_under_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(LISTED.format(digest=digest_key("a")))
    (key,) = read_keys(path)
    assert key == ApiKey(id="one", tenant="acme", sha256=digest_key("a"), not_after="2100-01-01T00:00:00Z", max_sessions=3)
    path.write_text(json.dumps({"keys": [_entry(revoked=True)]}))
    (key,) = read_keys(path)
    assert key.revoked
    path.write_text("")
    assert read_keys(path) == []


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([_entry(key="text")], "unknown field `key`"),
        ([_entry() | {"sha256": "text"}], "sha256"),
        ([_entry(max_sessions=0)], "max_sessions"),
        ([_entry(not_after="tomorrow")], "not_after"),
        ([_entry(not_after="2030-13-01T00:00:00Z")], "not_after"),
        ([_entry(), _entry(text="another")], "same id"),
        ([_entry(), _entry("two")], "same sha256"),
        ([_entry() | {"tenant": "a/b"}], "tenant"),
    ],
)
def test_a_file_that_says_what_no_key_can_be(tmp_path: Path, entries: list[dict[str, object]], why: str) -> None:
    with pytest.raises(KeyFileError) as refused:
        read_keys(_write(tmp_path / "keys", *entries))
    assert why in str(refused.value) and digest_key("text of a key") not in str(refused.value)


@pytest.mark.parametrize("text", ["{", "- [", "\x00", "just words", "[" * 900 + "]" * 900, "[" * 100_000])
def test_a_file_that_is_no_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(KeyFileError):
        read_keys(tmp_path / "keys")
    with pytest.raises(KeyFileError, match="No such file"):
        read_keys(tmp_path / "nowhere")


async def test_a_file_is_read_again_when_it_changes_and_keeps_its_keys_when_it_cannot_be(tmp_path: Path) -> None:
    path = _write(tmp_path / "keys", _entry())
    file = KeyFile(path)
    assert [key.id for key in await file.keys()] == ["one"]
    _write(path, _entry(), _entry("two", "another"))
    assert [key.id for key in await file.keys()] == ["one", "two"]
    path.write_text("- broken: [")
    assert [key.id for key in await file.keys()] == ["one", "two"]
    assert _current() == 0
    path.unlink()
    assert [key.id for key in await file.keys()] == ["one", "two"]
    assert _current() == 0, "as long as it is so"
    _write(path)
    assert await file.keys() == []
    assert _current() == 1


def _current() -> float | None:
    return REGISTRY.get_sample_value("parley_gateway_key_file_current")


async def test_nobody_is_judged_by_what_a_file_said_while_it_is_read_again(tmp_path: Path) -> None:
    """A large one takes a while, in which a revoked key must not be good for those who come second."""
    many = [_entry(f"k{number}", str(number)) for number in range(3000)]
    path = _write(tmp_path / "keys", *many)
    file = KeyFile(path)
    _write(path, {**many[0], "revoked": True}, *many[1:])
    for keys in await asyncio.gather(*(file.keys() for _ in range(3))):
        assert keys[0].revoked


async def test_a_link_that_is_turned_is_a_change(tmp_path: Path) -> None:
    """As a mounted Secret of Kubernetes changes."""
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        _write(tmp_path / number / "keys", _entry(number))
    link = tmp_path / "data"
    link.symlink_to("1")
    file = KeyFile(link / "keys")
    assert [key.id for key in await file.keys()] == ["1"]
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").replace(link)
    assert [key.id for key in await file.keys()] == ["2"]


async def test_settings_file_and_store_together(store: Store, tmp_path: Path) -> None:
    await store.api_keys.put(ApiKey(id="stored", tenant="t", sha256=digest_key("stored key")))
    path = _write(tmp_path / "keys", _entry())
    ring = Keyring(Settings(api_keys="plain", keys_file=path, keys_in_redis=True), store)  # type: ignore[arg-type]
    plain = await ring.find(digest_key("plain"))
    assert plain is not None and plain.tenant == digest_key("plain") and await ring.get(plain.id) == plain
    for text, key_id in (("text of a key", "one"), ("stored key", "stored")):
        found = await ring.find(digest_key(text))
        assert found is not None and found.id == key_id and await ring.get(key_id) == found
    assert await ring.find(digest_key("nobody's")) is None and await ring.get("nobody") is None


async def test_a_key_of_the_store_with_the_id_of_another_lets_nobody_in(store: Store, tmp_path: Path) -> None:
    """It would be counted, revoked, and stood for by client secrets as the other, which may be another tenant's."""
    ring = Keyring(Settings(keys_file=_write(tmp_path / "keys", _entry()), keys_in_redis=True), store)
    await store.api_keys.put(ApiKey(id="one", tenant="evil", sha256=digest_key("stored key")))
    assert await ring.find(digest_key("stored key")) is None
    kept = await ring.get("one")
    assert kept is not None and kept.tenant == "acme" == (await ring.kept({"one", "two"}))["one"].tenant


async def test_what_asks_for_a_key(store: Store, tmp_path: Path) -> None:
    assert not Keyring(Settings(), store).asks
    assert Keyring(Settings(api_keys="x"), store).asks  # type: ignore[arg-type]
    assert Keyring(Settings(keys_in_redis=True), store).asks
    assert Keyring(Settings(keys_file=_write(tmp_path / "keys")), store).asks, "a file without keys lets nobody in"


@pytest.mark.behaviour("X14")
async def test_a_key_of_the_store_is_believed_for_its_time_and_not_longer(store: Store) -> None:
    now = [0.0]
    ring = Keyring(Settings(keys_in_redis=True, keys_cache_ms=5000), store, lambda: now[0])
    key = ApiKey(id="k", tenant="t", sha256=digest_key("text"))
    assert await ring.find(key.sha256) is None
    await store.api_keys.put(key)
    assert fault(await ring.find(key.sha256)) is None, "a new key is good at once"
    await store.api_keys.revoke("k")
    now[0] = 4.999
    assert fault(await ring.find(key.sha256)) is None
    now[0] = 5.0
    assert fault(await ring.find(key.sha256)) == "revoked"


class Tool:
    """Runs the tool in this process; `said` is its standard output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def run(self, *arguments: str, text: str = "") -> str:
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        keys_tool(list(arguments))
        return self._capsys.readouterr().out

    def fails(self, *arguments: str, text: str = "") -> str:
        with pytest.raises(SystemExit) as failure:
            self.run(*arguments, text=text)
        return str(failure.value)


def test_the_tool_keeps_keys_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tool, path = Tool(monkeypatch, capsys), tmp_path / "keys.yaml"
    at = ("--file", str(path))
    text = tool.run("add", "--tenant", "acme", "--id", "one", "--days", "2", "--max-sessions", "4", *at).strip()
    (key,) = read_keys(path)
    assert text.startswith("sk-parley-") and key.sha256 == digest_key(text)
    assert text not in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    assert (key.tenant, key.max_sessions, fault(key)) == ("acme", 4, None) and key.not_after
    assert tool.fails("add", "--tenant", "acme", "--id", "one", *at) == "keys: two keys have the same id"
    monkeypatch.setenv("PARLEY_KEYS_FILE", str(path))
    for bad in ("short", "ek_that-is-no-key-but-a-secret", "a key with spaces in the text"):
        assert "a key has" in tool.fails("add", "--tenant", "b", "--stdin", text=f"{bad}\n")
    assert tool.run("add", "--tenant", "b", "--stdin", text="a-key-that-is-already-in-use\n").strip() == "a-key-that-is-already-in-use"
    path.chmod(0o640)
    tool.run("revoke", "one", *at)
    assert path.stat().st_mode & 0o777 == 0o640 and [fault(each) for each in read_keys(path)] == ["revoked", None]
    listed = tool.run("list", *at)
    assert "one\tacme\trevoked" in listed and key.sha256 not in listed
    assert tool.fails("revoke", "nobody", *at) == "keys: there is no key nobody"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--days", "0"), "more than 0 days"),
        (("--days=-1",), "more than 0 days"),
        (("--days", "1e9"), "no number of days"),
        (("--days", "nan"), "no number of days"),
        (("--id", "a b"), "--id: an id has"),
        (("--stdin",), "a key has"),
    ],
)
def test_the_tool_refuses_in_one_line(
    arguments: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Tool(monkeypatch, capsys).fails(
        "add", "--tenant", "acme", *arguments, "--file", str(tmp_path / "keys"), text="a-key-with-a\ttab-or-\x01-in-it\n"
    )
    assert why in said and "\n" not in said and not (tmp_path / "keys").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_tool_leaves_a_file_to_whom_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway that runs as another user must still be able to read what was revoked."""
    path = _write(tmp_path / "keys", _entry())
    os.chown(path, 12345, 23456)
    path.chmod(0o400)
    Tool(monkeypatch, capsys).run("revoke", "one", "--file", str(path))
    now = path.stat()
    assert (now.st_uid, now.st_gid, now.st_mode & 0o777) == (12345, 23456, 0o400) and read_keys(path)[0].revoked


def test_the_tool_changes_what_a_link_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    path, link = _write(tmp_path / "there" / "keys", _entry()), tmp_path / "link"
    link.symlink_to("there/keys")
    Tool(monkeypatch, capsys).run("revoke", "one", "--file", str(link))
    assert link.is_symlink() and read_keys(path)[0].revoked


async def test_the_command_keeps_keys_in_the_store(store: Store, valkey_url: str) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "parley", "keys", *arguments, "--redis"]
        env = {**os.environ, "PARLEY_REDIS_URL": valkey_url}
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=True).stdout

    made = await asyncio.to_thread(run, "add", "--tenant", "acme", "--id", "one")
    found = await store.api_keys.find(digest_key(made.strip()))
    assert found is not None and found.id == "one"
    await asyncio.to_thread(run, "revoke", "one")
    assert "one\tacme\trevoked" in await asyncio.to_thread(run, "list")
