"""What a run tells, a row a fact: its key in summary.json, its curve, its line of the closing table, its column.

summary.json, the console, TensorBoard, trackers, results.csv, report.html and docs/rates.md read FACTS. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from saturate.contracts import Figure, Reported, World, counted
from saturate.report import learning, stages, what_if
from saturate.report.advice import (
    BASELINE,
    CORES_ALONE,
    GPU_ALONE,
    IDLE,
    LIKE_OTHERS,
    SMALLER,
    Summary,
    advice,
    look_up,
    unit_of,
)
from saturate.report.meter import bound, too_high
from saturate.report.words import duration, metric, number

PHASES = (
    "transforms",
    "data_wait",
    "transfer",
    "forward",
    "backward",
    "update",
    "graph",
)
"""Phases of a step, in their order; see report/phases.py. A step that is a CUDA graph has `graph` in place of
the three before it, and `transforms` is of runs with --transforms alone.
"""
EMA = "ema_"
"""Begins the names of the average's figures (--ema) beside the network's."""
CHOSEN = "chosen by auto"
"""Title of the line that a run begins and ends with."""
SHARES = "shares of the compute ceiling (the loader's up to 1.5)"
EFFICIENCY = "efficiency, 0 to 1"
"""Charts."""
NOW = "now"
"""Section of the facts that a moment of a run has, and its summary has not."""
WEIGHTS = {
    "network": "the network's own weights, not their average (--ema)",
    "average": "the average of the weights (--ema), as predictions are",
}
"""What a checkpoint with an average is of, in words."""


class Curve(NamedTuple):
    """The curve of a fact: its tag, the chart of the page CUSTOM SCALARS that it shares with others, and the header of
    its column of the page HPARAMS; "" = none.
    """

    tag: str
    chart: str = ""
    header: str = ""


class Line(NamedTuple):
    """The line of a fact in the closing table: a format of its value, or a function of that and the summary.

    Without a value it is `missing`. "" is left out.
    """

    title: str
    template: str | Callable[[Any, Summary], str]
    missing: str = ""

    def text(self, value: object, values: Summary) -> str:
        """Return what it says of a value and a summary."""
        if value is None:
            return self.missing
        if not isinstance(self.template, str):
            return self.template(value, values)
        return self.template.format(
            value, **(value if isinstance(value, Mapping) else {})
        )


class Fact(NamedTuple):
    """A fact of a run: where it lies in summary.json, and where else it is shown.

    What lies below NOW is of a moment, and has no place in summary.json.
    """

    key: str  # such as "rate.steady"
    about: str  # for docs/rates.md
    curve: Curve | None = None
    line: Line | None = None
    # what it is made of, where it was not measured: what is told at a moment, or a summary
    of: Callable[[Summary], Any] | None = None
    # makes one value of those of the ranks, in rank order; None: rank 0's stands
    over_ranks: Callable[[Sequence[Any]], Any] | None = None
    column: str = ""  # of results.csv

    @property
    def section(self) -> str:
        """Return the first part of its key."""
        return self.key.partition(".")[0]

    def value(self, values: Summary) -> Any:
        """Return its value; None where it is not known."""
        stored = look_up(values, self.key)
        return self.of(values) if stored is None and self.of else stored


# --- what rows are made of --------------------------------------------------------


def bound_of(values: Summary) -> tuple[float | None, str | None]:
    """Return (efficiency, bound) of a rate that is not `short`, and its two ceilings."""
    return bound(
        None if look_up(values, "rate.short") else look_up(values, "rate.steady"),
        look_up(values, "ceiling.compute.rate"),
        look_up(values, "ceiling.loader.rate"),
    )


def shares(rate: float, ceilings: Summary) -> dict[str, float]:
    """Return rate and ceilings as shares of the compute ceiling; {} without ceilings."""
    compute = look_up(ceilings, "compute.rate")
    loader = look_up(ceilings, "loader.rate")
    if not compute or not loader:
        return {}
    return {
        "rate": rate / compute,
        # a loader that is twelve times as fast would flatten the rate in their chart
        "loader_ceiling": min(loader / compute, 1.5),
        "compute_ceiling": 1.0,
        "zero": 0.0,
    }


def _bound(values: Summary) -> str | None:
    """Return the bound; "storage" for a loader that waits for servers while cores are idle."""
    bound = bound_of(values)[1]
    busy = look_up(values, "cpu.utilisation")
    waits = values.get("remote") and busy is not None and busy < IDLE
    return "storage" if waits and bound == "loader" else bound


def _check(values: Summary) -> str | None:
    """Say whether an efficiency can be; None where there is none."""
    if values["efficiency"] is None:
        return None
    failed = too_high(values["efficiency"])
    return "failed: efficiency above 103 %" if failed else "passed"


def _predicted(values: Summary) -> list[dict[str, Any]]:
    # the loader's ceiling is that of the slowest rank
    if slow := values["slowest_rank"]:
        slowest = values[NOW]["ranks"][slow["rank"]]["slowest_rank"]
        values = {**values, "stages": slowest["stages"]}
    return what_if.predictions(values)


def _energy(of_ranks: Sequence[tuple[float | None, ...]]) -> dict[str, float] | None:
    """Return the energy of all ranks' GPUs, of joules, watts and rate; None where they do not count it."""
    joules, watts, rates = zip(*of_ranks, strict=True)
    if None in joules or None in watts or not rates[0]:
        return None
    return {"run_kwh": sum(joules) / 3.6e6, "joules_a_sample": sum(watts) / rates[0]}


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of those that are not None; None of nothing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def clips(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum what the ranks' loaders of clips have done, in `training` and in the last `validation` (Counts).

    `frames` are those of a clip, `rate` is in clips a second.
    """
    frames, rate = of_ranks[0]["frames"], of_ranks[0]["rate"]
    decoded = sum(counts["training"].decoded for counts in of_ranks)
    delivered = sum(counts["training"].delivered for counts in of_ranks)
    result: dict[str, Any] = {
        "frames": frames,
        "frames_per_s": rate and rate * frames,
        "decoded_per_delivered": decoded / delivered if delivered else None,
    }
    for prefix, name in (("", "training"), ("val_", "validation")):
        fallbacks: Counter[str] = Counter()
        refusals: dict[str, str] = {}
        for counts in of_ranks:
            fallbacks += counts[name].fallbacks
            # by sort of file; where several ranks have a reason, the first rank's stands
            refusals = counts[name].refusals | refusals
        result[f"{prefix}fallbacks"] = dict(fallbacks)
        result[f"{prefix}refusals"] = refusals
    return result


def busiest(of_ranks: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return whose GPU others use the most, its `rank`; None where each rank has its own alone."""
    loads = [{"rank": rank, **load} for rank, load in enumerate(of_ranks) if load]
    return max(loads, key=lambda load: load["busy"], default=None)


OF_RANKS: dict[object, str] = {None: "", sum: "sum", mean: "mean"}
"""How values of ranks become one, in the words of docs/rates.md."""

# --- what rows say ----------------------------------------------------------------


def _with_spread(path: str) -> Callable[[float, Summary], str]:
    """Say a rate of the section at `path`, and between which rates of its windows it lies."""

    def rate_text(rate: float, values: Summary) -> str:
        section = look_up(values, path)
        text = f"{number(rate)} {unit_of(values)}"
        spread = section.get("spread")
        if not spread or section.get("short"):
            return text
        low, high = number(spread["min"]), number(spread["max"])
        text += f"   ({low} to {high} in {counted(spread['n'], 'window')})"
        cores = CORES_ALONE.says(section.get("other_cores"), values)
        beside = section.get("shared") or cores
        return f"{text}, beside other programs" if beside else text

    return rate_text


def _stopped(stop: Mapping[str, int], _: Summary) -> str:
    """Say why --patience has ended the run."""
    worse = counted(stop["validations"], "validation")
    best = stop["best_epoch"]
    return f"after epoch {stop['epoch']}: {worse} no better than epoch {best}'s (--patience)"


def spent(part: Mapping[str, Any]) -> str:
    """Say what a run, or a part of it, takes: time, kWh and dollars, as far as they are known."""
    kwh, dollars = part["kwh"], part["dollars"]
    parts = [duration(part["duration_s"])]
    parts += [] if kwh is None else [f"{kwh:.3g} kWh"]
    parts += [] if dollars is None else [f"${number(dollars)} of GPUs"]
    return ", ".join(parts)


def reached(what: Mapping[str, Any], _: Summary) -> str:
    """Say what was reached by --until, and what it took."""
    return f"{what['figure']} after epoch {what['epoch']}, {spent(what)}"


def _without_boxes(count: int, _: Summary) -> str:
    """Say how many images of detection have nothing to learn."""
    if not count:
        return ""
    return f"{counted(count, 'image')} without a box to train on; --keep-empty true takes them"


def _dropped(dropped: int, values: Summary) -> str:
    """Say how many samples were the tails of epochs, too few for a step."""
    if not dropped:
        return ""
    share = dropped / (dropped + values["samples"])
    samples = counted(dropped, "sample")
    return f"{samples} ({share:.2%}), the tails of epochs: less than a step"


def _not_decoded(failed: Sequence[int], _: Summary) -> str:
    return f"{counted(len(failed), 'sample')}, see failed.txt" if failed else ""


def chosen(auto: Mapping[str, Any], values: Summary) -> str:
    """Say what the settings that were `auto` have become, and why."""
    why = {
        "loader": _why_loader(values),
        "graphs": values.get("graphs_off"),
        "precision": "on a GPU" if look_up(values, "hardware.gpu") else "on a CPU",
    }
    parts = []
    for name, value in auto.items():
        value = {True: "on", False: "off"}.get(value, value)
        parts.append(f"{name} {value}" + (f" ({why[name]})" if why[name] else ""))
    return "; ".join(parts)


def _why_loader(values: Summary) -> str:
    """Say why --loader auto has become what it is."""
    auto = values.get("loader_auto") or {}
    if measured := auto.get("measured"):
        before = ", as measured before" if auto.get("how") == "kept" else ""
        return f"fastest of {len(measured)}{before}"
    if auto:
        short = "the training is shorter than measuring them"
        return {"short": short, "checkpoint": "as in the checkpoint"}[auto["how"]]
    alone = len(values.get("loaders", ())) == 1
    return "no other one runs here" if alone else "none is measured to evaluate"


def _binds(binds: Mapping[str, Any], _: Summary) -> str:
    """Say which one stage holds the rate back."""
    wholes = {"loader": "the loader's time", "step": "the step", "pause": "the run"}
    whole = (
        "the steps' time" if binds["stage"] in stages.WAITS else wholes[binds["side"]]
    )
    return f"{binds['stage']}, {binds['share']:.0%} of {whole}"


def _joules(joules: float, values: Summary) -> str:
    item = unit_of(values).removesuffix("/s")
    kwh = values["energy"]["run_kwh"]
    return f"{joules:.3g} J/{item} of the GPUs, {kwh:.3g} kWh in all"


def _duration(seconds: float, values: Summary) -> str:
    """Say how long the run took, and what it has cost."""
    dollars = values.get("dollars")
    return duration(seconds) + (
        "" if dollars is None else f", ${number(dollars)} of GPUs"
    )


def _goodput(share: float, values: Summary) -> str:
    """Say which share of the wall time went to steps that count, and where most of the rest went."""
    rest = {**values["goodput"]["seconds"]}
    steps_s = rest.pop("steps")
    longest = sorted(rest, key=rest.__getitem__, reverse=True)[:3]
    text = ", ".join(f"{name} {duration(rest[name])}" for name in longest)
    return f"{share:.1%} of {duration(steps_s / share)} (the rest: {text})"


def _start(parts: Mapping[str, float], _: Summary) -> str:
    """Say when the first step was over, and what the time before went to."""
    if "first step" not in parts:
        return ""
    longest = sorted(parts, key=parts.__getitem__, reverse=True)[:3]
    text = ", ".join(f"{name} {parts[name]:.1f} s" for name in longest)
    return f"after {sum(parts.values()):.1f} s ({text})"


def _frames(clips: Mapping[str, Any], _: Summary) -> str:
    per = clips.get("decoded_per_delivered")
    decoded = f"   ({per:.2f} decoded for each)" if per else ""
    return f"{number(clips.get('frames_per_s'))} frame/s{decoded}"


def _fallback(others: Mapping[str, int], _: Summary) -> str:
    """Say how many clips another decoder took, by sort of file."""
    most_first = sorted(others.items(), key=lambda one: -one[1])
    sorts = "; ".join(f"{count:,} {sort}" for sort, count in most_first)
    clips = counted(sum(others.values()), "clip")
    return f"{clips} by pyav instead ({sorts})" if others else ""


# --- the table --------------------------------------------------------------------

FACTS = (
    Fact("finished", "whether it came to its end"),
    Fact("ended", "date and time, of the machine's clock"),
    Fact("epochs", "begun, in all parts of the run, as are the next counts"),
    Fact("steps", "of the optimiser"),
    Fact("samples", "trained on"),
    Fact(
        "early_stop", "when --patience ended it", line=Line("stopped early", _stopped)
    ),
    Fact(
        "reached",
        "when a validation had the figure of --until, and what it took until then",
        line=Line("reached", reached),
    ),
    Fact(
        "forecast",
        "what was last said of the whole run's time, kWh and dollars, as `validations` says with theirs",
    ),
    # -- the learning
    Fact(
        "learning.overfits",
        "since when the loss of validation rises",
        line=Line("overfits", learning.rises),
        of=learning.overfits,
    ),
    Fact(
        "learning.fewest",
        "the class with the fewest samples to train on",
        line=Line("few samples", learning.few),
    ),
    Fact(
        "learning.bicubic",
        "PSNR that is no better than that of bicubic interpolation",
        line=Line("no better", learning.BICUBIC),
        of=learning.no_better_than_bicubic,
    ),
    Fact(
        "learning.one_answer",
        "the class that the last validation took all samples for",
        line=Line("one answer", learning.ONE_ANSWER),
    ),
    Fact(
        "without_boxes",
        "images that are not trained on, since they have no box",
        line=Line("no box", _without_boxes),
    ),
    Fact("samples_dropped", "tails of epochs", line=Line("left out", _dropped)),
    Fact("samples_failed", "ids, not decoded", line=Line("not decoded", _not_decoded)),
    Fact("auto", "what it has become", line=Line(CHOSEN, chosen)),
    Fact("best", "the best validation: figure, value, epoch, checkpoint"),
    Fact("evaluated", "the same of a checkpoint that was evaluated"),
    Fact("checkpoint", "what the next commands take"),
    Fact("settings", "as asked for, in config.yaml too"),
    Fact("versions", "of what is installed and can change a figure"),
    Fact("validation", "the task's figures, of the last one; their curves are `val/`"),
    Fact(
        "validation_s",
        "seconds of opening and closing its loader, of its passes, of scoring, and of waiting for scores",
    ),
    Fact("now.train_loss", "mean since the last validation", column="train_loss"),
    Fact("now.loss", "mean; the curves of its terms are `loss/`", Curve("train/loss")),
    Fact("now.lr", "learning rate", Curve("train/lr"), column="lr"),
    Fact("now.grad_norm", "norm of the gradients", Curve("train/grad_norm")),
    Fact("now.loss_scale", "of fp16", Curve("train/loss_scale")),
    Fact(
        "now.skipped_steps",
        "of which the gradients were not finite",
        Curve("train/skipped_steps"),
    ),
    # -- the rate
    Fact(
        "rate.steady",
        "samples a second of all ranks; beside it how it was measured",
        Curve("throughput/samples_per_s", "rate, samples/s", "samples/s"),
        Line("rate", _with_spread("rate"), "-"),
        column="rate",
    ),
    Fact("rate.spread", "of its windows; `each` are their rates"),
    Fact(
        "now.per_gpu",
        "that by the number of ranks",
        Curve("throughput/per_gpu", header="samples/s a GPU"),
    ),
    Fact(
        "ceiling.compute.rate",
        "the step alone",
        Curve("throughput/compute_ceiling", header="compute ceiling, samples/s"),
        Line("compute ceiling", _with_spread("ceiling.compute"), "-"),
    ),
    Fact(
        "ceiling.loader.rate",
        "the loader alone",
        Curve("throughput/loader_ceiling", header="loader ceiling, samples/s"),
        Line("loader ceiling", _with_spread("ceiling.loader"), "-"),
    ),
    Fact(
        "efficiency",
        "the rate as a share of the lower ceiling",
        Curve("throughput/efficiency", EFFICIENCY, EFFICIENCY),
        Line("efficiency", "{:.1%} of the lower ceiling", "-"),
        of=lambda values: bound_of(values)[0],
    ),
    Fact("now.share.rate", "of the compute ceiling", Curve("share/rate", SHARES)),
    Fact("now.share.compute_ceiling", "is 1", Curve("share/compute_ceiling", SHARES)),
    Fact("now.share.loader_ceiling", "of that", Curve("share/loader_ceiling", SHARES)),
    Fact("now.share.zero", "is 0", Curve("share/zero", SHARES)),
    Fact("now.mib_per_s", "that rank 0 has read", Curve("io/mib_per_s")),
    Fact("bound", "what limits the rate", None, Line("bound by", "{}", "-"), _bound),
    Fact("check", "whether the efficiency can be", of=_check),
    # -- a step, a loader, a machine
    Fact(
        "data_wait",
        "mean wait for a batch, and its share of the time",
        line=Line("data wait", "{ms:.2f} ms a step, {share:.1%} of the time", "-"),
    ),
    Fact("step_ms", "median and 99th percentile; of a long run early and late"),
    *(
        Fact(
            f"split_ms.{phase}",
            "of a step",
            Curve(
                f"time/{phase}_ms",
                "one step, ms",
                "data wait, ms" if phase == "data_wait" else "",
            ),
        )
        for phase in PHASES
    ),
    *(
        Fact(
            f"stages.{name}.share",
            "of the workers' or the thread's time",
            Curve(f"stage/{name}", "stages of the loader"),
        )
        for name in stages.NAMES
    ),
    Fact(
        "binds",
        "the stage that holds the rate back, and its share of the time",
        line=Line("stage that binds", _binds),
        of=stages.binds,
    ),
    Fact(
        "slowest_rank",
        "the one that the others wait for, and why",
        line=Line("slowest rank", "rank {rank}, by its {why}"),
        over_ranks=stages.slowest,
    ),
    Fact("pauses", "seconds in which nothing was trained, by what for"),
    Fact(
        "gpu.utilisation",
        "share of the time",
        Curve("gpu/utilisation", "utilisation", "GPU busy, 0 to 1"),
        over_ranks=mean,
    ),
    Fact("gpu.power_w", "", Curve("gpu/power_w", "power, W"), over_ranks=mean),
    Fact(
        "gpu.sm_mhz",
        "of a busy GPU",
        Curve("gpu/sm_mhz", "SM clock, MHz"),
        over_ranks=mean,
    ),
    Fact("gpu.throttled", "share of readings", over_ranks=mean),
    Fact(
        GPU_ALONE.key,
        "who else was at work on it, before the ceilings",
        line=Line("GPU shared", GPU_ALONE.line),
        over_ranks=busiest,
    ),
    Fact("cpu.utilisation", "share of the cores that this process may use"),
    Fact("cpu.steal", "share of the time that the host gave to other machines"),
    Fact(
        CORES_ALONE.key,
        "cores that other programs have taken",
        line=Line("cores shared", CORES_ALONE.line),
    ),
    Fact(
        BASELINE.key,
        "share of the training images that are progressive JPEGs",
        line=Line("files", BASELINE.line),
    ),
    Fact(
        SMALLER.key,
        "share of the training images' pixels beyond a longer side of 640",
        line=Line("photographs", SMALLER.line),
    ),
    Fact(
        LIKE_OTHERS.key,
        "those of ten times the median's pixels: share of files and pixels",
        line=Line("large files", LIKE_OTHERS.line),
    ),
    Fact(
        "energy",
        "of all GPUs; `run_kwh` of all parts of the run, as `duration_s`",
        over_ranks=_energy,
    ),
    Fact(
        "energy.joules_a_sample",
        "power by rate",
        Curve("energy/joules_a_sample", "energy, J/sample", "J/sample"),
        Line("energy", _joules),
    ),
    Fact("memory.allocated_gib", "by torch", Curve("memory/allocated_gib", "GiB")),
    Fact("memory.reserved_gib", "by torch", Curve("memory/reserved_gib", "GiB")),
    Fact(
        "memory.device_gib",
        "of everything on the device",
        Curve("memory/device_gib", "GiB", "GPU memory, GiB"),
    ),
    Fact(
        "memory.host_gib",
        "of the run's processes",
        Curve("memory/host_gib", "GiB", "host memory, GiB"),
        over_ranks=sum,
    ),
    Fact(
        "duration_s",
        "seconds, of all attempts to run",
        line=Line("duration", _duration),
    ),
    Fact(
        "goodput.share",
        "of the wall time since the run first began, over all attempts, in which steps were made that count",
        line=Line("goodput", _goodput),
    ),
    Fact("goodput.seconds", "of that time, by what they were spent for"),
    Fact("dollars", "of all GPUs in that time (--gpu-price)"),
    Fact("start_s", "until the first step, by parts", line=Line("first step", _start)),
    Fact(
        "clips",
        "frames, and what other decoders took (--task video)",
        line=Line("frames", _frames),
        over_ranks=clips,
    ),
    Fact("clips.fallbacks", "clips by sort of file", line=Line("fallback", _fallback)),
    Fact("detection", "boxes and padding (--task detection)"),
    Fact(
        "what_if",
        "rates that are predicted, the largest gain first",
        line=Line("what if", what_if.sentence),
        of=_predicted,
    ),
)
"""The facts of a run, in the order of curves and of the closing table."""
CURVES = [fact.curve for fact in FACTS if fact.curve]


def at(values: Summary) -> dict[str, tuple[str, Any]]:
    """Return what is known at a moment, told in the form of a summary, of facts with a curve: key -> (tag, value)."""
    known = {}
    for fact in FACTS:
        if fact.curve and (value := fact.value(values)) is not None:
            known[fact.key] = fact.curve.tag, value
    return known


def of_run(own: dict[str, Any], world: World) -> dict[str, Any]:
    """Return `own`, what this rank has measured in the form of a summary, with the facts that are made of it, or of
    what all ranks have. Every rank calls it.
    """
    combined = {
        fact: fact.over_ranks
        for fact in FACTS
        if fact.over_ranks and (fact.of or fact.section in own)
    }
    ranks = world.gather({fact.key: fact.value(own) for fact in combined})
    for fact, combine in combined.items():
        _put(own, fact, combine([one[fact.key] for one in ranks]))
    own.setdefault(NOW, {})["ranks"] = ranks
    for fact in FACTS:
        if fact.of and not fact.over_ranks:
            _put(own, fact, fact.of(own))
    del own[NOW]
    return own


def _put(values: dict[str, Any], fact: Fact, value: object) -> None:
    """Write what `look_up` finds at a fact's key."""
    *path, name = fact.key.split(".")
    for part in path:
        values = values.setdefault(part, {})
    values[name] = value


def rows(values: Summary, task: Reported) -> list[tuple[str, str]]:
    """Return (name, value) lines of the closing table; '-' for what was not measured.

    Where nothing was trained, so that there is no rate, they are the validation's alone.
    """
    validation = values.get("validation") or {}
    titled = [figure for figure in task.figures if figure.title]
    average = {
        name.removeprefix(EMA): value
        for name, value in validation.items()
        if name.startswith(EMA)
    }
    weights = look_up(values, "evaluated.of")
    lines = [_validated(titled, validation, "network" if average else "")]
    if average:
        lines.append(_validated(titled, average, "average"))
        if weights == "average":
            lines.reverse()
        if weights:
            lines.append(("checkpoint is of", WEIGHTS[weights]))
    # `samples` of a summary are the whole run's, an evaluation's those that its network was trained on
    if look_up(values, "rate.steady") is None and "samples" in validation:
        lines.append((CHOSEN, chosen(values.get("auto") or {}, values)))
        return [line for line in lines if line[1]]
    if best := values.get("best"):
        after = f" after epoch {best['epoch']}" if best.get("epoch") else ""
        after += f", of the {best['of']}" if best.get("of") else ""
        value = metric(titled[0], best["value"])
        lines.append(("best", f"{value}{after}: {best['checkpoint']}"))
    for fact in FACTS:
        if fact.line:
            value = look_up(values, fact.key)
            lines.append((fact.line.title, fact.line.text(value, values)))
    lines.append(("change first", advice(values)))
    return [line for line in lines if line[1]]


def _validated(
    titled: Sequence[Figure], validation: Summary, weights: str
) -> tuple[str, str]:
    """Return the line of a pass over the validation set, with --ema `weights` the network or the average."""
    (name, value), *others = [
        (figure.title, metric(figure, validation[figure.name]))
        for figure in titled
        if figure.name in validation
    ] or [(titled[0].title, "-")]
    if others:
        value += f"   ({'   '.join(f'{name} {value}' for name, value in others)})"
    if "samples" in validation:
        value += f"   of {counted(validation['samples'], 'sample')}"
    return f"{name} of {weights}" if weights else name, value


def table() -> Iterator[str]:
    """Yield the lines of the table of docs/rates.md."""
    yield "| key of summary.json | what it is | of ranks | curve | HPARAMS | closing table | results.csv |"
    yield f"|{' --- |' * 7}"
    for fact in FACTS:
        key = "" if fact.section == NOW else f"`{fact.key}`"
        ranks = OF_RANKS.get(fact.over_ranks, "all")
        tag, _, header = fact.curve or Curve("")
        line = fact.line.title if fact.line else ""
        yield f"| {key} | {fact.about} | {ranks} | {tag and f'`{tag}`'} | {header} | {line} | {fact.column} |"
