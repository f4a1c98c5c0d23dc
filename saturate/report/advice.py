"""One sentence: what to change first, read off a run's summary.

The best of the predictions (report/what_if.py), where one is a setting and worth its while; else what is known of
such runs. Must not know: how the figures were measured. Pure; every sentence is a case of a table in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saturate.contracts import counted
from saturate.report.meter import too_high

IDLE = 0.6
"""CPU cores in use to less than this share wait for something else."""
WORTH = 0.1
"""Gain from which on a prediction is the advice."""
FEW_STEPS = 20
"""Steps of an epoch below which the wait for its first batches counts: no loader reads them before it begins."""
DECODE_ON_GPU = ("dali-gpu", "dali-fed", "nvdec+pyav")
Summary = Mapping[str, Any]


def look_up(summary: Summary, path: str) -> Any:
    """Return what lies in a summary at "section.name"; None where any of it is missing or None."""
    value: object = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def unit_of(summary: Summary) -> str:
    """Return the unit of a run's rates, such as img/s."""
    return look_up(summary, "rate.unit") or "img/s"


def advice(summary: Summary) -> str:
    """Say what to change first, from a run's `summary`; any section of it may be missing or None."""
    if look_up(summary, "rate.steady") is None or look_up(summary, "rate.short"):
        return "Train for longer: a window of the rate is at least 2 s and starts after the warm-up."
    if too_high(summary.get("efficiency")):
        return (
            "Measure again: the rate is above its own ceiling, so one of the two is wrong (another load on the "
            "machine?)."
        )
    if summary.get("loader") == "synthetic":
        return "Name a real loader: this is the step without reading, the rate that a loader has to reach."
    compute = look_up(summary, "ceiling.compute.rate")
    loader = look_up(summary, "ceiling.loader.rate")
    bound = summary.get("bound")
    if not (bound and compute and loader):
        return "Run with --ceilings true: without the two ceilings nobody can say what held the rate back."
    gpu = bool(look_up(summary, "hardware.gpu"))
    if bound == "compute" and gpu and summary.get("precision") == "fp32":
        return "The GPU is fed and computes in fp32: --precision fp16 or bf16 uses its tensor cores."
    steps = summary.get("epoch_steps") or FEW_STEPS
    if steps < FEW_STEPS and (look_up(summary, "data_wait.share") or 0) > WORTH:
        return (
            f"An epoch has {counted(steps, 'step')}, and begins with a wait for its first batches: measure with "
            "more files, or give an epoch more steps by a smaller --batch-size."
        )
    for one in summary.get("what_if") or []:
        if one["settings"] and one["gain"] > WORTH:
            rate = f"{one['rate']:,.0f} {unit_of(summary)}"
            return f"{one['what']}: {rate} are predicted, {one['gain']:+.0%}."
    if bound == "compute":
        return "The step is fed and at its limit: more GPUs, a smaller --image-size or a smaller --arch."
    if bound == "storage":
        return (
            "The storage is the limit: --read-threads or more --workers put more reads in flight, --cache-dir "
            "keeps what was read on a disk."
        )
    if bound == "loader":
        return f"The loader is the limit: {_of_a_loader(summary, gpu=gpu)}."
    finding = "Loader and step hinder each other, or other programs take these cores; each is faster alone:"
    if gpu and graphs_can_be_had(summary):
        return f"{finding} --graphs true leaves few launches to be held up, instead of hundreds."
    if (summary.get("workers") or 0) > 1:
        return f"{finding} fewer --workers, then more cores."
    return f"{finding} more cores, or a smaller --image-size or --arch."


def _of_a_loader(summary: Summary, *, gpu: bool) -> str:
    """Say what makes the loader faster."""
    loader = summary.get("loader")
    busy = look_up(summary, "cpu.utilisation")
    waits = busy is not None and busy < IDLE and loader != "nvdec"
    if waits:
        return f"it waits, {1 - busy:.0%} of the CPU cores are idle: more --workers, then faster storage"
    measured = look_up(summary, "loader_auto.measured") or {}
    for name in DECODE_ON_GPU:
        can = gpu and name in summary.get("loaders", ()) and name not in measured
        if can and loader not in DECODE_ON_GPU:
            return f"--loader {name} decodes on the GPU, beside the CPU cores"
    return "try other --workers, then more cores, or files stored smaller"


def graphs_can_be_had(summary: Summary) -> bool:
    """Whether graphs can be had: they are off by their flag, and not since batches have many shapes."""
    off = summary.get("graphs_off") == "--graphs false"
    return off and summary.get("one_shape", False)
