"""What deploy/ says fits the service; a model is pulled from storage at the start."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from asr.cli.serve import serve
from asr.errors import BundleError
from serve import server
from serve.metrics import Metrics
from serve.settings import Settings
from tests.helpers import copied

DEPLOY = Path(__file__).parents[2] / "deploy"


def resources() -> dict[str, dict[str, Any]]:
    names = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text("utf-8"))["resources"]
    texts = [(DEPLOY / name).read_text("utf-8") for name in names]
    return {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}


def test_what_is_deployed_fits_together() -> None:
    found = resources()
    deployment, service = found["Deployment"], found["Service"]
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert service["spec"]["selector"] == labels and service["spec"]["sessionAffinity"]
    assert found["PodDisruptionBudget"]["spec"]["selector"] == deployment["spec"]["selector"]
    scaler = found["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "it would undo the autoscaler"
    (container,) = pod["spec"]["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    grace = {one["name"]: one for one in container["env"]}["ASR_GRACE_SECONDS"]["value"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > float(grace)
    (rule,) = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text("utf-8"))["rules"][
        "custom"
    ]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    published = {metric.name for metric in Metrics().registry.collect()}
    asked = set(re.findall(r"\basr_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
    assert asked and asked <= published
    text = (DEPLOY / "object-storage/pull.yaml").read_text("utf-8")
    patch = yaml.safe_load(text)["spec"]["template"]["spec"]
    assert patch["containers"][0]["name"] == container["name"]
    assert {"$patch": "delete", "name": "models"} in patch["volumes"]
    number = re.search(r"^USER (\d+)$", (DEPLOY.parent / "Dockerfile").read_text(), re.MULTILINE)
    assert number and int(number[1]) == pod["spec"]["securityContext"]["runAsUser"]


def test_all_that_the_image_copies_is_sent_to_the_builder() -> None:
    root = DEPLOY.parent
    lines = re.findall(r"^COPY (.+)$", (root / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    sources = {name for line in lines for name in line.split()[:-1]}
    first, *others = (root / ".dockerignore").read_text("utf-8").split()
    assert first == "*" and sources == {name[1:] for name in others if name.startswith("!")}
    assert sources and all((root / name).exists() for name in sources)


def test_manifests_pass_the_schemas_of_kubernetes() -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for resource in resources().values():
        schemas.validate(resource, schemas.latest_version(), strict=True)


def test_a_bundle_by_url_is_served_from_a_copy(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Path] = {}

    def run(settings: Settings, host: str, port: int) -> None:
        seen.update(settings.models)
        for folder in settings.models.values():
            assert (folder / "model.safetensors").is_file()

    monkeypatch.setattr(server, "run", run)
    dated = copied(tiny_bundle, tmp_path / "date=1" / "b")
    serve([f"file://{tiny_bundle}", f"there=file://{dated}", f"here={tiny_bundle}"])
    assert seen.keys() == {tiny_bundle.name, "there", "here"}
    assert seen["here"] == tiny_bundle
    assert not seen["there"].exists(), "no copy is left"
    with pytest.raises(BundleError, match=r"memory://none: has no config\.yaml"):
        serve(["memory://none"])
