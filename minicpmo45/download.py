"""Fetches a checkpoint from a hub, file by file, and goes on where it was broken off.

`python -m minicpmo45.download --repo OWNER/NAME --revision R --out PATH --host URL` (or the host in `PARLEY_HUB`). Nothing else in this
package opens a connection.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from minicpmo45.errors import Damaged, DownloadError, Offline
from minicpmo45.meter import Meter

HOST_VARIABLE = "PARLEY_HUB"
PARTIAL = ".partial"
CHUNK = 1 << 20
TIMEOUT_S = 60.0
ATTEMPTS = 5
"""For one file in one run; each goes on behind what the one before has kept."""
PAUSE_S = 0.5
"""Before the second attempt; doubled before each further one."""
NEEDED = re.compile(r"[^/]+\.(json|txt|safetensors)|assets/(token2wav/[^/]+|[^/]+\.wav)")
"""Weights, tokenizer, assets. Not the repository's code, which is never run, nor its films."""


class RemoteFile(msgspec.Struct, frozen=True):
    """One file as the hub announces it. `digest` is of the content (sha256) or, for small files, git's of the blob (sha1)."""

    path: str
    size: int
    digest: str

    def hasher(self) -> hashlib._Hash:
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


class Hub:
    """The listing and the files of one repository at one revision, under any host that speaks the hub's HTTP interface."""

    def __init__(self, host: str, repo: str, revision: str, timeout_s: float = TIMEOUT_S) -> None:
        if not host:
            raise Offline("host", f"none is named: give --host or set {HOST_VARIABLE}")
        if urlsplit(host).scheme not in ("http", "https"):
            raise DownloadError("host", f"{host!r} is no http or https address")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise DownloadError("repo", f"{repo!r} is not of the form OWNER/NAME")
        self._host, self._repo, self._revision, self._timeout_s = host.rstrip("/"), repo, quote(revision, safe=""), timeout_s

    def files(self) -> list[RemoteFile]:
        """The needed files. Raises DownloadError when the hub cannot be reached or answers something else than a listing."""
        url: str | None = f"{self._host}/api/models/{self._repo}/tree/{self._revision}?recursive=true"
        found: list[RemoteFile] = []
        while url is not None:
            try:
                with self._get(url) as answer:
                    entries = json.load(answer)
                    following = re.search(r'<([^>]+)>\s*;\s*rel="?next', answer.headers.get("Link", ""))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise DownloadError(self._repo, _why(error)) from None
            if not isinstance(entries, list):
                raise DownloadError(self._repo, "the hub's listing is no list")
            found += [self._announced(entry) for entry in entries if _is_needed(entry)]
            url = following[1] if following and following[1].startswith(f"{self._host}/") else None
        if not found:
            raise DownloadError(self._repo, f"holds no checkpoint at revision {self._revision}")
        return found

    def open(self, file: RemoteFile, begin: int) -> http.client.HTTPResponse:
        """The file's bytes from `begin` on. Raises OSError."""
        return self._get(f"{self._host}/{self._repo}/resolve/{self._revision}/{quote(file.path)}", begin)

    def _announced(self, entry: dict[str, Any]) -> RemoteFile:
        stored = entry.get("lfs") or entry
        file = RemoteFile(str(entry["path"]), int(entry.get("size", -1)), str(stored.get("oid", "")).removeprefix("sha256:"))
        if file.size < 0 or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", file.digest):
            raise DownloadError(file.path, "the hub announces no size or no digest of it")
        return file

    def _get(self, url: str, begin: int = 0) -> http.client.HTTPResponse:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begin}-"} if begin else {})
        answer: http.client.HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=self._timeout_s)
        return answer


def download(
    hub: Hub,
    out: Path,
    workers: int = 4,
    attempts: int = ATTEMPTS,
    pause_s: float = PAUSE_S,
    started: Callable[[int, int], Callable[[int], None]] = Meter,
) -> list[Path]:
    """Makes every needed file present in `out`; those that are there in the right size stay. Returns their paths.

    A file is `NAME.partial` until its size and digest are those announced, then renamed. `started` is told the bytes in all and those
    already there, and gives what is called with each piece. Raises Damaged or DownloadError for the first file that failed; the others are
    finished first, and a further call goes on from there.
    """
    files = hub.files()
    wanted = [file for file in files if not _is_whole(out / file.path, file)]
    there = sum(file.size for file in files) - sum(file.size - _kept(out, file) for file in wanted)
    report = started(sum(file.size for file in files), there)
    with ThreadPoolExecutor(workers) as pool:
        results = [pool.submit(_fetch, hub, file, out, attempts, pause_s, report) for file in wanted]
        failures = [failure for result in results if (failure := result.exception()) is not None]
    if failures:
        raise failures[0]
    return [out / file.path for file in files]


