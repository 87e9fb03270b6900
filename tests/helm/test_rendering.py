"""Every example renders, the same in helm 3 and 4, into manifests that every supported Kubernetes takes as they are."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.helm.support.chart import CHART, EXAMPLES, Manifest, manifests, pods, refusal, run

DEFAULTS = CHART / "values.yaml"
VALUES = (DEFAULTS, *EXAMPLES)
CLAIMS = "1.34"
"""Since when devices are claimed."""
OUTSIDE = {"HTTPRoute", "PrometheusRule", "ScaledObject", "ServiceMonitor"}
"""Kinds that Kubernetes does not bring along: `test_outside.py` looks at them."""

each_example = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def versions(values: Path) -> list[str]:
    """Oldest, middle, newest, as far as the example goes back."""
    claims = "claim: {enabled: true" in values.read_text()
    return [version for version in ("1.29.0", "1.33.0", "1.37.0") if not claims or version >= CLAIMS]


@pytest.mark.parametrize("major", [4, 3])
@each_example
def test_lint_finds_nothing(values: Path, major: int) -> None:
    done = run("lint", "--strict", CHART, "--values", values, "--kube-version", "1.37.0", major=major)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@each_example
def test_helm_3_and_4_render_the_same(values: Path) -> None:
    def sorted_by_name(documents: list[Manifest]) -> list[Manifest]:
        return sorted(documents, key=lambda document: (document["kind"], document["metadata"]["name"]))

    assert sorted_by_name(manifests(values, major=3)) == sorted_by_name(manifests(values, major=4))


@each_example
def test_manifests_are_valid_for_every_supported_kubernetes(values: Path) -> None:
    for version in versions(values):
        documents = manifests(values, kube=version)
        assert documents
        for document in documents:
            if document["kind"] not in OUTSIDE:
                kubernetes_validate.validate(document, version, strict=True)


def test_a_typing_error_in_a_manifest_is_noticed() -> None:
    """What the test above is worth."""
    document = next(each for each in manifests() if each["kind"] == "Deployment")
    broken = yaml.safe_load(yaml.safe_dump(document).replace("failureThreshold", "failureTreshold"))

    with pytest.raises(kubernetes_validate.ValidationError, match="failureTreshold"):
        kubernetes_validate.validate(broken, "1.37.0", strict=True)


@each_example
def test_names_are_unique_and_short_enough(values: Path) -> None:
    documents = manifests(values)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]

    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


@each_example
def test_no_image_is_without_a_version_of_its_own(values: Path) -> None:
    for label, pod in pods(manifests(values)):
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            _, _, tag = container["image"].rpartition(":")
            assert tag and not tag.startswith("latest"), (label, container["image"])


def test_an_older_kubernetes_is_refused() -> None:
    assert "1.29.0" in refusal(kube="1.28.9")


def test_a_claim_of_devices_needs_a_kubernetes_that_knows_it() -> None:
    one_gpu = str(CHART / "values-examples" / "native-one-gpu.yaml")

    assert "need Kubernetes 1.34" in refusal(one_gpu, kube="1.33.0")


@pytest.mark.parametrize("major", [4, 3])
def test_it_packs(tmp_path: Path, major: int) -> None:
    done = run("package", CHART, "--destination", tmp_path, major=major)

    assert done.returncode == 0, done.stderr
    assert [path.suffix for path in tmp_path.iterdir()] == [".tgz"]


@pytest.mark.parametrize("release", ["parley", "my-parley", "x" * 53])
def test_a_release_may_be_called_anything(release: str) -> None:
    done = run("template", release, CHART)

    assert done.returncode == 0, done.stderr
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(done.stdout) if document]
    assert all(len(name) <= 63 and not name.endswith("-") for name in names)


def test_as_a_part_of_another_chart(tmp_path: Path) -> None:
    """Helm hands `global` to parts, which a closed schema must let through."""
    (tmp_path / "Chart.yaml").write_text(
        "apiVersion: v2\nname: whole\nversion: 0.0.1\ndependencies: [{name: parley, version: 0.1.0, repository: ''}]\n"
    )
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "parley").symlink_to(CHART)

    done = run("template", "t", tmp_path, "--set", "global.domain=x,parley.gateway.replicas=3")

    assert done.returncode == 0, done.stderr
    assert "replicas: 3" in done.stdout
