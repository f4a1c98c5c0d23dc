"""One sentence: what to change first, read off a run's summary.

The best of the predictions (report/what_if.py), where one is a setting and worth its while; else what is known of
such runs. Must not know: how the figures were measured. Pure; every sentence is a case of a table in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report.meter import too_high

BUSY = 0.85
"""CPU cores, or a GPU's time, that are in use to this share are the limit."""
IDLE = 0.6
"""Cores, or a GPU, in use to less than this share wait for something else."""
WORTH = 0.1
"""Gain from which on a prediction is the advice."""
DECODE_ON_GPU = ("dali-gpu", "dali-fed", "nvdec+pyav")
Summary = Mapping[str, Any]


def look_up(summary: Summary, path: str) -> Any:
    """Return what lies in a summary at "section.name"; None where any of it is missing or None."""
    value: Any = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def told_bound(bound: str | None, *, remote: bool, busy: float | None) -> str | None:
    """Return "storage" for a loader that waits for servers while cores are idle, else the bound itself."""
    waits = bound == "loader" and remote and busy is not None and busy < IDLE
    return "storage" if waits else bound


def advice(summary: Summary) -> str:
    """Say what to change first, from a run's `summary`; any section of it may be missing or None."""
    if look_up(summary, "rate.steady") is None:
        return "Train for longer: no rate was taken, a window is at least 2 s and starts after the warm-up."
    if look_up(summary, "rate.short"):
        return "Train for longer: this run was shorter than a window, so its rate is that of the first steps too."
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
    if bound == "compute" and _gpu(summary) and summary.get("precision") == "fp32":
        return "The GPU is fed and computes in fp32: --precision fp16 or bf16 uses its tensor cores."
    for one in summary.get("what_if") or []:
        if one["settings"] and one["gain"] > WORTH:
            unit = look_up(summary, "rate.unit") or "img/s"
            return f"{one['what']}: {one['rate']:,.0f} {unit} are predicted, {one['gain']:+.0%}."
    sentences = {
        "compute": _compute,
        "loader": _loader,
        "storage": _storage,
        "contention": _contention,
    }
    return sentences[bound](summary)


def _compute(summary: Summary) -> str:
    if not _gpu(summary):
        return (
            "The model is the limit on this CPU and it is fed: a GPU, a smaller --image-size or a smaller "
            "--arch."
        )
    return "The GPU is fed and at its limit: more GPUs, a smaller --image-size or a smaller --arch."


def _loader(summary: Summary) -> str:
    loader = summary.get("loader")
    busy = look_up(summary, "cpu.utilisation")
    others = [name for name in DECODE_ON_GPU if _may_try(summary, name)]
    idle = busy is not None and busy < IDLE
    if loader == "nvdec" and "nvdec+pyav" in others and (idle or busy is None):
        return "The loader is the limit: --loader nvdec+pyav gives the CPU cores a share of the clips."
    if idle:
        fed = ", --loader dali-fed" if "dali-fed" in others else ""
        return (
            f"The loader is the limit and {1 - busy:.0%} of the CPU cores are idle, so it waits: more "
            f"--workers{fed}; then faster storage."
        )
    if others and _gpu(summary) and loader not in (*DECODE_ON_GPU, "nvdec"):
        return f"The loader is the limit: --loader {others[0]} decodes on the GPU, beside the CPU cores."
    if busy is not None and busy >= BUSY:
        return (
            f"The loader is the limit and {busy:.0%} of the CPU cores are busy: more cores, or files stored "
            "smaller, so that decoding is cheaper."
        )
    return "The loader is the limit: try other --workers, then more cores, or files stored smaller."


def _storage(summary: Summary) -> str:
    idle = 1 - (look_up(summary, "cpu.utilisation") or 0.0)
    return (
        f"The storage is the limit: the loader waits for servers and {idle:.0%} of the cores are idle: "
        "--read-threads or more --workers put more reads in flight, --cache-dir keeps what was read on a disk."
    )


def _contention(summary: Summary) -> str:
    finding = "Loader and step hinder each other, each is faster alone:"
    graphs = graphs_can_be_had(summary)
    busy = look_up(summary, "cpu.utilisation")
    if not _gpu(summary) or (busy is not None and busy >= BUSY):
        tried = [] if summary.get("workers") in (0, 1) else ["fewer --workers"]
        if graphs and _gpu(summary):
            tried.append("--graphs true (few launches)")
        first = f"{' and '.join(tried)}, then " if tried else ""
        return f"{finding} they share the CPU cores, so try {first}more cores."
    if graphs:
        return f"{finding} --graphs true leaves few launches to be held up, instead of hundreds."
    if summary.get("loader") in DECODE_ON_GPU and _may_try(summary, "dali-cpu"):
        return f"{finding} they share the GPU, so try --loader dali-cpu while CPU cores are idle."
    return f"{finding} look at a --profile true trace for the gaps between steps."


def graphs_can_be_had(summary: Summary) -> bool:
    """Whether graphs can be had: they are off by their flag, and not since batches have many shapes."""
    off = summary.get("graphs_off") == "--graphs false"
    return off and summary.get("one_shape", False)


def _may_try(summary: Summary, loader: str) -> bool:
    """Whether another loader can run here on these data, and was not found to be slower by --loader auto."""
    measured = look_up(summary, f"loader_auto.measured.{loader}.rate")
    able = loader in summary.get("loaders", ())
    return able and measured is None and loader != summary.get("loader")


def _gpu(summary: Summary) -> bool:
    return bool(look_up(summary, "hardware.gpu"))
