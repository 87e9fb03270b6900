"""The talk page's files, and its own unit tests under Node."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway import web

ASSETS = web.load_assets()
TESTS = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_the_page_logic_under_node(file: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on this machine")
    done = subprocess.run([node, "--test", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_of_the_page_is_served() -> None:
    assert ASSETS["/"].media_type.startswith("text/html")
    assert {path for path in ASSETS if path.endswith(".js")} == {f"/{file.name}" for file in Path(web.__file__).parent.glob("*.js")}


@pytest.mark.parametrize("path", sorted(ASSETS))
def test_files_refer_only_to_files_of_the_page(path: str) -> None:
    text = ASSETS[path].body.decode("utf-8")
    referred = re.findall(r"""(?:from|import|module\()\s*["']([^"']+)["']""", text) if path.endswith(".js") else []
    if path == "/":
        referred = [name for name in re.findall(r'(?:src|href)="([^"]+)"', text) if not name.startswith("data:")]
        assert referred
    for name in referred:
        assert "/" + name.removeprefix("./") in ASSETS


@pytest.mark.parametrize("path", sorted(ASSETS))
def test_nothing_comes_from_elsewhere(path: str) -> None:
    text = ASSETS[path].body.decode("utf-8").replace("http://www.w3.org/2000/svg", "").replace("http://localhost", "")
    assert not re.search(r"(?:https?|wss?)://|url\(|@import|//\w+\.\w+/", text)


def test_every_control_has_a_name_and_every_id_exists() -> None:
    page = ASSETS["/"].body.decode("utf-8")
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    assert set(re.findall(r'\$\("([^"]+)"\)', ASSETS["/app.js"].body.decode("utf-8"))) <= ids
    for control in re.findall(r"<(?:input|select)\b[^>]*\bid=\"([^\"]+)\"", page):
        assert f'for="{control}"' in page


def test_the_page_may_load_only_its_own_code() -> None:
    policy = web.HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
