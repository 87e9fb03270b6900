"""Images as they are built: what is in them, who runs them, how they leave."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.support.engine import ROOT, Engine
from tests.deploy.support.shell import Failed

pytestmark = pytest.mark.timeout(900)
PROCESSES = ("gateway", "vad", "thinker", "talker", "vocoder")
CONFINED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")
SOON_S = 10.0
PACKAGE_LAYERS = 3
"""Of an image: the base, what is installed of Debian, what is installed of Python."""


def inspected(engine: Engine, tag: str) -> dict[str, Any]:
    return dict(json.loads(engine.docker("image", "inspect", tag))[0])


def test_every_image_has_its_user_and_its_health(engine: Engine, images: dict[str, str]) -> None:
    for name in PROCESSES:
        config = inspected(engine, images[name])["Config"]
        assert config["User"] == "10001:10001", name
        assert config["Healthcheck"]["Test"][:4] == ["CMD", "python", "-I", "probe.py"], name
        assert config["Entrypoint"] == ["tini", "--"], name


def test_stages_share_their_layers(engine: Engine, images: dict[str, str]) -> None:
    layers = [inspected(engine, images[name])["RootFS"]["Layers"] for name in ("vad", "thinker", "talker", "vocoder")]
    assert all(each[:PACKAGE_LAYERS] == layers[0][:PACKAGE_LAYERS] for each in layers)


@pytest.fixture(scope="module")
def other_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of somebody who lets nobody else read files, with one file more."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("deploy", "profiles", "proto", "parley", "gateway", "session_store", "stage_kit"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "grafana", "prometheus"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".dockerignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "parley" / "another.py").write_text("")
    for path in folder.rglob("*"):
        # modes of what a build only mounts are part of what its layers are found by
        if path.name not in ("base.sh", "install.sh") and path.parent.name != "lock":
            path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def test_other_code_lies_on_the_same_packages(engine: Engine, images: dict[str, str], other_code: Path) -> None:
    """The large layers are made anew only when a lock changes."""
    before = inspected(engine, images["thinker"])["RootFS"]["Layers"]
    engine.build("thinker", "parley/thinker:another", context=other_code)
    after = inspected(engine, "parley/thinker:another")["RootFS"]["Layers"]
    assert after != before
    assert after[:PACKAGE_LAYERS] == before[:PACKAGE_LAYERS]


@pytest.mark.parametrize(
    ("target", "needed"),
    [
        ("gateway", ["probe.py", "make_secrets.sh", "profiles/embedded.yaml"]),
        ("thinker", ["probe.py"]),
        ("proxy", ["probe.py", "/etc/haproxy/haproxy.cfg"]),
    ],
)
def test_its_user_can_read_what_is_in_an_image_whoever_cloned(target: str, needed: list[str], engine: Engine, other_code: Path) -> None:
    tag = f"parley/{target}:another"
    engine.build(target, tag, context=other_code)
    said = engine.docker(
        "run", "--rm", *CONFINED, tag, "python3", "-c", "import sys; [open(name).close() for name in sys.argv[1:]]", *needed
    )
    assert said == ""


@pytest.mark.parametrize("name", ["gateway", "thinker"])
def test_what_is_installed_fits_together(name: str, engine: Engine, images: dict[str, str]) -> None:
    assert "No broken requirements" in engine.docker("run", "--rm", *CONFINED, images[name], "pip", "check")


def test_the_gateway_carries_no_engines_of_models(engine: Engine, images: dict[str, str]) -> None:
    installed = json.loads(engine.docker("run", "--rm", *CONFINED, images["gateway"], "pip", "list", "--format", "json"))
    names = {each["name"].lower() for each in installed}
    assert "parley" in names
    assert not {"torch", "onnxruntime", "onnx", "ctranslate2", "transformers", "triton"} & names


def test_no_authority_stays_in_an_image(engine: Engine, images: dict[str, str]) -> None:
    for name in ("gateway", "thinker"):
        history = engine.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", images[name])
        assert "PIP_CERT=" not in history
        assert engine.docker("run", "--rm", *CONFINED, images[name], "sh", "-c", "ls /run/secrets 2>/dev/null || true").strip() == ""


def test_probes_have_the_exit_codes_that_health_checks_read(engine: Engine, images: dict[str, str]) -> None:
    for url in ("http://127.0.0.1:1/", "grpc://127.0.0.1:1/ready"):
        with pytest.raises(Failed, match="exited with 3"):
            engine.docker("run", "--rm", *CONFINED, images["vad"], "parley", "probe", "--timeout-s", "1", url)


def test_one_that_is_told_to_leave_while_it_starts_leaves(engine: Engine, images: dict[str, str]) -> None:
    """Python has no handler yet, and the kernel would not end a process 1 without one."""
    for name in ("gateway", "vad"):
        container = engine.docker("run", "--detach", *CONFINED, images[name]).strip()
        begun = time.monotonic()
        engine.docker("stop", "--time", "30", container)
        took = time.monotonic() - begun
        engine.docker("rm", "--force", container)
        assert took < SOON_S, name
