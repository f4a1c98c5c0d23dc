"""One sentence: what to change first, read off a run's summary.

Must not know: how the figures were measured. Pure; every sentence is a case of a table in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report.meter import too_high

BUSY = 0.85
"""CPU cores, or a GPU's time, that are in use to this share are the limit."""
IDLE = 0.6
"""Cores, or a GPU, in use to less than this share wait for something else."""
FAR_BELOW = 0.5
NEARLY = 0.75
"""Raise a loader ceiling below FAR_BELOW of the compute ceiling if the rate is above NEARLY of it."""
GRAPHS = "--graphs true"
DECODE_ON_GPU = ("dali-gpu", "dali-fed")
MANY_SHAPES = ("detection",)
"""Tasks whose batches have many shapes: each would be a graph, or be compiled, of its own."""


def told_bound(bound: str | None, *, remote: bool, busy: float | None) -> str | None:
    """Return "storage" for a loader that waits for servers while cores are idle, else the bound itself."""
    waits = bound == "loader" and remote and busy is not None and busy < IDLE
    return "storage" if waits else bound


def advice(summary: Mapping[str, Any]) -> str:
    """Say what to change first, from a run's `summary`; any section of it may be missing or None."""
    # off for another reason they cannot be had: too many shapes, or a step that waits for the device
    graphs = (
        summary.get("graphs_off") == "--graphs false"
        and summary.get("task") not in MANY_SHAPES
    )
    efficiency = summary.get("efficiency")
    ceiling = section(summary, "ceiling")
    if section(summary, "rate").get("steady") is None:
        return "Train for longer: no rate was taken, a window is at least 2 s and starts after the warm-up."
    if section(summary, "rate").get("short"):
        finding = "Train for longer: this run was shorter than a window,"
        return f"{finding} so its rate is that of the first steps too."
    if too_high(efficiency):
        finding = "Measure again: the rate is above its own ceiling,"
        return f"{finding} so one of the two is wrong (another load on the machine?)."
    if summary.get("loader") == "synthetic":
        return "Name a real loader: this is the step without reading, the rate that a loader has to reach."
    if summary.get("bound") is None or (
        ceiling.get("compute") is None and ceiling.get("loader") is None
    ):
        return "Run with --ceilings true: without the two ceilings nobody can say what held the rate back."
    sentence = {
        "compute": _compute,
        "loader": _loader,
        "storage": _storage,
        "contention": _contention,
    }[summary["bound"]](summary, graphs)
    alone = section(section(summary, "rate"), "spread").get("n") == 1
    return (
        f"{sentence} One window alone says so: train for longer to be sure."
        if alone
        else sentence
    )


def _compute(summary: Mapping[str, Any], graphs: bool) -> str:
    hardware = section(summary, "hardware")
    if not _gpu(summary):
        finding = "The model is the limit on this CPU and it is fed:"
        return f"{finding} a GPU, a smaller --image-size or a smaller --arch."
    # the cheapest first: a flag, then another batch size, then hardware
    if summary.get("precision") == "fp32":
        return "The GPU is fed and computes in fp32: --precision fp16 or bf16 uses its tensor cores."
    busy = section(summary, "gpu").get("utilisation")
    if busy is not None and busy < IDLE:
        launches = f", or {GRAPHS} (CUDA graphs: few launches)" if graphs else ""
        finding = f"The step is the limit and the GPU is busy {busy:.0%} of its time,"
        return f"{finding} so it waits for launches: a larger --batch-size{launches}."
    if not summary.get("compile") and summary.get("task") not in MANY_SHAPES:
        return "The GPU is fed: --compile true makes the step itself faster."
    room = hardware.get("gpu_gib")
    used = section(summary, "memory").get("device_gib")
    if room and used and used < room / 2:
        finding = f"The GPU is fed and {room - used:.0f} GiB of its memory are free:"
        return f"{finding} a larger --batch-size, with --lr to match."
    return "The GPU is fed and at its limit: more GPUs, a smaller --image-size or a smaller --arch."


