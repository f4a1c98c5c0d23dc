"""Every sentence of the advice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from report.advice import advice, told_bound

GPU = {"gpu": "H200", "gpu_gib": 139.0, "cores": 16}
CPU = {"gpu": None, "cores": 2}


def summary(
    bound: str | None,
    hardware: dict[str, Any] = GPU,
    busy: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "rate": {"steady": 100.0},
        "ceiling": {"compute": {"rate": 110.0}, "loader": {"rate": 120.0}},
        "bound": bound,
        "graphs_off": "--graphs false",
        "one_shape": True,
        "efficiency": 0.9,
        "loader": "dali-gpu",
        "loaders": ["torchvision", "dali-cpu", "dali-gpu", "dali-fed"],
        "precision": "fp16",
        "hardware": hardware,
        "cpu": {"utilisation": busy},
        "memory": {"device_gib": 100.0},
        "command": "train.py --data x",
    } | more


def clips(bound: str, loader: str, busy: float) -> dict[str, Any]:
    return summary(bound, busy=busy, loader=loader, loaders=["nvdec", "nvdec+pyav"])


GRAPHS: dict[str, Any] = {"what": "--graphs true", "settings": {"graphs": True}}
GRAPHS |= {"rate": 250.0, "gain": 1.5}
NO_SETTING = {"what": "faster storage", "settings": {}, "rate": 900.0, "gain": 8.0}

CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "Train for longer"),
    (
        summary(None, rate={"steady": 45.0, "short": True}),
        "Train for longer: this run was shorter than a window",
    ),
    (summary("compute", efficiency=1.2), "Measure again"),
    (summary("compute", loader="synthetic"), "Name a real loader"),
    (summary("loader", ceiling={"compute": None, "loader": None}), "--ceilings true"),
    # the step is the limit
    (summary("compute", precision="fp32"), "--precision fp16 or bf16"),
    (summary("compute"), "more GPUs"),
    # what is predicted of a setting goes before what is known of such runs
    (
        summary("compute", what_if=[NO_SETTING, GRAPHS]),
        "--graphs true: 250 img/s are predicted, +150%.",
    ),
    (summary("contention", busy=1.0, what_if=[GRAPHS]), "--graphs true: 250 img/s"),
    (summary("loader", what_if=[GRAPHS | {"gain": 0.05}], busy=0.7), "try other"),
    (summary("compute", CPU, precision="fp32"), "a GPU, a smaller --image-size"),
    (summary("compute", one_shape=False), "more GPUs"),
    # the storage, or the loader, is
    (
        summary("storage", busy=0.2, loader="torchvision"),
        "80% of the cores are idle: --read-threads",
    ),
    (summary("loader", loader="torchvision"), "--loader dali-gpu decodes"),
    (
        summary("loader", busy=0.2, loader="torchvision"),
        "80% of the CPU cores are idle, so it waits: more --workers, --loader dali-fed",
    ),
    (summary("loader", busy=0.2, loader="dali-fed"), "more --workers; then faster"),
    (summary("loader", busy=0.97), "97% of the CPU cores are busy: more cores"),
    (summary("loader", busy=0.7), "try other --workers"),
    # another one only where it can run on these data, and was not measured already
    (summary("loader", loader="paired", loaders=["paired"]), "try other --workers"),
    (
        summary(
            "contention",
            busy=0.3,
            graphs_off=None,
            loader_auto={"measured": {"dali-cpu": {"rate": 9}}},
        ),
        "--profile true",
    ),
    (clips("loader", "nvdec", 0.09), "--loader nvdec+pyav gives the CPU cores a share"),
    (clips("loader", "pyav", 0.95), "--loader nvdec+pyav decodes on the GPU"),
    # neither, but both together
    (summary("contention", CPU, busy=1.0), "fewer --workers, then more cores"),
    (
        summary("contention", busy=0.95, workers=0),
        "so try --graphs true (few launches), then more cores",
    ),
    (summary("contention", busy=0.3), "--graphs true leaves few launches"),
    (summary("contention", busy=0.3, graphs_off="many shapes"), "--loader dali-cpu"),
]


@pytest.mark.parametrize(("case", "said"), CASES)
def test_advice(case: dict[str, Any], said: str) -> None:
    sentence = advice(case)
    assert said in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert "  " not in sentence


def test_advice_names_only_flags_that_exist() -> None:
    from settings.config import GROUP_OF

    named = {
        flag for case, _ in CASES for flag in re.findall(r"--([a-z-]+)", advice(case))
    }
    assert named and {flag.replace("-", "_") for flag in named} <= set(GROUP_OF)


@pytest.mark.parametrize(
    ("bound", "remote", "busy", "expected"),
    [
        ("loader", True, 0.2, "storage"),
        ("loader", True, 0.7, "loader"),
        ("loader", True, None, "loader"),
        ("loader", False, 0.2, "loader"),
        ("compute", True, 0.2, "compute"),
        (None, True, 0.2, None),
    ],
)
def test_a_loader_that_waits_for_servers_is_bound_by_the_storage(
    bound: str | None, remote: bool, busy: float | None, expected: str | None
) -> None:
    assert told_bound(bound, remote=remote, busy=busy) == expected
