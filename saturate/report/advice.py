"""One sentence: what to change first, read off a run's summary. It is about the stage that binds (report/stages.py).

The best of the predictions (report/what_if.py), where one is a setting and worth its while; else what is known of
such runs. Must not know: how the figures were measured. Pure; every sentence is a case of a table in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from saturate.contracts import counted
from saturate.report.meter import too_high

IDLE = 0.6
"""CPU cores in use to less than this share wait for something else."""
WORTH = 0.1
"""Gain from which on a prediction is the advice."""
FEW_STEPS = 20
"""Steps of an epoch below which the wait for its first batches counts: no loader reads them before it begins."""
FIRST_BATCHES = "first batches"
"""The stage that then binds."""
DECODE_ON_GPU = ("dali-gpu", "dali-fed", "nvdec+pyav")
PAUSES = {
    "validation": "Validations take {:.0%} of the run: {}.",
    "checkpoint": "Checkpoints take {:.0%} of the run: name an --output on a faster disk, or write fewer of them "
    "(--save-every-steps, --save-every-minutes, longer epochs).",
}
"""Pause that binds -> what is said of it, with its share of the run."""
OF_A_STEP = {
    "all-reduce": "Ranks wait for each other's gradients: a larger --batch-size or --accumulate shares them less "
    "often.",
    "launch": "The GPU waits for launches: a larger --batch-size, or --graphs true where batches have one shape.",
}
"""Stage of a step that binds, and computes nothing -> what is said of it."""
SETTINGS_OF_A_STEP = {"graphs", "compile", "batch_size"}
"""Settings of predictions that make the step faster; all others make the loader faster."""
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


class Cause(NamedTuple):
    """What holds a run back and is no setting of it: the fact that shows it, what is said of that, "" where it is not
    worth a line, and the remedy, by the name that its prediction has.
    """

    key: str
    says: Callable[[Any, Summary], str]
    remedy: str

    def line(self, value: object, summary: Summary) -> str:
        """Say the fact, and what the remedy is worth; "" where that is known to be little."""
        text = self.says(value, summary)
        worth = f"{self.remedy}: not known"
        for one in summary.get("what_if") or []:
            if one["what"] == self.remedy:
                worth = _predicted(one, summary)
                text = text if one["gain"] > WORTH else ""
        return text and f"{text}; {worth}"


def _predicted(one: Mapping[str, Any], summary: Summary) -> str:
    rate = f"{one['rate']:,.0f} {unit_of(summary)}"
    return f"{one['what']}: {rate} are predicted, {one['gain']:+.0%}"


def _gpu_shared(shared: Any, summary: Summary) -> str:
    if not shared:
        return ""
    gpu = f"the GPU of rank {shared['rank']}" if shared.get("rank") else "this GPU"
    pids = ", ".join(map(str, shared["who"]))
    who = f"process {pids}" if pids else "by whom is not known"
    return f"another process uses {gpu}: busy {shared['busy']:.0%} of a second in which this run was held idle ({who})"


def _cores_shared(others: Any, summary: Summary) -> str:
    cores = look_up(summary, "hardware.cores") or 0.0
    if (others or 0.0) <= WORTH * cores:
        return ""
    return f"other programs take {others:.1f} of these {cores:g} cores"


def _progressive(share: Any, _: Summary) -> str:
    if (share or 0.0) <= WORTH:
        return ""
    which = "all files" if share == 1 else f"{share:.0%} of the files"
    return f"{which} are progressive JPEGs: the decoding engines of a GPU do not decode them, cores do, and slowly"


def _large(large: Any, _: Summary) -> str:
    if not large or large["above_median"] <= WORTH:
        return ""
    files = f"{100 * large['files']:.2g}%"
    return f"{files} of the files have {large['pixels']:.0%} of the pixels"


def _photos(share: Any, _: Summary) -> str:
    """Say it where decoding would take a quarter of its time at most: photographs as cameras leave them."""
    if (share or 0.0) < 0.75:
        return ""
    return f"{share:.0%} of the images' pixels are decoded and thrown away: they are large photographs"


GPU_ALONE = Cause("gpu.shared", _gpu_shared, "this GPU alone")
CORES_ALONE = Cause("cpu.others", _cores_shared, "these cores alone")
BASELINE = Cause("files.progressive", _progressive, "baseline JPEGs (jpegtran)")
LIKE_OTHERS = Cause("files.large", _large, "large files made like the others")
SMALLER = Cause("files.above_side", _photos, "copies of 640 px (scripts.pack)")
NEIGHBOURS = (GPU_ALONE, CORES_ALONE)
FILES = (SMALLER, BASELINE, LIKE_OTHERS)


def first_of(causes: Sequence[Cause], summary: Summary) -> str:
    """Say the first of these that may be worth its while; "" where there is none."""
    for cause in causes:
        if text := cause.line(look_up(summary, cause.key), summary):
            return f"{text[0].upper()}{text[1:]}."
    return ""


def _of_validations(summary: Summary) -> str:
    """Say how validations take less of the run: its last epoch always has one."""
    settings = summary.get("settings") or {}
    remedies = ["a larger --val-every makes fewer of them"]
    if settings.get("epochs") == 1:
        remedies = ["more --epochs for the one that each run has"]
    if settings.get("task") != "superres":
        remedies.append("a larger --val-batch-size may make them faster")
    return ", and ".join(remedies)


def advice(summary: Summary) -> str:
    """Say what to change first, from a run's `summary`; any section of it may be missing or None.

    It is about what `binds`, where that is known.
    """
    binds = summary.get("binds") or {}
    side, stage = binds.get("side"), binds.get("stage", "")
    if side == "pause":
        return PAUSES[stage].format(binds["share"], _of_validations(summary))
    if look_up(summary, "rate.steady") is None or look_up(summary, "rate.short"):
        return "Train for longer: a window of the rate is at least 2 s and starts after the warm-up."
    # before all that is told of figures which were measured beside them
    if text := first_of(NEIGHBOURS, summary):
        return text
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
        return "Run with --ceilings true: without the two ceilings nobody can say what a change is worth."
    gpu = bool(look_up(summary, "hardware.gpu"))
    if bound == "compute" and gpu and summary.get("precision") == "fp32":
        return "The GPU is fed and computes in fp32: --precision fp16 or bf16 uses its tensor cores."
    if stage == FIRST_BATCHES:
        return (
            f"An epoch has {counted(summary['epoch_steps'], 'step')}, and begins with a wait for its first batches: "
            "measure with more files, or give an epoch more steps by a smaller --batch-size."
        )
    remedies = [cause.remedy for cause in FILES]
    for one in summary.get("what_if") or []:
        can_be_made = one["settings"] or one["what"] in remedies
        faster = "step" if SETTINGS_OF_A_STEP & one["settings"].keys() else "loader"
        if can_be_made and one["gain"] > WORTH and side in (None, faster):
            return f"{_predicted(one, summary)}."
    if stage in OF_A_STEP:
        return OF_A_STEP[stage]
    if bound == "compute":
        return "The step is fed and at its limit: more GPUs, a smaller --image-size or a smaller --arch."
    if side != "step" and (text := first_of(FILES, summary)):
        return text
    if bound == "storage":
        return (
            "The storage is the limit: --read-threads or more --workers put more reads in flight, --cache-dir "
            "keeps what was read on a disk."
        )
    if bound == "loader":
        return f"The loader is the limit: {_of_a_loader(summary, gpu=gpu)}."
    if side == "loader":
        return f"The loader is late, and slower beside the step than alone: {_of_a_loader(summary, gpu=gpu)}."
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
