"""What images and compose are made of, without running anything: linted, pinned, resolved."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.support.compose import CPU, ROOT, TRUTH, resolved
from tests.deploy.support.shell import Failed, run
from tools import lock

GPU_SERVICES = ("thinker", "talker", "vocoder")
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
ONE_SHOTS = {"secrets", "models"}
PROFILES = ("--profile", "embedded", "--profile", "native", "--profile", "mps", "--profile", "observe")


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    """All services of all profiles."""
    return resolved(*PROFILES)


def reserved(service: dict[str, Any]) -> list[dict[str, Any]]:
    return list(service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", []))


def test_the_dockerfile_is_linted() -> None:
    run(Path(sys.executable).with_name("hadolint"), "--config", ROOT / ".hadolint.yaml", DOCKERFILE)


def test_no_frontend_is_pulled_and_no_registry_is_named() -> None:
    text = DOCKERFILE.read_text()
    assert "syntax=" not in text
    named = [line.split()[1] for line in text.splitlines() if line.startswith("FROM")]
    named += [line.partition("=")[2] for line in text.splitlines() if re.match(r"ARG \w+_BASE=", line)]
    assert named and all("." not in image.partition("/")[0] or "/" not in image for image in named)


def test_the_locks_are_of_the_present_constraints() -> None:
    assert lock.stale() == []


def test_every_locked_package_has_digests_and_the_version_that_is_tested() -> None:
    tested = {}
    for name in lock.CONSTRAINTS:
        pairs = (line.split("==") for line in (ROOT / name).read_text().split())
        tested |= {package.lower().replace("_", "-"): version for package, version in pairs}
    for name in lock.wanted():
        path = ROOT / lock.FOLDER / f"{name}.txt"
        for entry in re.split(r"\n(?=\w)", path.read_text().partition("\n")[2]):
            assert "--hash=sha256:" in entry, f"{name}: {entry[:60]}"
        pinned = lock.pins(path)
        assert {package: version for package, version in pinned.items() if tested.get(package, version) != version} == {}, name


def test_the_gateway_is_locked_without_engines_of_models() -> None:
    assert (
        not {"torch", "onnxruntime", "onnx", "ctranslate2", "transformers", "triton"} & lock.pins(ROOT / lock.FOLDER / "server.txt").keys()
    )


def test_every_service_of_a_gpu_keeps_its_reservation(everything: dict[str, Any]) -> None:
    for name in (*GPU_SERVICES, "mps"):
        [device] = reserved(everything["services"][name])
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"]), name
        assert device["device_ids"] == ["0"], name
    assert {name for name, service in everything["services"].items() if reserved(service)} == {*GPU_SERVICES, "mps"}


def test_one_gpu_is_shared_through_one_daemon() -> None:
    services = resolved("--env-file", "deploy/one-gpu.env")["services"]
    for name in GPU_SERVICES:
        service = services[name]
        assert (service["ipc"], service["depends_on"]["mps"]["condition"]) == ("service:mps", "service_healthy")
        assert service["environment"]["PARLEY_STAGES_ON_CARD"] == "thinker,talker,vocoder"
        assert service["environment"]["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/card/pipe"
        assert {"mps"} <= {volume["source"] for volume in service["volumes"]}
    assert services["mps"]["ipc"] == "shareable"
    assert "/mps/card" in services["mps"]["command"]


def test_three_gpus_have_a_service_each() -> None:
    services = resolved("--env-file", "deploy/three-gpus.env")["services"]
    assert [reserved(services[name])[0]["device_ids"] for name in GPU_SERVICES] == [["0"], ["1"], ["2"]]
    assert [services[name]["environment"]["PARLEY_STAGES_ON_CARD"] for name in GPU_SERVICES] == list(GPU_SERVICES)
    assert "mps" not in services


@pytest.mark.parametrize("profile", ["embedded", "native"])
def test_the_override_reserves_no_gpu(profile: str) -> None:
    services = resolved("--file", str(TRUTH), "--file", str(CPU), "--profile", profile, "--profile", "mps")["services"]
    assert [name for name, service in services.items() if reserved(service)] == []


def test_the_embedded_profile_needs_no_gpu_and_no_settings() -> None:
    services = resolved("--profile", "embedded")["services"]
    assert set(services) == {
        "secrets", "models", "valkey", "vad", "embedded-thinker", "embedded-talker", "embedded-vocoder", "embedded-gateway", "proxy",
    }  # fmt: skip
    assert [name for name, service in services.items() if reserved(service)] == []
    assert services["embedded-gateway"]["deploy"]["replicas"] == 2


def test_images_are_named_with_their_version_and_without_a_registry(everything: dict[str, Any]) -> None:
    for name, service in everything["services"].items():
        image, _, tag = service["image"].rpartition(":")
        assert image and tag and tag != "latest", name
        assert "." not in image.partition("/")[0], name


def test_the_images_have_the_version_of_the_package(everything: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    ours = {name: service["image"] for name, service in everything["services"].items() if service["image"].startswith("parley/")}
    assert ours and {image.rpartition(":")[2].removesuffix("-gpu") for image in ours.values()} == {version}


def test_our_images_are_never_pulled_by_a_name_that_anybody_may_have_taken(everything: dict[str, Any]) -> None:
    for name, service in everything["services"].items():
        if service["image"].startswith("parley/"):
            assert (service["pull_policy"], "build" in service) == ("never", True), name
    moved = resolved(*PROFILES, settings={"PARLEY_REGISTRY": "registry.example/", "PARLEY_PULL": "missing"})["services"]["gateway"]
    assert (moved["image"].partition("/")[0], moved["pull_policy"]) == ("registry.example", "missing")


def test_nothing_inside_reaches_the_world_and_little_is_reached_from_it(everything: dict[str, Any]) -> None:
    assert everything["networks"]["inside"]["internal"] is True
    outside = {name for name, service in everything["services"].items() if "outside" in (service.get("networks") or {})}
    assert outside == {"proxy", "grafana", "models"}
    published = {name: service["ports"] for name, service in everything["services"].items() if service.get("ports")}
    assert set(published) == {"proxy", "grafana"}
    assert {port["host_ip"] for ports in published.values() for port in ports} == {"127.0.0.1"}


def test_every_process_is_confined_and_bounded(everything: dict[str, Any]) -> None:
    for name, service in everything["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["user"].partition(":")[0]) > 0, name
        assert not service.get("privileged"), name
        if name not in ONE_SHOTS:
            limits = service["deploy"]["resources"]["limits"]
            assert {"cpus", "memory", "pids"} <= set(limits), name
            assert service["restart"] == "unless-stopped", name


def test_no_secret_is_in_an_environment(everything: dict[str, Any]) -> None:
    for name, service in everything["services"].items():
        for variable in service.get("environment") or {}:
            assert not re.search(r"(PASSWORD|SECRET|API_KEYS|REDIS_URL|TOKEN)$", variable), f"{name}: {variable}"


def test_a_start_waits_for_health_and_a_stop_for_the_drain() -> None:
    services = resolved("--profile", "native", settings={"PARLEY_DRAIN_S": "120"})["services"]
    for name in ("gateway", "vad", *GPU_SERVICES, "proxy"):
        assert services[name]["stop_grace_period"] == "2m15s", name
    assert services["gateway"]["environment"]["PARLEY_DRAIN_TIMEOUT_MS"] == "120000"
    assert services["thinker"]["environment"]["PARLEY_DRAIN_S"] == "120"
    assert {name: each["condition"] for name, each in services["gateway"]["depends_on"].items()} == dict.fromkeys(
        ("valkey", "vad", *GPU_SERVICES), "service_healthy"
    )
    assert services["proxy"]["depends_on"]["gateway"]["condition"] == "service_healthy"


def test_keys_come_from_a_folder_that_must_be_named() -> None:
    files = ("--file", str(TRUTH), "--file", str(ROOT / "deploy" / "compose.keys.yml"), "--profile", "embedded")
    with pytest.raises(Failed, match=r"names the folder of keys\.yaml"):
        resolved(*files)
    document = resolved(*files, settings={"PARLEY_KEYS": "/somewhere/keys"})
    gateway = document["services"]["embedded-gateway"]
    mounts = {volume["target"]: (volume["source"], volume.get("read_only")) for volume in gateway["volumes"]}
    assert mounts["/keys"] == ("/somewhere/keys", True), "a folder: what replaces a file that is mounted alone is not seen"
    assert len(mounts) > 1 and gateway["environment"]["PARLEY_KEYS_FILE"] == "/keys/keys.yaml"


def test_each_process_sees_its_own_private_key_alone() -> None:
    files = ("--file", str(TRUTH), "--file", str(ROOT / "deploy" / "compose.tls.yml"), "--profile", "embedded", "--profile", "native")
    with pytest.raises(Failed, match="names the folder of certificates"):
        resolved(*files)
    services = resolved(*files, settings={"PARLEY_CERTIFICATES": "/somewhere"})["services"]
    for stage in ("vad", *GPU_SERVICES):
        for service in {name for name in services if name.removeprefix("embedded-") == stage}:
            assert certificates(services[service]) == {f"{stage}.pem", f"{stage}.key", "ca.pem"}, service
    for service in ("gateway", "embedded-gateway"):
        assert certificates(services[service]) == {"gateway.pem", "gateway.key", "ca.pem"}
        assert services[service]["environment"]["PARLEY_TLS_SERVER_NAME"] == "stage.parley"
    assert certificates(services["proxy"]) == {"http.pem", "http.key"}
    assert certificates(services["valkey"]) == certificates(services["secrets"]) == set()


def certificates(service: dict[str, Any]) -> set[str]:
    sources = (Path(volume["source"]) for volume in service["volumes"] if volume["target"].startswith("/tls/") and volume["read_only"])
    return {source.name for source in sources if source.parent == Path("/somewhere")}


def test_the_stores_memory_is_a_setting() -> None:
    store = resolved("--profile", "embedded", settings={"PARLEY_VALKEY_MEMORY": "2gb", "PARLEY_VALKEY_LIMIT": "3g"})["services"]["valkey"]
    assert store["command"][-2:] == ["--maxmemory", "2gb"]
    assert int(store["deploy"]["resources"]["limits"]["memory"]) == 3 * 1024**3


def test_what_prometheus_and_grafana_mount_is_there(everything: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        sources = [Path(volume["source"]) for volume in everything["services"][name]["volumes"] if volume["type"] == "bind"]
        assert sources and [str(source) for source in sources if not source.is_dir()] == []


@pytest.mark.parametrize("profile", ["embedded", "native"])
def test_prometheus_asks_processes_by_the_names_and_the_port_that_they_have(profile: str) -> None:
    services = resolved("--profile", profile)["services"]
    names = {alias for service in services.values() for alias in ((service.get("networks") or {}).get("inside") or {}).get("aliases", [])}
    names |= set(services)
    asked = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {name: each["port"] for job in asked for each in job["dns_sd_configs"] for name in each["names"] if job["job_name"] != "dcgm"}
    assert targets == dict.fromkeys(("gateway", "vad", *GPU_SERVICES), 9090)
    assert set(targets) <= names


def test_what_containers_read_has_unix_lines_in_every_clone() -> None:
    """With Windows' line ends no script of an image build runs."""
    asked = ("deploy/base.sh", "deploy/proxy/haproxy.cfg", "deploy/one-gpu.env", "docker-compose.yml", "profiles/embedded.yaml")
    said = run("git", "check-attr", "eol", *asked, cwd=ROOT)
    assert said.splitlines() == [f"{name}: eol: lf" for name in asked]


def test_only_what_goes_into_images_is_sent_to_the_engine() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [line for line in allowed if not (ROOT / line).exists()] == []
    assert not {".git", ".venv", "tests", "benchmarks"} & set(allowed)
