"""The branches of the advice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from saturate.report import stages
from saturate.report.advice import PAUSES, advice
from saturate.report.facts import FACTS
from saturate.settings.config import GROUP_OF
from tests.unit.test_house import ROOT


def summary(bound: str | None, busy: float | None = None, **more: Any) -> Any:
    return {
        "rate": {"steady": 100.0},
        "ceiling": {"compute": {"rate": 110.0}, "loader": {"rate": 120.0}},
        "bound": bound,
        "graphs_off": "--graphs false",
        "one_shape": True,
        "efficiency": 0.9,
        "loader": "torchvision",
        "loaders": ["torchvision", "dali-cpu", "dali-gpu", "dali-fed"],
        "precision": "fp16",
        "hardware": {"gpu": "H200", "cores": 16},
        "cpu": {"utilisation": busy},
    } | more


GRAPHS: dict[str, Any] = {"what": "--graphs true", "settings": {"graphs": True}}
GRAPHS |= {"rate": 250.0, "gain": 1.5}
NO_SETTING = {"what": "faster storage", "settings": {}, "rate": 900.0, "gain": 8.0}
SHARED: dict[str, Any] = {"shared": {"busy": 0.61, "who": []}}
RANK: dict[str, Any] = {"rank": 3, "who": [7, 8]}
ALONE = GRAPHS | {"what": "this GPU alone", "settings": {}}
PROGRESSIVE = {"progressive": 1.0, "large": None}
LARGE = {"large": {"files": 0.005, "pixels": 0.41, "above_median": 0.4}}
SMALLER: dict[str, Any] = {"what": "large files made like the others", "settings": {}}
SMALLER |= {"rate": 260.0, "gain": 1.6}
MEASURED = {"loader_auto": {"measured": {"dali-gpu": {"rate": 9}}}}
NVDEC = {"loader": "nvdec", "loaders": ["nvdec", "nvdec+pyav"]}

CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "Train for longer"),
    (summary(None, rate={"steady": 45.0, "short": True}), "Train for longer"),
    (summary("compute", efficiency=1.2), "Measure again"),
    (summary("compute", loader="synthetic"), "Name a real loader"),
    (summary("loader", ceiling={"compute": None, "loader": None}), "--ceilings true"),
    (summary("compute", precision="fp32"), "--precision fp16 or bf16"),
    (summary("compute"), "more GPUs"),
    # what is predicted of a setting goes before what is known of such runs
    (
        summary("compute", what_if=[NO_SETTING, GRAPHS]),
        "--graphs true: 250 img/s are predicted, +150%.",
    ),
    (summary("loader", what_if=[GRAPHS | {"gain": 0.05}]), "--loader dali-gpu decodes"),
    (summary("storage", 0.2), "--read-threads or more --workers"),
    (summary("loader", 0.2), "80% of the CPU cores are idle: more --workers"),
    # another one only where it can run on these data, and was not measured already
    (summary("loader", 0.9, **MEASURED), "--loader dali-fed decodes"),
    (summary("loader", loader="dali-gpu"), "try other --workers"),
    (summary("loader", 0.1, **NVDEC), "--loader nvdec+pyav decodes"),
    # what the figures were measured beside goes before them
    (
        summary(None, efficiency=1.16, cpu={"utilisation": 1.0, "others": 9.34}),
        "Other programs take 9.3 of these 16 cores; these cores alone: not known.",
    ),
    (
        summary("compute", gpu=SHARED, what_if=[ALONE, GRAPHS]),
        "Another process uses this GPU: busy 61% of a second in which this run was held idle (by whom is not known); "
        "this GPU alone: 250 img/s are predicted, +150%.",
    ),
    (
        summary("compute", gpu={"shared": SHARED["shared"] | RANK}),
        "uses the GPU of rank 3: busy 61% of a second in which this run was held idle (process 7, 8); this",
    ),
    (summary("loader", files=PROGRESSIVE), "All files are progressive JPEGs: the"),
    (
        summary("loader", files={"progressive": 0.34}),
        "34% of the files are progressive JPEGs: the decoding engines of a GPU do not decode them, cores do, and "
        "slowly; baseline JPEGs (jpegtran): not known.",
    ),
    (
        summary("loader", files=LARGE, what_if=[NO_SETTING, SMALLER, GRAPHS]),
        "large files made like the others: 260 img/s are predicted, +160%.",
    ),
    (
        summary("loader", files={"above_side": 0.97}),
        "97% of the images' pixels are decoded and thrown away: they are large photographs; "
        "copies of 640 px (scripts.pack): not known.",
    ),
    (summary("contention"), "--graphs true leaves few launches"),
    (summary("contention", graphs_off="many shapes", workers=8), "fewer --workers"),
    (
        summary("contention", graphs_off="many shapes", workers=1),
        "or other programs take these cores; each is faster alone: more cores",
    ),
]


FEW: dict[str, Any] = {"epoch_steps": 4, "data_wait": {"share": 0.3}}
WAITS: dict[str, Any] = {
    "data_wait": {"share": 0.2},
    "stages": {"workers": {"share": 0.9}},
}
WAITS["stages"] |= {"read": {"share": 0.1}, "decode": {"share": 0.8}}
FED: dict[str, Any] = {
    "data_wait": {"share": 0.01},
    "split_ms": {"forward": 2.0, "backward": 4.0},
}
LONG: dict[str, Any] = {"rate": {"steady": 100.0, "active_s": 40.0}}
VALIDATES = LONG | {"pauses": {"validation": 60.0}, "workers": 8}
SAVES = LONG | {"pauses": {"checkpoint": 90.0, "ceilings": 400.0, "validation": 9.0}}
MORE_WORKERS = GRAPHS | {"what": "--workers 16", "settings": {"workers": 16}}
SHARES: dict[str, Any] = {
    "compute": {"rate": 104.0, "step_ms": 10.0, "all_reduce_ms": 4.0}
}
SHARES |= {"loader": {"rate": 120.0}}
LAUNCHES: dict[str, Any] = {"loader": {"rate": 120.0}}
LAUNCHES |= {"compute": {"rate": 104.0, "step_ms": 10.0, "kernel_ms": 5.0}}
SLOW: dict[str, Any] = {
    "slowest_rank": {"rank": 1, "why": "read", "ms": 40.0, "share": 0.9}
}
VOICES: list[tuple[dict[str, Any], str, str]] = [
    # validation was 60 % of a run, and the advice was fewer --workers
    (summary("contention", **FED, **VALIDATES), "validation", "take 60% of the run: a"),
    (summary("loader", 0.2, **WAITS, **VALIDATES), "validation", "larger --val-every"),
    (
        summary("loader", **VALIDATES, settings={"task": "superres", "epochs": 1}),
        "validation",
        "of the run: more --epochs for the one that each run has.",
    ),
    (summary("compute", **FED, **SAVES), "checkpoint", "on a faster disk"),
    # a step that is at its ceiling waits for nobody, whatever was measured of its loader
    (summary("compute", **WAITS, split_ms=FED["split_ms"]), "backward", "more GPUs"),
    (summary("compute", **FED, what_if=[MORE_WORKERS]), "backward", "more GPUs"),
    # nor does a loader that is at its own
    (summary("loader", 0.9, **{**WAITS, **FED}), "decode", "--loader dali-gpu decodes"),
    (summary("loader", 0.9, **WAITS, what_if=[MORE_WORKERS]), "decode", "--workers 16"),
    (summary("storage", 0.2, **WAITS), "decode", "The storage is the limit"),
    # below both ceilings it is what the other one waits for
    (summary("contention", 0.9, **WAITS, workers=8), "decode", "The loader is late"),
    (summary("contention", 0.2, **WAITS), "decode", "more --workers"),
    (summary("contention", 0.9, **FED, workers=8), "backward", "--graphs true leaves"),
    (summary("contention", **FEW), "first batches", "An epoch has 4 steps"),
    (summary("contention", **FEW | {"epoch_steps": 20}), "data_wait", "loader is late"),
    (summary("compute", **FED, ceiling=SHARES), "all-reduce", "shares them less often"),
    (summary("compute", **FED, ceiling=LAUNCHES), "launch", "waits for launches"),
    (summary("contention", 0.2, **FED, **SLOW), "read", "more --workers"),
]
"""A summary, the stage that binds, and what is said of it."""


@pytest.mark.parametrize(("case", "stage", "said"), VOICES)
def test_what_binds_and_what_is_to_be_changed_have_one_voice(
    case: dict[str, Any], stage: str, said: str
) -> None:
    binds = stages.binds(case)
    assert binds is not None and binds["stage"] == stage
    sentence = advice(case | {"binds": binds})
    assert said in sentence
    named = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", sentence)}
    assert named <= set(GROUP_OF)


def test_every_pause_of_a_run_has_its_advice() -> None:
    told = re.findall(
        r'pause_for\("(\w+)"\)', (ROOT / "saturate/engine/loop.py").read_text()
    )
    assert {*told} - {"ceilings"} == PAUSES.keys()


@pytest.mark.parametrize(("case", "said"), CASES)
def test_advice(case: dict[str, Any], said: str) -> None:
    sentence = advice(case)
    assert said in sentence
    named = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", sentence)}
    assert named <= set(GROUP_OF)


@pytest.mark.parametrize(
    ("bound", "remote", "busy", "expected"),
    [
        ("loader", True, 0.2, "storage"),
        ("loader", True, 0.7, "loader"),
        ("loader", False, 0.2, "loader"),
        ("compute", True, 0.2, "compute"),
    ],
)
def test_a_loader_that_waits_for_servers_is_bound_by_the_storage(
    bound: str, remote: bool, busy: float, expected: str
) -> None:
    (fact,) = (fact for fact in FACTS if fact.key == "bound")
    ceilings = {name: {"rate": 200.0} for name in ("compute", "loader")}
    run = {
        "rate": {"steady": 99.0},
        "ceiling": ceilings | {bound: {"rate": 100.0}},
        "remote": remote,
        "cpu": {"utilisation": busy},
    }
    assert fact.value(run) == expected
