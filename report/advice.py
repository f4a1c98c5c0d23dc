"""One sentence: what to change first, read off a run's summary.

Must not know: how the figures were measured. Pure; every sentence is a case of a table in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report.meter import too_high

BUSY, IDLE = 0.85, 0.6
"""Share of the CPU cores, or of the GPU's time, in use: above, they are the limit; below, something else is waited for."""
FAR_BELOW, NEARLY = 0.5, 0.75
"""A loader ceiling that is below this share of the compute ceiling is the one to raise, if the rate is above that share of it."""
GRAPHS = "--compile true --compile-mode reduce-overhead"
READS_ON_CPU = ("torchvision", "dali-cpu")


def advice(summary: Mapping[str, Any], *, graphs: bool = True) -> str:
    """What to change first, from a run's `summary` (report/reporter.py, finish); any part may be missing or None.

    `graphs`: whether the task's steps can be CUDA graphs at all.
    """
    graphs = graphs and summary.get("compile") != "reduce-overhead" and summary.get("accumulate", 1) == 1
    efficiency = summary.get("efficiency")
    ceiling = _part(summary, "ceiling")
    if _part(summary, "rate").get("steady") is None:
        return "Train for longer: no rate was taken, a window is at least 2 s and starts after the warm-up."
    if _part(summary, "rate").get("short"):
        return "Train for longer: this run was shorter than a window, so its rate is that of the first steps too."
    if too_high(efficiency):
        return "Measure again: the rate is above its own ceiling, so one of the two is wrong (another load on the machine?)."
    if summary.get("loader") == "synthetic":
        return "Name a real loader: this is the step without reading, the rate that a loader has to reach."
    if summary.get("bound") is None or (ceiling.get("compute") is None and ceiling.get("loader") is None):
        return "Run with --ceilings true: without the two ceilings nobody can say what held the rate back."
    said = {"compute": _compute, "loader": _loader, "contention": _contention}[summary["bound"]](summary, graphs)
    alone = _part(_part(summary, "rate"), "spread").get("n") == 1
    return f"{said} One window alone says so: train for longer to be sure." if alone else said


def _compute(summary: Mapping[str, Any], graphs: bool) -> str:
    hardware = _part(summary, "hardware")
    if not _gpu(summary):
        return "The model is the limit on this CPU and it is fed: a GPU, a smaller --image-size or a smaller --arch."
    if summary.get("precision") == "fp32":
        return "The GPU is fed and computes in fp32: --precision fp16 or bf16 uses its tensor cores."
    busy = _part(summary, "gpu").get("utilisation")
    if busy is not None and busy < IDLE:
        launches = f", or {GRAPHS} (CUDA graphs: few launches)" if graphs else ""
        waits = f"the GPU is busy {busy:.0%} of its time, so it waits for launches"
        return f"The step is the limit and {waits}: a larger --batch-size{launches}."
    if not summary.get("compile"):
        return "The GPU is fed: --compile true makes the step itself faster."
    room, used = hardware.get("gpu_gib"), _part(summary, "memory").get("device_gib")
    if room and used and used < room / 2:
        return f"The GPU is fed and {room - used:.0f} GiB of its memory are free: a larger --batch-size, with --lr to match."
    return "The GPU is fed and at its limit: more GPUs, a smaller --image-size or a smaller --arch."


def _loader(summary: Mapping[str, Any], graphs: bool) -> str:
    if _part(summary, "clips"):
        return _clips(summary)
    loader, busy, cores = summary.get("loader"), _part(summary, "cpu").get("utilisation"), _part(summary, "hardware").get("cores")
    of_cores = f" of {cores:.0f} cores" if cores else ""
    if busy is not None and busy < IDLE:
        said = f"The loader is the limit and {1 - busy:.0%}{of_cores} are idle, so it waits:"
        if loader == "dali-fed":
            return f"{said} more --workers, each hides one read's latency; then faster storage."
        if loader == "dali-gpu":
            return f"{said} --loader dali-fed if the storage is slow to answer, else smaller images on disk for the GPU's JPEG decoder."
        return f"{said} more --workers; if that changes nothing the storage is slow to answer, --loader dali-fed."
    if loader in READS_ON_CPU and _gpu(summary):
        return "The loader is the limit: --loader dali-gpu decodes on the GPU instead of the CPU cores."
    if busy is not None and busy >= BUSY:
        return (
            f"The loader is the limit and {busy:.0%}{of_cores} are busy: more cores, or images stored smaller, so that decoding is cheaper."
        )
    return "The loader is the limit: try other --workers, then more cores, or images stored smaller."


def _clips(summary: Mapping[str, Any]) -> str:
    loader, busy = str(summary.get("loader")), _part(summary, "cpu").get("utilisation")
    if _gpu(summary) and not loader.startswith("nvdec"):
        return "The loader is the limit: --loader nvdec+pyav decodes on the GPU's video engines, beside the CPU cores."
    if loader == "nvdec" and (busy is None or busy < BUSY):
        idle = "" if busy is None else f" and {1 - busy:.0%} of the CPU cores are idle"
        return f"The loader is the limit{idle}: --loader nvdec+pyav gives them a share of the clips."
    if busy is not None and busy < IDLE:
        return f"The loader is the limit and {1 - busy:.0%} of the CPU cores are idle: more --workers; then the storage is slow to answer."
    return "The loader is the limit: more cores, or videos stored smaller or with a key frame more often, so that decoding is cheaper."


def _contention(summary: Mapping[str, Any], graphs: bool) -> str:
    busy = _part(summary, "cpu").get("utilisation")
    compute, loader = (_part(_part(summary, "ceiling"), name).get("rate") for name in ("compute", "loader"))
    if compute and loader and loader < FAR_BELOW * compute and summary["rate"]["steady"] > NEARLY * loader:
        return _loader(summary, graphs)
    said = "Loader and step hinder each other, each is faster alone:"
    if not _gpu(summary):
        return f"{said} they share the CPU cores, so try {_fewer(summary)}more cores."
    if busy is not None and busy >= BUSY:
        launches = f" and {GRAPHS} (few launches)" if graphs else ""
        return f"{said} they share the CPU cores, so try {_fewer(summary, launches)}more cores."
    if graphs:
        return f"{said} {GRAPHS} leaves few launches to be held up, instead of hundreds."
    if summary.get("loader") in ("dali-gpu", "dali-fed"):
        return f"{said} they share the GPU, so try --loader dali-cpu while CPU cores are idle."
    return f"{said} look at a --profile true trace for the gaps between steps."


def _fewer(summary: Mapping[str, Any], launches: str = "") -> str:
    """What comes before more cores, where there is something."""
    tried = ("" if summary.get("workers") in (0, 1) else "fewer --workers") + launches
    return f"{tried.removeprefix(' and ')}, then " if tried else ""


def _gpu(summary: Mapping[str, Any]) -> bool:
    return bool(_part(summary, "hardware").get("gpu"))


def _part(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = summary.get(name)
    return part if isinstance(part, Mapping) else {}
