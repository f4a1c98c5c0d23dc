"""The files of deploy/ have the keys of their published schemas, start what exists, and leave time to save."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from saturate.settings.config import parse
from saturate.tasks import tables

ROOT = Path(__file__).resolve().parents[2]
KEYS: dict[str, str] = yaml.safe_load(
    (ROOT / "tests/unit/deploy_keys.yaml").read_text()
)
FILES = ("jobset", "job", "compose", "skypilot")
SPECS = {
    "JobSet.spec.replicatedJobs.template.spec": "JobSpec",
    "Job.spec": "JobSpec",
}
"""Paths of objects that several kinds have, and the name of these in KEYS."""
LEAST_GRACE_S = 60
"""Twice what torchrun gives its ranks after a signal, in which they save: docs/cluster.md has what it takes."""


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / f"deploy/{name}.yaml").read_text()))


def objects(found: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each mapping below `found`, with its path in KEYS."""
    path = SPECS.get(path, path)
    if isinstance(found, list):
        for each in found:
            yield from objects(each, path)
    elif isinstance(found, dict):
        yield path, found
        free = KEYS.get(path) == "*"
        for name, value in found.items():
            yield from objects(value, f"{path}.{'*' if free else name}")


def unknown(name: str, document: Any) -> list[str]:
    """Return the keys of a document that its schema does not have."""
    return [
        f"{path}.{key}"
        for path, found in objects(document, document.get("kind", name))
        for key in found
        if KEYS.get(path, "") != "*" and key not in KEYS.get(path, "").split()
    ]


@pytest.mark.parametrize("name", FILES)
def test_keys_are_those_of_the_schema(name: str) -> None:
    for document in documents(name):
        assert unknown(name, document) == []


def words(name: str) -> tuple[list[str], float]:
    """Return what a file starts, after the image's entry point, and the seconds to stop, inf: no limit."""
    last = documents(name)[-1]
    if name == "skypilot":
        return shlex.split(last["run"]), float("inf")
    if name == "compose":
        service = last["services"]["train"]
        return service["command"], float(service["stop_grace_period"].removesuffix("s"))
    job = last["spec"]
    if name == "jobset":
        job = job["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    return pod["containers"][0]["args"], pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", FILES)
def test_what_is_started_is_a_run_that_may_save_and_go_on(name: str) -> None:
    started, grace_s = words(name)
    flags = started[started.index("train.py") + 1 :]
    config = parse(flags, tables())
    assert config.run.resume == "auto" and config.run.output
    assert grace_s >= LEAST_GRACE_S


@pytest.mark.parametrize("name", ["jobset", "job"])
def test_exit_codes_are_acted_on_as_the_page_says(name: str) -> None:
    """The last column of its table; a code that no rule names is counted."""
    job = documents(name)[-1]["spec"]
    if name == "jobset":
        job = job["replicatedJobs"][0]["template"]["spec"]
    rules = job["podFailurePolicy"]["rules"]
    page = (ROOT / "docs/cluster.md").read_text()
    rows = re.findall(r"^\| ([\d, ]+) \|.*\| `(\w+)` \|$", page, re.MULTILINE)
    told = {int(code): action for codes, action in rows for code in codes.split(",")}
    assert len(told) == 5
    for code, action in told.items():
        named = [
            rule["action"]
            for rule in rules
            if code in rule.get("onExitCodes", {}).get("values", ())
        ]
        assert (*named, "Count")[0] == action, code
    # a node that is drained must not hide a mistake
    assert rules[0]["action"] == "FailJob"


def job_of(name: str) -> Any:
    """Return the Job of a file, alone: that which JobSet makes of its template."""
    job = documents(name)[-1]
    if name == "job":
        return job
    template = job["spec"]["replicatedJobs"][0]["template"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "hosts"},
        "spec": template["spec"],
    }


@pytest.mark.parametrize("minor", range(26, 38))
def test_kubernetes_takes_the_files(minor: int) -> None:
    """By the schemas of each version, with no key beside theirs. pip install kubernetes-validate"""
    judge = pytest.importorskip("kubernetes_validate")
    service = documents("job")[0]
    for document in (service, job_of("job"), job_of("jobset")):
        judge.validate(document, f"1.{minor}", strict=True)


@pytest.mark.parametrize("name", ["jobset", "job"])
def test_pods_are_those_of_a_restricted_namespace(name: str) -> None:
    """The fields that the Pod Security Standard "restricted" asks for, and volumes of the kinds that it has."""
    pod = job_of(name)["spec"]["template"]["spec"]
    of_pod = pod["securityContext"]
    assert of_pod["runAsNonRoot"] is True and of_pod["runAsUser"] > 0
    assert of_pod["seccompProfile"]["type"] == "RuntimeDefault"
    (container,) = pod["containers"]
    of_container = container["securityContext"]
    assert of_container["allowPrivilegeEscalation"] is False
    assert of_container["capabilities"] == {"drop": ["ALL"]}
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"persistentVolumeClaim", "emptyDir"}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    image = (ROOT / "Dockerfile").read_text()
    assert f"SATURATE_CACHES={mounted['caches']}\n" in image
    assert f"\nUSER {of_pod['runAsUser']}\n" in image
