"""What the figures of `saturate why` mean: they become a summary as our own runs have one, so that the same tables say
what binds, and what a change is worth. Pure.
"""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from saturate.contracts import counted
from saturate.report import meter, stages, what_if
from saturate.report.advice import NEIGHBOURS, WORTH, Summary, first_of
from saturate.report.facts import FACTS, busiest

PHASES = {"own": "rate", "replay": "compute", "drain": "loader"}
"""Phase of why/phases.py -> the figure that it gives."""
ALIKE = 1.02
"""Times the rate of fewer workers that more of them have to give."""
CROWDED = 2
"""Workers for a core from which on they hinder each other, where they compute."""
IDLE_EPOCHS = 0.02
"""Share of the time between epochs from which on it is worth a line."""
OF_THE_STEP = ("kernel_ms", "arithmetic_ms", "convolutions")
"""What is measured of a step on a GPU."""
WIDTH = 80
NO_STEP = "batches: no step of an optimiser was seen"

WORDS = {
    "workers": "num_workers={}",
    "compile": "torch.compile(model)",
    "batch_size": "batches of {}, another recipe",
}
"""Settings of ours, in the words of PyTorch."""

Rank = Mapping[str, Any]
"""What a rank has measured (why/phases.py)."""


def of(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return the summary of a program of which these are the ranks: keys as in summary.json, and `windows`, the
    rates of each phase, samples a second of all ranks.
    """
    first = ranks[0]
    rates = {figure: _rates(ranks, phase) for phase, figure in PHASES.items()}
    own = _added(ranks, "own")
    active_s, batches = _active_s(own), own["batches"]
    replay = _added(ranks, "replay")
    loader, settings = first["loader"], first["settings"]
    of_ranks = [_of_rank(rank) for rank in ranks]
    slow = stages.slowest(of_ranks)
    # the others wait for it, so that its loader is the one to change
    last = slow["rank"] if slow else 0
    others = {
        "shared": busiest([rank.get("shared") for rank in ranks]),
        "other_cores": first.get("other_cores"),
    }
    compute = {
        "step_ms": 1e3 * _active_s(replay) / replay["batches"],
        **{name: first[name] for name in OF_THE_STEP if name in first},
    }
    values: dict[str, Any] = {
        "loader": loader["kind"],
        "workers": loader.get("num_workers"),
        "takes_turns": loader.get("num_workers") == 0,
        "batch_size": round(own["samples"] / batches),
        "world_size": len(ranks),
        "cores_a_rank": settings["cores"] / len(ranks),
        "compile": settings["compiled"],
        "one_shape": True,
        "hardware": {"gpu": settings["gpu"], "cores": settings["cores"]},
        "versions": {name: settings[name] for name in ("torch", "python")},
        "settings": {**loader, **settings, "pinned": first.get("pinned")},
        "windows": rates,
        "rate": {**_figure(rates["rate"], "steady"), "active_s": active_s / len(ranks)},
        "ceiling": {
            "compute": _figure(rates["compute"], "rate") | compute | others,
            "loader": _figure(rates["loader"], "rate") | others,
        },
        "gpu": {"shared": others["shared"]},
        "cpu": {
            "others": others["other_cores"],
            # each rank has seen the whole tree
            "utilisation": (
                statistics.mean(one["cores"] for one in first["windows"]["own"])
                + (others["other_cores"] or 0.0)
            )
            / settings["cores"],
        },
        "data_wait": {
            "ms": 1e3 * own["wait"] / batches,
            "share": own["wait"] / active_s,
        },
        "step_ms": {"p50": 1e3 * active_s / batches},
        "split_ms": first["split_ms"],
        "stages": of_ranks[last]["stages"],
        "steps": {
            "transforms": _within(ranks[last], "transform"),
            "decode": _within(ranks[last], "decode"),
        },
        "decoders": first["decoders"],
        "slowest_rank": slow,
        # of each rank
        "pauses": {
            "validation": own["pause"] / len(ranks),
            "epochs": own["gap"] / len(ranks),
        },
        "idle_epochs": own["gap"] / own["seconds"],
        "syncs": first.get("syncs", {}),
        "counts_batches": first["counts_batches"],
    }
    _judge(values, ranks)
    return values


def _judge(values: dict[str, Any], ranks: Sequence[Rank]) -> None:
    """Say what binds, and what changes are worth."""
    rate, rates = values["rate"]["steady"], values["windows"]
    for name in ("compute", "loader"):
        # no ceiling is below a rate whose windows reach down to its own, another program aside, and a loader fills
        # its queue in a validation
        reaches = min(rates["rate"]) <= (1 + WORTH) * max(rates[name])
        if reaches or (name == "loader" and _of_validation(values) > WORTH):
            rate = min(rate, values["ceiling"][name]["rate"])
    values["efficiency"], values["bound"] = meter.bound(
        rate,
        values["ceiling"]["compute"]["rate"],
        values["ceiling"]["loader"]["rate"],
    )
    values["binds"] = stages.binds(values)
    held = {**values, "rate": {**values["rate"], "steady": rate}}
    values["what_if"] = sorted(_changes(held, ranks), key=lambda one: -one["gain"])


def _added(ranks: Sequence[Rank], phase: str) -> dict[str, float]:
    """Return the sums over all windows of a phase."""
    windows = [window for rank in ranks for window in rank["windows"][phase]]
    return {name: sum(one[name] for one in windows) for name in windows[0]}


def _rates(ranks: Sequence[Rank], phase: str) -> list[float]:
    """Return samples a second of all ranks, of the windows that they had together. Ranks that drain do not wait for
    each other, as they would in a step.
    """
    rates = []
    for number, _ in enumerate(ranks[0]["windows"][phase]):
        each = [_rate(rank, phase, rank["windows"][phase][number]) for rank in ranks]
        drained = phase in ("drain", "kept")
        rates.append(len(each) * min(each) if drained else sum(each))
    return rates


def _rate(rank: Rank, phase: str, window: Mapping[str, float]) -> float:
    """Return samples a second of a window, its validation apart, and with the time that epochs take to begin."""
    if phase == "own":
        return window["samples"] / (_active_s(window) + window["gap"])
    if window.get("whole"):
        return window["whole"] / window["whole_s"]
    rate = window["samples"] / _active_s(window)
    length, gap_s = rank["epoch"]["batches"], rank["epoch"]["gap_s"]
    # where the rate has no end of an epoch in it, the ceiling beside it has none, either
    has_ends = any(one["gap"] for one in rank["windows"]["own"])
    if phase == "replay" or not length or not has_ends:
        return rate
    # each worker's first batch is made while the epoch begins
    left = max(length - max(rank["loader"].get("num_workers") or 0, 1), 0)
    batch = window["samples"] / window["batches"]
    return float(length * batch / (gap_s + left * batch / rate))


def _active_s(window: Mapping[str, float]) -> float:
    """Return the seconds in which something was trained."""
    return window["seconds"] - window["pause"] - window["gap"]


def _figure(rates: list[float], name: str) -> dict[str, Any]:
    return {
        name: statistics.median(rates),
        "spread": meter.spread(rates),
        "unit": "samples/s",
    }


def _of_rank(rank: Rank) -> dict[str, Any]:
    """Return what report/stages.py wants to know of a rank."""
    own = _added([rank], "own")
    share = own["wait"] / (own["seconds"] - own["pause"])
    return {
        "data_wait": 1e3 * own["wait"] / own["batches"],
        "forward": rank["split_ms"].get("forward"),
        "stages": _stages(rank, share),
    }


def _stages(rank: Rank, wait: float) -> dict[str, dict[str, float]]:
    """Return the stages of a rank's workers, as shares of their time and ms a sample, and what its waits for data,
    this share of its time, were for: `workers`, or taking from the `queue` what they have made.
    """
    drains = rank["windows"]["drain"]
    made = sum(rank["stages"][phase]["batches"] for phase in ("own", "drain"))
    samples = made * drains[0]["samples"] / max(drains[0]["batches"], 1)
    wall, cpu = _busy(rank, "wall"), _busy(rank, "cpu")
    everything = sum(wall.values())
    if not samples or not everything:
        return {}
    found: dict[str, dict[str, float]] = {}
    for part, taken in wall.items():
        name = part.partition(" ")[0].replace("transform", "transforms")
        stage = found.setdefault(name, {"share": 0.0, "ms": 0.0, "cpu_ms": 0.0})
        stage["share"] += taken / everything
        stage["ms"] += 1e-6 * taken / samples
        stage["cpu_ms"] += 1e-6 * cpu[part] / samples
    # what taking a batch costs that lies ready; the rest of a wait is for the workers to make it
    queue_s = statistics.median(window["queue"] for window in drains)
    own = _added([rank], "own")
    queue = min(own["batches"] * queue_s / own["seconds"], wait)
    nothing = {"ms": 0.0, "cpu_ms": 0.0}
    found["workers"] = {"share": wait - queue, **nothing}
    found["queue"] = {"share": queue, **nothing}
    return found


def _busy(rank: Rank, kind: str) -> Counter[str]:
    """Return nanoseconds of what workers were busy with, `wall` or `cpu`, while they were asked for batches."""
    added: Counter[str] = Counter()
    for phase in ("own", "drain"):
        added.update(rank["stages"][phase][kind])
    return added


def _within(rank: Rank, stage: str) -> dict[str, float]:
    """Return the share of the workers' time that each part of a stage has, the largest first."""
    wall = _busy(rank, "wall")
    everything = sum(wall.values())
    return {
        name.removeprefix(f"{stage} "): taken / everything
        for name, taken in wall.most_common()
        if name.startswith(f"{stage} ")
    }


# --- what changes are worth ---------------------------------------------------------------------------------------


def _changes(values: Summary, ranks: Sequence[Rank]) -> Iterator[dict[str, Any]]:
    """Yield what is predicted of each change, as report/what_if.py does, in the words of PyTorch."""
    workers = 0.0  # the rate of the fewest that are told
    for one in sorted(
        what_if.predictions(values), key=lambda one: one["settings"].get("workers", 0)
    ):
        if "GPUs for" in one["what"] or "--transforms" in one["what"]:
            continue  # asked is what to change in the program, and one transform at a time
        if "workers" in one["settings"]:
            if one["rate"] < ALIKE * workers:
                continue  # more of them give nothing
            workers = one["rate"]
        said = [WORDS[name].format(value) for name, value in one["settings"].items()]
        yield {**one, "what": " ".join(said) or one["what"].removeprefix("--")}
    model = what_if.model_of(values)
    if model is None:
        return
    rank = ranks[0]
    if slow := values["slowest_rank"]:
        others = [
            statistics.median(_rates([one], "drain"))
            for number, one in enumerate(ranks)
            if number != slow["rank"]
        ]
        after = replace(model, loader=len(ranks) * statistics.median(others))
        what = f"rank {slow['rank']} as fast as the others"
        yield what_if.predicted(model, what_if.Change(what, {}, after))
    for name, share in [*values["steps"]["transforms"].items()][:1]:
        after = model.spared(
            "transforms", share / values["stages"]["transforms"]["share"]
        )
        yield what_if.predicted(model, what_if.Change(f"without {name}", {}, after))
    theirs = next(iter(values["steps"]["decode"]), "")
    for name, ms in values["decoders"].items():
        spared = 1 - ms / values["decoders"].get(theirs, ms)
        if spared > 0:
            after = model.spared("decode", spared)
            what = f"decoding by {name}"
            yield what_if.predicted(model, what_if.Change(what, {}, after))
    kept = all("kept" in rank["windows"] for rank in ranks)
    if kept and values["idle_epochs"] > IDLE_EPOCHS:
        after = replace(model, loader=statistics.median(_rates(ranks, "kept")))
        what = "one DataLoader with persistent_workers=True"
        yield what_if.predicted(model, what_if.Change(what, {}, after))
    copy_ms = rank.get("transfer_ms")
    if copy_ms and not rank["pinned"]:
        step_ms = values["ceiling"]["compute"]["step_ms"]
        # at most the copy runs beside the step, and at least half of it
        fully, half = (
            replace(model, compute=model.compute * step_ms / (step_ms - saved))
            for saved in (copy_ms, copy_ms / 2)
        )
        what = "pin_memory=True with .to(device, non_blocking=True)"
        yield what_if.predicted(model, what_if.Change(what, {}, fully, half, fully))


def _unknown(values: Summary) -> list[str]:
    """Return what could make the step faster, and was not measured."""
    settings = values["settings"]
    on_gpu = settings["gpu"] is not None
    in_fp32 = settings["dtypes"] == ["torch.float32"] and not settings["autocast"]
    can = {
        "torch.autocast": on_gpu and in_fp32,
        "channels_last": on_gpu
        and settings["has_convolutions"]
        and not settings["channels_last"],
        "torch.compile": not settings["compiled"]
        and "kernel_ms" not in values["ceiling"]["compute"],
        "an optimiser with fused=True": on_gpu and not settings["fused"],
        "non_blocking=True": settings["pinned"] and values["syncs"],
        "a larger prefetch_factor": values["workers"]
        and values["bound"] == "contention",
    }
    return [name for name, is_left in can.items() if is_left]


def _changes_recipe(change: Mapping[str, Any]) -> bool:
    return change["what"].startswith("without ") or "batch_size" in change["settings"]


def _of_validation(values: Summary) -> float:
    """Return the share of the time that is not trained in for a validation's sake."""
    whole_s = values["rate"]["active_s"] + sum(values["pauses"].values())
    return float(values["pauses"]["validation"] / whole_s)


def _is_crowded(values: Summary) -> bool:
    """Return whether the loader has more workers than its cores can run, and waits for these."""
    cores = values["settings"]["cores"]
    crowded = (values["workers"] or 0) > CROWDED * cores
    return crowded and values["bound"] != "compute" and not _more_workers(values)


def _more_workers(values: Summary) -> bool:
    return any(
        "workers" in one["settings"] and one["gain"] > WORTH
        for one in values["what_if"]
    )


def _first(values: Summary) -> str:
    """Say what to change first."""
    if said := first_of(NEIGHBOURS, values):
        return said
    worth = [one for one in values["what_if"] if one["gain"] > WORTH]
    pause = _of_validation(values)
    if pause / (1 - pause) > max([WORTH, *(one["gain"] for one in worth)]):
        return f"validate less often: it takes {pause:.0%} of the time"
    if values["efficiency"] and values["bound"] is None:
        return "measure again: the rate is above its own ceiling, so another program was busy meanwhile"
    if _is_crowded(values):
        return f"num_workers={values['settings']['cores']:.0f}: {values['workers']} hinder each other (not measured)"
    # one that changes the recipe behind the best of the others
    told = [one for one in worth if not _changes_recipe(one)][:1]
    told += [one for one in worth[:1] if one not in told]
    if told:
        return "; ".join(
            f"{one['what']}: {one['rate']:,.4g} samples/s are predicted, {one['gain']:+.0%}"
            for one in told
        )
    binds = values["binds"] or {}
    unknown = _unknown(values)
    more = f": {', '.join(unknown)} (not measured)" if unknown else ""
    if binds.get("side") == "step":
        return f"the step, which has its data; most of it is {binds['stage']}{more}"
    if binds.get("stage") == "queue":
        return "pin_memory=True: its thread takes the batches from the workers beside the step (not measured)"
    if values["bound"] == "loader":
        return f"the loader: smaller or fewer files to decode, fewer transforms, or more cores{more}"
    return f"loader and step hinder each other, or other programs take these cores: more cores{more}"


def lines(values: Summary) -> list[str]:
    """Return the table: rows of our own closing table, and what is told of a program that is not ours."""
    rows = [
        (fact.line.title, fact.line.text(value, values))
        for fact in FACTS
        if fact.line and (value := fact.value(values)) is not None
    ]
    shares = {
        name: stage["share"]
        for name, stage in values["stages"].items()
        if name in stages.OF_WORKERS
    }
    told = sorted(shares, key=shares.__getitem__, reverse=True)[:4]
    workers = [f"{name} {shares[name]:.0%}{_most(values, name)}" for name in told]
    waits = [f"{place} {count} x" for place, count in values["syncs"].items()]
    unknown = _unknown(values)
    rows += [
        ("workers", ", ".join(workers)),
        ("between epochs", _share(values["idle_epochs"])),
        ("validation", _share(_of_validation(values))),
        ("waits for GPU", ", ".join(waits) and f"{', '.join(waits)} a step"),
        ("not measured", ", ".join(unknown)),
        ("not kept", _undone(values["undone"])),
        ("counted", NO_STEP if values["counts_batches"] else ""),
        ("change first", _first(values)),
    ]
    heading = f"saturate why | {values['loader']} | torch {values['versions']['torch']}"
    table = [heading, "-" * WIDTH]
    for title, text in rows:
        for index, line in enumerate(textwrap.wrap(text, WIDTH - 18)):
            table.append(f"{'' if index else title:<16}  {line}")
    return [*table, "-" * WIDTH]


def _most(values: Summary, stage: str) -> str:
    """Say which part of a stage takes the most."""
    parts = values["steps"].get(stage) or {"": 0.0}
    name, share = next(iter(parts.items()))
    if len(parts) > 1:
        name = f"{name} {share:.0%}"
    return name and f" ({name})"


def _share(share: float) -> str:
    return f"{share:.1%} of the time" if share > IDLE_EPOCHS else ""


def _undone(count: int) -> str:
    if not count:
        return ""
    files = counted(count, "file")
    return f"{files} that it saved after its step was given batches again; those of before are back"
