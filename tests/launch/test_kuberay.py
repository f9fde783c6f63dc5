"""The manifest for KubeRay: its fields, by what KubeRay's own schema says of those that it uses."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "launch" / "kuberay" / "raycluster.yaml"

# Of ray.io_rayclusters.yaml (KubeRay 1.7, version v1): a type, allowed values, a list's items, or an object's fields.
# A name with * must be there. Kubernetes takes a quantity as text or as a number.
QUANTITIES = {"cpu": str, "memory": str, "ephemeral-storage": str, "nvidia.com/gpu": str}
POD = {
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "containers*": [
        {
            "name*": str,
            "image": str,
            "securityContext": {"privileged": bool},
            "resources": {"requests": QUANTITIES, "limits": QUANTITIES},
            "volumeMounts": [{"name*": str, "mountPath*": str}],
        }
    ],
    "volumes": [
        {
            "name*": str,
            "emptyDir": {"medium": str, "sizeLimit": str},
            "persistentVolumeClaim": {"claimName*": str},
        }
    ],
}
CLUSTER = {
    "apiVersion*": {"ray.io/v1"},
    "kind*": {"RayCluster"},
    "metadata*": {"name*": str},
    "spec*": {
        "rayVersion": str,
        "authOptions": {"mode": {"disabled", "token"}},
        "headGroupSpec*": {"rayStartParams": {}, "template*": {"spec": POD}},
        "workerGroupSpecs": [
            {
                "groupName*": str,
                "replicas": int,
                "minReplicas*": int,
                "maxReplicas*": int,
                "rayStartParams": {},
                "template*": {"spec": POD},
            }
        ],
    },
}


def problems(given: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(wanted, type):
        if not isinstance(given, wanted):
            yield f"{where} is no {wanted.__name__}: {given!r}"
    elif isinstance(wanted, set):
        if given not in wanted:
            yield f"{where} is none of {sorted(wanted)}: {given!r}"
    elif isinstance(wanted, list):
        for number, item in enumerate(given):
            yield from problems(item, wanted[0], f"{where}[{number}]")
    else:
        fields = {name.rstrip("*"): of for name, of in wanted.items()}
        yield from (f"{where}.{name} is no field" for name in given.keys() - fields.keys())
        yield from (f"{where}{name} is missing" for name in wanted if name.endswith("*") and name[:-1] not in given)
        for name in given.keys() & fields.keys():
            yield from problems(given[name], fields[name], f"{where}.{name}")


@pytest.fixture
def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return loaded


def test_its_fields_are_kuberay_s(manifest):
    assert list(problems(manifest, CLUSTER)) == []


def test_a_wrong_field_is_seen(manifest):
    manifest["spec"]["workerGroupSpecs"][1]["replicas"] = "2"
    manifest["spec"]["headGroupSpec"]["template"]["spec"]["container"] = []
    del manifest["spec"]["workerGroupSpecs"][0]["groupName"]
    assert len(list(problems(manifest, CLUSTER))) == 4  # the head's template is the trainers' too


def test_its_pods_fit_together(manifest):
    spec = manifest["spec"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cluster"] == [f"ray[default]=={spec['rayVersion']}"]
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    containers = [container for pod in pods for container in pod["containers"]]
    assert len({container["image"] for container in containers}) == 1  # nodes with other code are not used
    assert all(container["securityContext"]["privileged"] for container in containers)
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]} == volumes
    gpus = [container["resources"]["limits"].get("nvidia.com/gpu") for container in containers]
    assert gpus == ["8", "8", None]
