"""How models come into their volumes; what is run in containers before the services is run here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parley.models.cache import STAMP
from parley.models.manifest import MODELS
from tests.helm.support.chart import CHART, Manifest, containers, deployment, environment, manifests, of_kind

JOB = ('models={"fetch": "job", "volume": {"size": "2Gi"}}',)
NATIVE = CHART / "values-examples" / "native-gpus.yaml"
STAGES = ("vad", "thinker", "talker", "vocoder")


def pod(documents: list[Manifest], name: str) -> Manifest:
    found: Manifest = deployment(documents, name)["spec"]["template"]
    return found


def jobs(*values: str | Path) -> dict[str, Manifest]:
    """By name without the digest at its end."""
    return {name.rpartition("-")[0]: job for name, job in of_kind(manifests(*values), "Job").items()}


def test_each_pod_fetches_what_its_service_reads() -> None:
    fetched = {name: containers(pod(manifests(), name))[f"models-{name}"]["args"] for name in STAGES}

    assert all(command[:4] == ["python", "-m", "parley.models", "fetch"] for command in fetched.values())
    assert {model for command in fetched.values() for model in command[4:]} == {model.name for model in MODELS}
    for name in STAGES:
        before, service = containers(pod(manifests(), name)).values()
        assert environment(before)["PARLEY_MODELS"] == environment(service)["PARLEY_MODELS"] == "/models"
        assert before["image"] == service["image"], "an image converts what its own service reads"


def test_models_that_nobody_asks_are_not_fetched() -> None:
    chat = pod(manifests('profile={"name": "chat"}', 'thinker={"settings": {"PARLEY_LLM": "openai-chat"}}'), "thinker")
    assert containers(chat)["models-thinker"]["args"][4:] == ["moonshine-tiny"]

    native = manifests(NATIVE)
    assert [name for name in STAGES if f"models-{name}" in containers(pod(native, name))] == ["vad"]


def test_a_job_fetches_for_all_and_they_wait() -> None:
    (job,) = jobs(*JOB).values()
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}

    assert containers(job["spec"]["template"]).keys() == {f"models-{name}" for name in STAGES}
    assert (
        volumes["models"]["persistentVolumeClaim"]["claimName"]
        == of_kind(manifests(*JOB), "PersistentVolumeClaim")["models"]["metadata"]["name"]
    )
    for name in STAGES:
        waiting = containers(pod(manifests(*JOB), name))
        assert list(waiting) == [f"wait-models-{name}", name]
        assert waiting[f"wait-models-{name}"]["volumeMounts"] == [{"name": "models", "mountPath": "/models", "readOnly": True}]


def test_a_job_that_changes_has_another_name() -> None:
    """Kubernetes changes no Job."""

    def names(*values: str | Path) -> set[str]:
        return set(of_kind(manifests(*values), "Job"))

    assert names(*JOB) == names(*JOB, 'thinker={"replicas": 3}')
    assert not names(*JOB) & names(*JOB, 'image={"tag": "9.9.9"}')
    assert not names(NATIVE) & names(NATIVE, 'checkpoint.download.revision="other"')


def test_claims_outlive_the_release() -> None:
    for values in ((*JOB,), (NATIVE,)):
        claims = of_kind(manifests(*values), "PersistentVolumeClaim")
        assert claims
        for claim in claims.values():
            assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_volume_that_is_there_is_taken_as_it_is() -> None:
    documents = manifests('models={"fetch": "none", "volume": {"existingClaim": "mine"}}')

    assert not of_kind(documents, "PersistentVolumeClaim") and not of_kind(documents, "Job")
    for name in STAGES:
        assert list(containers(pod(documents, name))) == [name]
        volumes = {volume["name"]: volume for volume in pod(documents, name)["spec"]["volumes"]}
        assert volumes["models"] == {"name": "models", "persistentVolumeClaim": {"claimName": "mine"}}


def script(container: Manifest, folder: Path) -> list[str]:
    """A container's shell command, with its volumes in a folder."""
    shell, flags, text = container["args"]
    return [shell, flags, text.replace("/models", str(folder)).replace("/checkpoint", str(folder))]


def test_who_waits_goes_on_when_all_models_are_whole(tmp_path: Path) -> None:
    waiting = containers(pod(manifests(*JOB), "thinker"))["wait-models-thinker"]
    for name in ("moonshine-tiny", "smollm2-135m"):
        (tmp_path / name).mkdir()
        (tmp_path / name / STAMP).touch()

    assert subprocess.run(script(waiting, tmp_path), timeout=10, check=False).returncode == 0


@pytest.mark.parametrize("mark", ["models", "checkpoint"])
def test_who_waits_can_be_told_to_leave(mark: str, tmp_path: Path) -> None:
    """By a SIGTERM that is passed on to it: see test_no_process_is_the_first_of_its_container."""
    waiting = (
        containers(pod(manifests(*JOB), "thinker"))["wait-models-thinker"]
        if mark == "models"
        else containers(pod(manifests(NATIVE), "talker"))["wait-checkpoint"]
    )
    trace = script(waiting, tmp_path)
    trace[1] = "-ecx"
    with subprocess.Popen(trace, stderr=subprocess.PIPE, text=True) as shell:
        assert shell.stderr is not None
        while "sleep" not in shell.stderr.readline():
            assert shell.poll() is None
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(5) == -signal.SIGTERM


def test_a_job_fetches_the_checkpoint_and_says_when_it_is_whole(tmp_path: Path) -> None:
    job = jobs(NATIVE)["checkpoint"]["spec"]["template"]
    (container,) = job["spec"]["containers"]
    mark = containers(pod(manifests(NATIVE), "talker"))["wait-checkpoint"]["args"][-1].split("[ -e ")[1].split(" ]")[0]
    assert container["args"][-1].endswith(f"touch {mark}")

    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment(container)}
    env["PARLEY_HUB"] = "http://127.0.0.1:9"
    done = subprocess.run(script(container, tmp_path), env=env, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode != 0 and "usage" not in done.stderr, "its arguments are understood"
    assert "openbmb/MiniCPM-o-4_5" in done.stderr
    assert not (tmp_path / Path(mark).name).exists(), "a download that failed leaves no mark"