def _fetch(hub: Hub, file: RemoteFile, out: Path, attempts: int, pause_s: float, report: Callable[[int], None]) -> None:
    target = out / file.path
    partial = target.with_name(target.name + PARTIAL)
    failure: Exception | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(attempts):
            if partial.exists() and _kept(out, file) == file.size:
                break
            if attempt:
                time.sleep(pause_s * 2 ** (attempt - 1))
            try:
                _append(hub, file, partial, report)
            except urllib.error.HTTPError as error:
                failure = error
                if error.code not in (408, 416, 429) and error.code < 500:
                    break
                if error.code == 416:
                    partial.unlink(missing_ok=True)
            except (ConnectionError, TimeoutError, urllib.error.URLError, http.client.HTTPException) as error:
                failure = error
        _settle(file, partial, target, failure)
    except OSError as error:
        raise DownloadError(file.path, _why(error)) from None


def _append(hub: Hub, file: RemoteFile, partial: Path, report: Callable[[int], None]) -> None:
    """One connection: whatever arrives goes behind what is there. A hub that ignores the range begins anew."""
    begin = partial.stat().st_size if partial.exists() else 0
    with hub.open(file, begin) as answer:
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
        if not resumed:
            report(-begin)
        with partial.open("ab" if resumed else "wb") as sink:
            for piece in _pieces(answer):
                sink.write(piece)
                report(len(piece))
                if sink.tell() > file.size:
                    break


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read(CHUNK):
        yield piece


def _settle(file: RemoteFile, partial: Path, target: Path, failure: Exception | None) -> None:
    """Renames a whole file; raises what is wrong with any other."""
    size = partial.stat().st_size if partial.exists() else 0
    if size < file.size or not partial.exists():
        raise DownloadError(file.path, f"{size:,} of {file.size:,} bytes arrived; {_why(failure) if failure else 'the connection ended'}")
    hasher = file.hasher()
    with partial.open("rb") as content:
        while piece := content.read(CHUNK):
            hasher.update(piece)
    if size != file.size or hasher.hexdigest() != file.digest:
        partial.unlink()
        raise Damaged(file.path, f"{size:,} bytes of digest {hasher.hexdigest()}, announced were {file.size:,} of {file.digest}")
    partial.replace(target)


def _is_needed(entry: object) -> bool:
    """A file of ours whose path stays within the folder."""
    if not isinstance(entry, dict) or entry.get("type") != "file" or not isinstance(entry.get("path"), str):
        return False
    return NEEDED.fullmatch(entry["path"]) is not None and ".." not in PurePosixPath(entry["path"]).parts


def _is_whole(target: Path, file: RemoteFile) -> bool:
    return target.is_file() and target.stat().st_size == file.size


def _kept(out: Path, file: RemoteFile) -> int:
    """Bytes of it from an earlier attempt."""
    partial = out / (file.path + PARTIAL)
    return min(partial.stat().st_size, file.size) if partial.exists() else 0


def _why(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the hub answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return f"the hub cannot be reached: {error.reason}"
    if isinstance(error, DownloadError):
        return error.why
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def main(arguments: list[str] | None = None) -> int:
    """0 when all is there; 1 after one line that names the file at fault."""
    parser = argparse.ArgumentParser(prog="python -m minicpmo45.download", description=__doc__)
    parser.add_argument("--repo", required=True, help="OWNER/NAME")
    parser.add_argument("--revision", required=True, help="a commit, tag or branch")
    parser.add_argument("--out", required=True, type=Path, help="the checkpoint's folder")
    parser.add_argument("--host", default=os.environ.get(HOST_VARIABLE, ""), help=f"address of the hub; else {HOST_VARIABLE}")
    parser.add_argument("--workers", type=int, default=4, help="files at once")
    options = parser.parse_args(arguments)
    try:
        files = download(Hub(options.host, options.repo, options.revision), options.out, max(1, options.workers))
    except DownloadError as error:
        print(f"download: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(files)} files present")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
