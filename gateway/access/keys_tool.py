"""`python -m gateway.access.keys_tool`: adds, lists and revokes keys, in a file or in the store. What `parley keys` runs."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import secrets
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from gateway.settings import Settings
from gateway.wire.handshake import KEY_FORM, can_be_key, digest_key
from session_store import ApiKey, KeyTaken, Store
from session_store.errors import StoreError
from session_store.keys import check_id

from .key_file import KeyFileError, read_keys
from .validity import fault

KEY_PREFIX = "sk-parley-"
"""Tells scanners for lost secrets, and people, what it is."""
MIN_CHARS = 24
T = TypeVar("T")


def main(arguments: list[str] | None = None) -> None:
    """Exits with 0, or with one line and 1 or 2."""
    options = _parser().parse_args(arguments)
    try:
        {"add": _add, "list": _list, "revoke": _revoke}[options.command](options)
    except (KeyFileError, KeyTaken, StoreError, OSError, ValueError, msgspec.ValidationError) as failure:
        sys.exit(f"keys: {failure}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="parley keys", description="Who may open sessions.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="makes a key, says it once on stdout, and keeps its digest")
    add.add_argument("--tenant", required=True, help="whose sessions they are; keys of one tenant may resume each other's")
    add.add_argument("--id", help="stands for the key in lists and logs; default: drawn")
    add.add_argument("--days", type=float, help="it expires after so many days")
    for name in ("max-sessions", "tenant-max-sessions", "opens-per-minute"):
        add.add_argument(f"--{name}", type=int)
    add.add_argument("--stdin", action="store_true", help=f"take the key's text from standard input (at least {MIN_CHARS} characters)")
    shown = commands.add_parser("list", help="every key, without its digest")
    revoke = commands.add_parser("revoke", help="lets nobody in with this key any more, and ends its sessions")
    revoke.add_argument("id")
    for command in (add, shown, revoke):
        place = command.add_mutually_exclusive_group()
        place.add_argument("--file", type=Path, help="the file that PARLEY_KEYS_FILE names")
        place.add_argument("--redis", action="store_true", help="the store that PARLEY_REDIS_URL (or _FILE) names")
    return parser


def _add(options: argparse.Namespace) -> None:
    text = sys.stdin.readline().strip() if options.stdin else KEY_PREFIX + secrets.token_urlsafe(32)
    if len(text) < MIN_CHARS or not can_be_key(text):
        raise ValueError(f"a key has at least {MIN_CHARS} and {KEY_FORM}")
    for name in ("tenant", "id"):
        _check_name(name, getattr(options, name))
    ends = None if options.days is None else _in_days(options.days)
    fields = {
        "id": options.id or f"key_{secrets.token_hex(4)}",
        "tenant": options.tenant,
        "sha256": digest_key(text),
        "not_after": ends,
        **{name: getattr(options, name) for name in ("max_sessions", "tenant_max_sessions", "opens_per_minute")},
    }
    key = msgspec.convert({name: value for name, value in fields.items() if value is not None}, ApiKey)
    if options.redis:
        _with_store(lambda store: _put_new(store, key))
    elif (path := _file(options)) is not None:
        _change(path, lambda keys: [*keys, key], create=True)
    else:
        print(_text([key]), end="", file=sys.stderr)
    print(text)


def _check_name(option: str, value: str | None) -> None:
    try:
        check_id(value or "drawn")
    except ValueError as failure:
        raise ValueError(f"--{option}: {failure}") from None


def _in_days(days: float) -> str:
    try:
        ends = datetime.now(UTC) + timedelta(days=days)
    except (OverflowError, ValueError):
        raise ValueError("--days is no number of days") from None
    if days <= 0:
        raise ValueError("--days: a key expires after more than 0 days; leave it out for one that does not")
    return ends.replace(microsecond=0).isoformat().replace("+00:00", "Z")


async def _put_new(store: Store, key: ApiKey) -> None:
    if await store.api_keys.get(key.id) is not None:
        raise ValueError(f"there is a key {key.id}")
    await store.api_keys.put(key)


def _list(options: argparse.Namespace) -> None:
    path = _file(options)
    if not options.redis and path is None:
        raise ValueError("name a --file, or --redis")
    keys = _with_store(lambda store: store.api_keys.list()) if options.redis or path is None else read_keys(path)
    for key in keys:
        print(f"{key.id}\t{key.tenant}\t{fault(key) or 'good'}\t{key.not_after or '-'}\t{_bounds(key)}")


def _bounds(key: ApiKey) -> str:
    names = ("max_sessions", "tenant_max_sessions", "opens_per_minute")
    return " ".join(f"{name}={value}" for name in names if (value := getattr(key, name)) is not None) or "-"


def _revoke(options: argparse.Namespace) -> None:
    path = _file(options)
    if options.redis:
        known = _with_store(lambda store: store.api_keys.revoke(options.id))
    elif path is not None:
        known = any(key.id == options.id for key in read_keys(path))
        if known:
            _change(path, lambda keys: [msgspec.structs.replace(key, revoked=key.revoked or key.id == options.id) for key in keys])
    else:
        raise ValueError("name a --file, or --redis")
    if not known:
        raise ValueError(f"there is no key {options.id}")


def _file(options: argparse.Namespace) -> Path | None:
    return None if options.redis else options.file or Settings().keys_file


def _with_store(work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        async with await Store.open(Settings().redis_url.get_secret_value()) as store:
            return await work(store)

    return asyncio.run(run())


def _change(path: Path, change: Callable[[list[ApiKey]], list[ApiKey]], *, create: bool = False) -> None:
    """The file as a whole is replaced, so that no gateway reads half of it. Who could read it, still can."""
    path = path.resolve()  # where a link leads: a gateway may know the file by another name
    with _alone(path.parent):
        keys = change(read_keys(path) if path.exists() or not create else [])
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(_text(keys))
            read_keys(temporary)
            if path.exists():
                _keep_owner(temporary, path.stat())
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise


def _keep_owner(path: Path, before: os.stat_result) -> None:
    """Else a gateway that runs as another user goes on with what it read last, and a revocation does not reach it."""
    now = path.stat()
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.chown(path, before.st_uid, before.st_gid)
        except PermissionError:
            raise ValueError(f"the file is another user's: do it as user {before.st_uid} of group {before.st_gid}, or as root") from None
    path.chmod(before.st_mode & 0o777)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _text(keys: list[ApiKey]) -> str:
    """YAML; a file that ends in .json is read as well, since JSON is YAML."""
    return yaml.safe_dump(msgspec.to_builtins(keys), sort_keys=False)


if __name__ == "__main__":
    main()
