"""What the chart tells the processes is what they understand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.profile_file import load_profile_file
from gateway.settings import Settings as GatewaySettings
from parley.supervisor.plan import THREADS
from stage_kit.settings import Settings as StageSettings
from tests.helm.support.chart import CHART, Manifest, containers, environment, manifests, of_kind, pods, served
from tests.helm.support.settings import PACKAGES, known_to
from tests.helm.test_rendering import each_example

STAGES = ("vad", "thinker", "talker", "vocoder")
ELSEWHERE = {"PARLEY_MODELS", "PARLEY_HUB", "PARLEY_URL", "PARLEY_API_KEY", "PARLEY_READY_FILE"}
"""Read by parley.models, minicpmo45.download, `parley talk` and the keeper of MPS, which have no settings classes: run by tests below."""
FOR_ALL = ("PARLEY_THINKER_KERNELS", "PARLEY_TALKER_KERNELS", "PARLEY_VOCODER_KERNELS")
"""What examples say to all processes, because stages plan for each other."""
MTLS = 'mtls={"existingSecret": "m", "serverName": "stages.example.com"}'
EVERYTHING = (
    MTLS,
    'tls={"existingSecret": "t"}',
    'auth={"keys": {"existingSecret": "k", "inRedis": true}, "trustedProxies": ["10.0.0.0/8"], "allowedOrigins": ["https://a.example.com"]}',
)


@each_example
def test_every_variable_is_a_setting_of_its_process(values: Path) -> None:
    for process, (_, container) in served(manifests(values)).items():
        said = {name for name in environment(container) if name.startswith("PARLEY_")}
        assert said - known_to(process) <= {"PARLEY_MODELS", *FOR_ALL}, process


@each_example
def test_every_variable_is_read_by_somebody(values: Path) -> None:
    known = frozenset[str]().union(*map(known_to, PACKAGES)) | ELSEWHERE
    for label, pod in pods(manifests(values)):
        for container in containers(pod).values():
            assert {each["name"] for each in container.get("env", []) if each["name"].startswith("PARLEY_")} <= known, label


def test_a_variable_that_nobody_reads_is_noticed() -> None:
    """What the tests above are worth."""
    assert "PARLEY_DRAIN_S" in known_to("vad") and "PARLEY_DRAIN_S" not in known_to("gateway")
    assert "PARLEY_REDIS_URL_FILE" in known_to("thinker") and "PARLEY_HTTP_BIND_FILE" not in known_to("thinker")


def mounted(env: dict[str, str], root: Path) -> dict[str, str]:
    """The environment with files of the pod below a folder, where they are made if they are not there."""
    found = {}
    for name, value in env.items():
        if value.startswith("/etc/parley/"):
            path = root / value.removeprefix("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            value = str(path)
        found[name] = value
    return found


def settings_of(kind: type[Any], env: dict[str, str], patch: pytest.MonkeyPatch) -> Any:
    for name in [name for name in os.environ if name.startswith("PARLEY_")]:
        patch.delenv(name)
    for name, value in env.items():
        patch.setenv(name, value)
    return kind()


def test_the_gateway_understands_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = manifests(*EVERYTHING, 'gateway={"drain": {"seconds": 45}}')
    env = mounted(environment(served(documents)["gateway"][1]), tmp_path)

    settings = settings_of(GatewaySettings, env, monkeypatch)

    assert (settings.http_bind, settings.metrics_bind, settings.advertise) == ("0.0.0.0:8080", "0.0.0.0:9090", "10.1.2.3:8080")
    assert settings.redis_url.get_secret_value() == "redis://t-parley-valkey:6379/0"
    assert (settings.drain_timeout_ms, settings.keys_in_redis) == (45_000, True)
    assert settings.allowed_origins == "https://a.example.com" and settings.trusted_proxies == "10.0.0.0/8"
    assert settings.keys_file == tmp_path / "etc/parley/keys/keys.yaml"
    assert [path.name for path in settings.http_tls()] == ["tls.crt", "tls.key"]
    assert settings.tls().server_name == "stages.example.com"


def test_a_stage_understands_it(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(served(manifests(MTLS, 'vad={"drain": {"seconds": 90}}'))["vad"][1])

    settings = settings_of(StageSettings, env, monkeypatch)

    assert (settings.bind, settings.http_bind, settings.advertise) == ("0.0.0.0:50051", "0.0.0.0:9090", "10.1.2.3:50051")
    assert settings.drain_s == 90 and settings.models == Path("/models")
    assert [str(settings.tls_certificate), str(settings.tls_key), str(settings.tls_ca)] == [
        f"/etc/parley/mtls/{name}" for name in ("tls.crt", "tls.key", "ca.crt")
    ]


def test_the_store_s_url_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = manifests(CHART / "values-examples" / "external-cluster-store.yaml")
    for process, kind in (("gateway", GatewaySettings), *((stage, StageSettings) for stage in STAGES)):
        pod, container = served(documents)[process]
        env = mounted(environment(container), tmp_path)
        Path(env["PARLEY_REDIS_URL_FILE"]).write_text("rediss+cluster://:secret@store.example.com:6379\n")

        settings = settings_of(kind, env, monkeypatch)

        assert settings.redis_url.get_secret_value() == "rediss+cluster://:secret@store.example.com:6379"
        assert {"redis": "parley-store", "redis-ca": "parley-store-ca"}.items() <= secrets(pod).items()


def secrets(pod: Manifest) -> dict[str, str]:
    return {volume["name"]: volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume}


def test_secrets_are_files_and_only_where_they_are_needed() -> None:
    found = served(manifests(*EVERYTHING))

    assert secrets(found["gateway"][0]) == {"keys": "k", "tls": "t", "mtls": "m"}
    assert [secrets(found[stage][0]) for stage in STAGES] == [{"mtls": "m"}] * 4
    assert not of_kind(manifests(*EVERYTHING), "Secret"), "the chart makes none"


@pytest.mark.parametrize("name", ["embedded", "chat", "minicpmo45"])
def test_the_gateway_reads_the_profile_that_is_mounted(name: str, tmp_path: Path) -> None:
    documents = manifests(f'profile={{"name": "{name}"}}', 'checkpoint={"volume": {"existingClaim": "c"}}')
    profile = of_kind(documents, "ConfigMap")["profile"]["data"]
    _, container = served(documents)["gateway"]

    path = Path(environment(container)["PARLEY_PROFILE"])
    assert path.name in profile and str(path.parent) in [mount["mountPath"] for mount in container["volumeMounts"]]
    (tmp_path / path.name).write_text(profile[path.name])
    assert load_profile_file(tmp_path / path.name).name == name


def test_another_profile_restarts_gateways() -> None:
    def checksum(*values: str) -> str:
        return str(served(manifests(*values))["gateway"][0]["metadata"]["annotations"]["checksum/profile"])

    assert checksum() != checksum('profile={"name": "own", "content": "model: own"}')


def test_settings_of_one_s_own_profile_reach_its_services() -> None:
    content = yaml.safe_dump({"model": "m", "services": {"thinker": {"PARLEY_LLM": "openai-chat"}, "gateway": {"PARLEY_GRACE_MS": "5"}}})
    found = served(manifests(f"profile={json.dumps({'name': 'own', 'content': content})}"))

    assert environment(found["thinker"][1])["PARLEY_LLM"] == "openai-chat"
    assert environment(found["gateway"][1])["PARLEY_GRACE_MS"] == "5"


def test_numbers_of_a_profile_are_what_its_services_read() -> None:
    """As the supervisor takes them: Helm alone would make 1e+06 of a million."""
    content = (
        "model: m\nservices: {gateway: {PARLEY_JOURNAL_MAX_BYTES: 8388608, PARLEY_PULSE_TIMEOUT_MS: 1500, PARLEY_KEYS_IN_REDIS: true}}"
    )
    env = environment(served(manifests(f"profile={json.dumps({'name': 'own', 'content': content})}"))["gateway"][1])

    assert (env["PARLEY_JOURNAL_MAX_BYTES"], env["PARLEY_PULSE_TIMEOUT_MS"]) == ("8388608", "1500")
    assert env["PARLEY_KEYS_IN_REDIS"] == "true"


@pytest.mark.parametrize(
    "content",
    [
        'model: "ein Modell, \u201enu\u201c {{ .Values }}"\nsession: {instructions: "it\'s $HOME"}\n',
        "  # set in by a comment\nmodel: m\n",
        "\n\n  model: m\n  languages: [en]\n",
        "# first\r\nmodel: m\r\n",
    ],
    ids=["signs", "comment", "indented", "lines of another system"],
)
def test_a_profile_of_one_s_own_arrives_as_it_is(content: str, tmp_path: Path) -> None:
    documents = manifests(f"profile={json.dumps({'name': 'own', 'content': content})}")

    arrived = of_kind(documents, "ConfigMap")["profile"]["data"]["own.yaml"]
    assert yaml.safe_load(arrived) == yaml.safe_load(content)
    assert arrived.replace("\r", "").strip("\n") == content.replace("\r", "").strip("\n")


def test_values_reach_a_process_letter_by_letter() -> None:
    value = 'say "hi", it\'s\n{{ .Release.Name }} $HOME \u00e9\u4e2d\U0001f600: # no comment'
    env = environment(served(manifests(f"vad={json.dumps({'settings': {'PARLEY_TEST_TEXT': value}})}"))["vad"][1])

    assert env["PARLEY_TEST_TEXT"] == value


def test_the_operator_s_settings_win() -> None:
    native = ('profile={"name": "minicpmo45"}', 'checkpoint={"volume": {"existingClaim": "c"}}')
    found = served(
        manifests(
            *native,
            'settings={"PARLEY_LOG_LEVEL": "debug"}',
            'gateway={"settings": {"PARLEY_STAGE_WAIT_MS": "1", "PARLEY_LOG_LEVEL": "error"}}',
        )
    )

    assert environment(found["gateway"][1])["PARLEY_STAGE_WAIT_MS"] == "1"
    assert environment(found["gateway"][1])["PARLEY_LOG_LEVEL"] == "error"
    assert environment(found["vad"][1])["PARLEY_LOG_LEVEL"] == "debug"


def test_threads_are_those_of_the_supervisor() -> None:
    for stage in STAGES:
        assert THREADS.items() <= environment(served(manifests())[stage][1]).items()
    assert environment(served(manifests('thinker={"threads": 4}'))["thinker"][1])["OMP_NUM_THREADS"] == "4"


def test_commands_are_modules_that_are_there() -> None:
    for process, (_, container) in served(manifests()).items():
        command = container["args"]
        assert command[:2] == ["python", "-m"]
        assert (Path(__file__).parents[2] / command[2] / "__main__.py").is_file(), process


def test_the_daemon_s_command_is_understood(tmp_path: Path) -> None:
    """As far as a machine without the programs of a GPU goes."""
    native = manifests(CHART / "values-examples" / "native-one-gpu.yaml")
    pod = of_kind(native, "Deployment")["native"]["spec"]["template"]
    command = [
        word.replace("/mps", str(tmp_path)).replace("nvidia-cuda-mps-control", "no-such-program") for word in containers(pod)["mps"]["args"]
    ]

    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (1, "cannot start no-such-program: No such file or directory\n")


def test_the_conversation_of_helm_test_is_one_of_parley_talk(tmp_path: Path) -> None:
    (pod,) = of_kind(manifests('test={"patienceSeconds": 0}'), "Pod").values()
    container = pod["spec"]["containers"][0]
    shell, flags, script = container["args"]
    assert "helm.sh/hook" in pod["metadata"]["annotations"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment(container)}

    done = subprocess.run(
        [shell, flags, script.replace("/tmp/reply.wav", str(tmp_path / "reply.wav"))],
        env=env | {"PARLEY_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert "usage" not in done.stderr.lower() and "127.0.0.1:9" in done.stderr
