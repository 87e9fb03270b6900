"""Downloads against a hub on this machine: whole, broken off, resumed, damaged, refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minicpmo45 import download as module
from minicpmo45.download import Hub, download, main
from minicpmo45.errors import Damaged, DownloadError, Offline
from tests.minicpmo45.hub import LARGE, REPO, REVISION, FakeHub, serving

SHARD = "model-00001-of-00002.safetensors"
FLOW = "assets/token2wav/flow.pt"
CONTENT = {
    "config.json": b'{"version": "4.5"}',
    "merges.txt": b"a b\n" * 100,
    SHARD: random.Random(1).randbytes(3_000_001),
    FLOW: random.Random(2).randbytes(LARGE + 7),
    "assets/HT_ref_audio.wav": b"RIFF" * 50,
    "empty.json": b"",
}
UNWANTED = {"modeling_minicpmo.py": b"import os", "assets/film.mp4": b"film", "README.md": b"words", "a/deeper/config.json": b"{}"}


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub(CONTENT | UNWANTED)


@pytest.fixture
def fetch(hub: FakeHub, tmp_path: Path) -> Iterator[Callable[[], list[Path]]]:
    """Downloads into tmp_path / "out", one file at a time, without pauses."""
    with serving(hub) as host:
        yield lambda: download(Hub(host, REPO, REVISION), tmp_path / "out", workers=1, attempts=3, pause_s=0)


def kept(tmp_path: Path) -> dict[str, bytes]:
    out = tmp_path / "out"
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}


def ranges(hub: FakeHub, path: str) -> list[str | None]:
    return [asked for name, asked in hub.requests if name == path]


def test_what_a_service_needs_is_fetched_and_nothing_else(fetch: Callable[[], list[Path]], tmp_path: Path) -> None:
    files = fetch()
    assert kept(tmp_path) == CONTENT
    assert sorted(str(file.relative_to(tmp_path / "out")) for file in files) == sorted(CONTENT)


def test_a_second_call_fetches_nothing(fetch: Callable[[], list[Path]], hub: FakeHub) -> None:
    first = fetch()
    hub.requests.clear()
    assert fetch() == first
    assert hub.requests == []


def test_a_listing_of_several_pages_is_followed(fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.page = 2
    fetch()
    assert kept(tmp_path) == CONTENT


def test_a_connection_that_ends_in_mid_file_is_resumed_at_the_byte(fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks[SHARD] = [1_234_567, 1_000_000]
    fetch()
    assert kept(tmp_path) == CONTENT
    assert ranges(hub, SHARD) == [None, "bytes=1234567-", "bytes=2234567-"]
    assert sum(hub.asked().values()) == len(CONTENT) + 2


def test_a_later_run_goes_on_where_the_first_gave_up(fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks[SHARD] = [500_000, 1, 1]
    with pytest.raises(DownloadError, match="500,002 of 3,000,001 bytes") as failure:
        fetch()
    assert failure.value.item == SHARD
    found = kept(tmp_path)
    assert found.pop(f"{SHARD}.partial") == CONTENT[SHARD][:500_002]
    assert found == {path: content for path, content in CONTENT.items() if path != SHARD}
    hub.requests.clear()
    fetch()
    assert kept(tmp_path) == CONTENT
    assert hub.requests == [(SHARD, "bytes=500002-")]


def test_a_hub_without_ranges_begins_anew(fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.ignores_ranges = True
    hub.breaks[SHARD] = [2_000_000]
    fetch()
    assert kept(tmp_path) == CONTENT


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_busy_hub_is_asked_again(status: int, fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.statuses[FLOW] = [status, status]
    fetch()
    assert kept(tmp_path) == CONTENT


def test_a_refusal_is_final_and_the_others_are_fetched(fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.statuses[SHARD] = [403]
    with pytest.raises(DownloadError, match="answered 403") as failure:
        fetch()
    assert failure.value.item == SHARD
    assert hub.asked()[SHARD] == 1
    assert set(kept(tmp_path)) == set(CONTENT) - {SHARD}


@pytest.mark.parametrize("path", [SHARD, "config.json"], ids=["sha256", "git"])
def test_damaged_bytes_are_removed_and_fetched_anew_next_time(
    path: str, fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path
) -> None:
    good = hub.files[path]
    hub.announced[path] = good
    hub.files[path] = good[:-3] + b"..."
    with pytest.raises(Damaged) as failure:
        fetch()
    assert failure.value.item == path
    assert set(kept(tmp_path)) == set(CONTENT) - {path}
    hub.files[path] = good
    fetch()
    assert kept(tmp_path) == CONTENT


def test_bytes_left_from_another_revision_are_found_out(fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks[SHARD] = [1_000_000, 0, 0]
    with pytest.raises(DownloadError):
        fetch()
    hub.files[SHARD] = random.Random(9).randbytes(3_000_001)
    with pytest.raises(Damaged):
        fetch()
    fetch()
    assert kept(tmp_path)[SHARD] == hub.files[SHARD]


@pytest.mark.parametrize("extra", [0, 5])
def test_a_partial_file_that_is_whole_or_too_long_is_judged_without_the_hub(
    extra: int, fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{SHARD}.partial").write_bytes(CONTENT[SHARD] + b"x" * extra)
    if extra:
        with pytest.raises(Damaged):
            fetch()
    fetch()
    assert kept(tmp_path) == CONTENT
    assert hub.asked()[SHARD] == (1 if extra else 0)


def test_a_file_of_another_size_is_fetched_again(fetch: Callable[[], list[Path]], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.json").write_text("{}")
    fetch()
    assert kept(tmp_path) == CONTENT


def test_several_at_once_and_the_account_of_bytes(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[int] = []

    def started(total: int, done: int) -> Callable[[int], None]:
        seen.extend((-total, done))
        return seen.append

    hub.breaks[SHARD] = [1_500_000]
    with serving(hub) as host:
        download(Hub(host, REPO, REVISION), tmp_path / "out", workers=4, pause_s=0, started=started)
    total = sum(map(len, CONTENT.values()))
    assert seen[:2] == [-total, 0]
    assert sum(seen[2:]) == total
    assert kept(tmp_path) == CONTENT


@pytest.mark.parametrize("path", ["../evil.json", "assets/../../evil.wav", "assets/token2wav/../../../evil.pt", "/etc/evil.json"])
def test_no_path_leads_out_of_the_folder(path: str, fetch: Callable[[], list[Path]], hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {**CONTENT, path: b"evil"}
    fetch()
    assert kept(tmp_path) == CONTENT
    assert not list(tmp_path.glob("evil*"))


@pytest.mark.parametrize(
    ("host", "repo", "kind", "named"),
    [
        ("", REPO, Offline, "host"),
        ("ftp://127.0.0.1", REPO, DownloadError, "host"),
        ("127.0.0.1", REPO, DownloadError, "host"),
        ("http://127.0.0.1", "owner", DownloadError, "repo"),
        ("http://127.0.0.1", "owner/../x", DownloadError, "repo"),
    ],
)
def test_a_wrong_argument_is_named(host: str, repo: str, kind: type[DownloadError], named: str) -> None:
    with pytest.raises(kind) as failure:
        Hub(host, repo, "main")
    assert failure.value.item == named


def test_nothing_is_fetched_unless_a_host_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(module.HOST_VARIABLE, raising=False)
    assert main(["--repo", REPO, "--revision", "main", "--out", str(tmp_path / "out")]) == 1
    assert "--host" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("repo", "revision", "why"), [(REPO, "other", "answered 404"), ("owner/none", REVISION, "answered 404")])
def test_a_repository_that_is_not_there_is_said(repo: str, revision: str, why: str, hub: FakeHub, tmp_path: Path) -> None:
    with serving(hub) as host, pytest.raises(DownloadError, match=why):
        download(Hub(host, repo, revision), tmp_path / "out")


def test_a_repository_without_a_checkpoint_is_said(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = dict(UNWANTED)
    with serving(hub) as host, pytest.raises(DownloadError, match="no checkpoint"):
        download(Hub(host, REPO, REVISION), tmp_path / "out")


def test_a_hub_that_is_down_is_said(hub: FakeHub, tmp_path: Path) -> None:
    with serving(hub) as host:
        pass
    with pytest.raises(DownloadError, match="cannot be reached"):
        download(Hub(host, REPO, REVISION), tmp_path / "out")


def test_the_command(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--repo", REPO, "--revision", REVISION, "--out", str(tmp_path / "out")]
    with serving(hub) as host:
        monkeypatch.setenv(module.HOST_VARIABLE, host)
        assert main(arguments) == 0
        assert "6 files present" in capsys.readouterr().out
        hub.files["config.json"] = b"{}"
        hub.statuses["config.json"] = [404]
        assert main([*arguments, "--host", host]) == 1
    assert capsys.readouterr().err == "download: config.json: 0 of 2 bytes arrived; the hub answered 404\n"
    assert kept(tmp_path) == CONTENT