def _loader(summary: Mapping[str, Any], graphs: bool) -> str:
    if section(summary, "clips"):
        return _clips(summary)
    loader = summary.get("loader")
    busy = section(summary, "cpu").get("utilisation")
    cores = section(summary, "hardware").get("cores")
    of_cores = f" of {cores:.0f} cores" if cores else ""
    if busy is not None and busy < IDLE:
        said = f"The loader is the limit and {1 - busy:.0%}{of_cores} are idle, so it waits:"
        if loader == "dali-fed":
            return f"{said} more --workers, each hides one read's latency; then faster storage."
        fed = _may_try(summary, "dali-fed")
        if loader == "dali-gpu":
            finding = f"{said} {'--loader dali-fed' if fed else 'more --workers'} if the storage is slow to answer,"
            return f"{finding} else smaller images on disk for the GPU's JPEG decoder."
        finding = f"{said} more --workers; if that changes nothing the storage is slow to answer"
        return f"{finding}{', --loader dali-fed' if fed else ''}."
    other = next((name for name in DECODE_ON_GPU if _may_try(summary, name)), None)
    if loader not in DECODE_ON_GPU and _gpu(summary) and other:
        return f"The loader is the limit: --loader {other} decodes on the GPU instead of the CPU cores."
    if busy is not None and busy >= BUSY:
        finding = f"The loader is the limit and {busy:.0%}{of_cores} are busy:"
        return f"{finding} more cores, or images stored smaller, so that decoding is cheaper."
    return "The loader is the limit: try other --workers, then more cores, or images stored smaller."


def _storage(summary: Mapping[str, Any], graphs: bool) -> str:
    busy = section(summary, "cpu").get("utilisation") or 0.0
    finding = f"The storage is the limit: the loader waits for servers and {1 - busy:.0%} of the cores are idle:"
    remedy = "--read-threads or more --workers put more reads in flight"
    return f"{finding} {remedy}, --cache-dir keeps what was read on a disk."


def _clips(summary: Mapping[str, Any]) -> str:
    loader = str(summary.get("loader"))
    busy = section(summary, "cpu").get("utilisation")
    mixed = _may_try(summary, "nvdec+pyav")
    if _gpu(summary) and not loader.startswith("nvdec") and mixed:
        finding = "The loader is the limit:"
        return f"{finding} --loader nvdec+pyav decodes on the GPU's video engines, beside the CPU cores."
    if loader == "nvdec" and mixed and (busy is None or busy < BUSY):
        idle = "" if busy is None else f" and {1 - busy:.0%} of the CPU cores are idle"
        return f"The loader is the limit{idle}: --loader nvdec+pyav gives them a share of the clips."
    if busy is not None and busy < IDLE:
        finding = (
            f"The loader is the limit and {1 - busy:.0%} of the CPU cores are idle:"
        )
        return f"{finding} more --workers; then the storage is slow to answer."
    remedy = "more cores, or videos stored smaller or with a key frame more often"
    return f"The loader is the limit: {remedy}, so that decoding is cheaper."


def _contention(summary: Mapping[str, Any], graphs: bool) -> str:
    busy = section(summary, "cpu").get("utilisation")
    ceiling = section(summary, "ceiling")
    compute = section(ceiling, "compute").get("rate")
    loader = section(ceiling, "loader").get("rate")
    if (
        compute
        and loader
        and loader < FAR_BELOW * compute
        and summary["rate"]["steady"] > NEARLY * loader
    ):
        return _loader(summary, graphs)
    finding = "Loader and step hinder each other, each is faster alone:"
    if not _gpu(summary):
        return (
            f"{finding} they share the CPU cores, so try {_fewer(summary)}more cores."
        )
    if busy is not None and busy >= BUSY:
        launches = f" and {GRAPHS} (few launches)" if graphs else ""
        return f"{finding} they share the CPU cores, so try {_fewer(summary, launches)}more cores."
    if graphs:
        return f"{finding} {GRAPHS} leaves few launches to be held up, instead of hundreds."
    if summary.get("loader") in DECODE_ON_GPU and _may_try(summary, "dali-cpu"):
        return f"{finding} they share the GPU, so try --loader dali-cpu while CPU cores are idle."
    return f"{finding} look at a --profile true trace for the gaps between steps."


def _fewer(summary: Mapping[str, Any], launches: str = "") -> str:
    """Say what to try before more cores, where there is something."""
    tried = ("" if summary.get("workers") in (0, 1) else "fewer --workers") + launches
    return f"{tried.removeprefix(' and ')}, then " if tried else ""


def _may_try(summary: Mapping[str, Any], loader: str) -> bool:
    """Whether another loader can run here on these data, and was not found to be slower by --loader auto."""
    measured = section(section(section(summary, "loader_auto"), "measured"), loader)
    return loader in summary.get("loaders", (loader,)) and "rate" not in measured


def _gpu(summary: Mapping[str, Any]) -> bool:
    return bool(section(summary, "hardware").get("gpu"))


def section(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a summary; {} where it is missing or None."""
    value = summary.get(name)
    return value if isinstance(value, Mapping) else {}
