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

from saturate.contracts import RateWindow, counted
from saturate.report import meter, stages, what_if
from saturate.report.advice import NEIGHBOURS, WORTH, Summary, first_of
from saturate.report.facts import FACTS, bound_of, busiest
from saturate.why import undo

MORE_WORKERS_GIVE = 1.02
"""More workers are told where they give so many times the rate of fewer."""
WORKERS_OF_A_CORE = 2
"""Beyond so many workers for each core they hinder each other, where they compute."""
IDLE_EPOCHS = 0.02
"""Share of the time between epochs from which on it is worth a line."""
WIDTH = 80
NO_STEP = "batches: no step of an optimiser was seen"
UNDONE = (
    "that it saved after its step was given batches again; those of before are back"
)
GUESS = "{} samples, the length of its first tensor; --samples N if that is wrong"

WORDS = {
    "workers": "num_workers={}",
    "compile": "torch.compile(model)",
    "batch_size": "batches of {}, another recipe",
}
"""Settings of ours, in the words of PyTorch."""

Rank = Mapping[str, Any]
"""What a rank has measured (why/phases.py)."""


def summary(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return the summary of a program of which these are the ranks: keys as in summary.json."""
    first = ranks[0]
    own, replay = _added(ranks, "own"), _added(ranks, "replay")
    active_s = _active_s(own)
    loader, settings, cores = (
        first["loader"],
        first["settings"],
        first["hardware"]["cores"],
    )
    of_ranks = [_of_rank(rank) for rank in ranks]
    slow = stages.slowest(of_ranks)
    # the others wait for it, so that its loader is the one to change
    last = slow["rank"] if slow else 0
    wall = Counter(ranks[last]["busy"]["wall"])
    steps: dict[str, dict[str, float]] = {"transforms": {}, "decode": {}}
    for part, taken in wall.most_common():
        stage, _, name = part.partition(" ")
        if name:
            steps[stage][name] = taken / wall.total()
    shared = busiest([rank.get("shared") for rank in ranks])
    others = first.get("other_cores")
    # each rank has seen the whole tree
    used = statistics.mean(one["cores"] for one in first["windows"]["own"])
    values: dict[str, Any] = {
        "loader": loader["kind"],
        "workers": loader.get("num_workers"),
        "takes_turns": loader.get("num_workers") == 0,
        "batch_size": round(own["samples"] / own["batches"]),
        "world_size": len(ranks),
        "cores_a_rank": cores / len(ranks),
        "compile": settings["compiled"],
        "one_shape": True,
        "hardware": first["hardware"],
        "versions": first["versions"],
        "settings": {**loader, **settings, "pinned": first.get("pinned")},
        "rate": {
            **_figure("steady", _rates(ranks, "own")),
            "active_s": active_s / len(ranks),
        },
        "ceiling": {
            name: {
                **_figure("rate", _rates(ranks, phase)),
                "shared": shared,
                "other_cores": others,
            }
            for name, phase in (("compute", "replay"), ("loader", "drain"))
        },
        "gpu": {"shared": shared},
        "cpu": {
            "others": others,
            "utilisation": (used + (others or 0.0)) / cores,
            "threads": sum(rank["threads"] for rank in ranks),
        },
        "is_guess": first["is_guess"],
        "data_wait": {
            "ms": 1e3 * own["wait"] / own["batches"],
            "share": own["wait"] / active_s,
        },
        "step_ms": {"p50": 1e3 * active_s / own["batches"]},
        "split_ms": first["split_ms"],
        "stages": of_ranks[last]["stages"],
        "steps": steps,
        "decoders": first["decoders"],
        "slowest_rank": slow,
        # of each rank
        "pauses": {
            "validation": own["pause"] / len(ranks),
            "epochs": own["gap"] / len(ranks),
        },
        "idle_epochs": own["gap"] / own["seconds"],
        "syncs": first.get("syncs", {}),
        # no step in a whole window: its updates are made by hand, or inside of a graph
        "counts_batches": not first["windows"]["own"][0]["steps"],
    }
    values["ceiling"]["compute"] |= first.get("kernels", {}) | {
        "step_ms": 1e3 * _active_s(replay) / replay["batches"]
    }
    _judge(values, ranks)
    return values


def _judge(values: dict[str, Any], ranks: Sequence[Rank]) -> None:
    """Say what binds, and what changes are worth."""
    # how many times as fast the step was with a change, on the rank that gains the least
    values["gains"] = {
        name: min((rank["gains"][name] for rank in ranks), key=statistics.median)
        for name in ranks[0].get("gains", {})
    }
    rate = values["rate"]["steady"]
    for name, ceiling in values["ceiling"].items():
        # no ceiling is below a rate whose windows reach down to its own, another program aside, and a loader fills
        # its queue in a validation
        most = (1 + WORTH) * ceiling["spread"]["max"]
        reaches = values["rate"]["spread"]["min"] <= most
        if reaches or (name == "loader" and _of_validation(values) > WORTH):
            rate = min(rate, ceiling["rate"])
    held = {**values, "rate": {**values["rate"], "steady": rate}}
    values["efficiency"], values["bound"] = bound_of(held)
    values["binds"] = stages.binds(values)
    changes = [*_settings(held)]
    if model := what_if.model_of(held):
        changes += [
            what_if.predicted(model, what_if.Change(what, {}, *limits))
            for what, *limits in _changes(model, held, ranks)
        ]
    values["what_if"] = sorted(changes, key=lambda one: -one["gain"])


def _added(ranks: Sequence[Rank], phase: str) -> Counter[str]:
    """Return the sums over all windows of a phase."""
    added: Counter[str] = Counter()
    for rank in ranks:
        for window in rank["windows"][phase]:
            added.update(window)
    return added


def _rates(ranks: Sequence[Rank], phase: str) -> list[float]:
    """Return samples a second of all ranks, of the windows that they had together. Ranks that drain do not wait for
    each other, as they would in a step.
    """
    together = zip(
        *(
            [_rate(rank, phase, one) for one in rank["windows"][phase]]
            for rank in ranks
        ),
        strict=True,
    )
    if phase in ("own", "replay"):
        return [*map(sum, together)]
    return [len(ranks) * min(rates) for rates in together]


def _rate(rank: Rank, phase: str, window: Mapping[str, float]) -> float:
    """Return samples a second of a window, its validation apart, and with the time that epochs take to begin."""
    if phase == "own":
        return window["samples"] / (window["seconds"] - window["pause"])
    if window["epochs"]:
        return window["epochs"] / window["epochs_s"]
    rate = window["samples"] / _active_s(window)
    length, gap_s = rank["epoch"]["batches"], rank["epoch"]["gap_s"]
    # where the rate has no end of an epoch in it, the ceiling beside it has none, either
    if phase == "replay" or not length or not _added([rank], "own")["gap"]:
        return rate
    # each worker's first batch is made while the epoch begins
    left = max(length - max(rank["loader"].get("num_workers", 0), 1), 0)
    batch = window["samples"] / window["batches"]
    return float(length * batch / (gap_s + left * batch / rate))


def _active_s(window: Mapping[str, float]) -> float:
    """Return the seconds in which something was trained."""
    return window["seconds"] - window["pause"] - window["gap"]


def _figure(name: str, rates: list[float]) -> dict[str, Any]:
    return {
        name: statistics.median(rates),
        "spread": meter.spread(rates),
        "unit": "samples/s",
    }


def _of_rank(rank: Rank) -> dict[str, Any]:
    """Return what report/stages.py wants to know of a rank: `stages` are shares of the workers' time and ms a sample,
    and what its waits for data were for: `workers`, or taking from the `queue` what they have made.
    """
    own, drained = _added([rank], "own"), _added([rank], "drain")
    busy = rank["busy"]
    samples = busy["batches"] * drained["samples"] / max(drained["batches"], 1)
    spent_s: dict[str, tuple[float, float]] = {}
    for part, wall in busy["wall"].items():
        of_part = 1e-9 * wall, 1e-9 * busy["cpu"].get(part, 0)
        spent_s |= meter.added(spent_s, {part.partition(" ")[0]: of_part}, {})
    workers_s = 1e-9 * sum(busy["wall"].values())
    window = RateWindow(samples, samples, workers_s, 0, spent_s)
    if shares := stages.of_windows([window], 1):
        # what taking a batch costs that lies ready; the rest of a wait is for the workers to make it
        queue_s = statistics.median(one["queue"] for one in rank["windows"]["drain"])
        wait = own["wait"] / (own["seconds"] - own["pause"])
        queue = min(own["batches"] * queue_s / own["seconds"], wait)
        for name, share in (("workers", wait - queue), ("queue", queue)):
            shares[name] = {"share": share, "ms": 0.0, "cpu_ms": 0.0}
    return {
        "data_wait": 1e3 * own["wait"] / own["batches"],
        "forward": rank["split_ms"].get("forward"),
        "stages": shares,
    }


# --- what changes are worth ---------------------------------------------------------------------------------------


def _settings(values: Summary) -> Iterator[dict[str, Any]]:
    """Yield those predictions of report/what_if.py that a program can make, in the words of PyTorch."""
    workers = 0.0  # the rate of the fewest that are told
    for one in sorted(
        what_if.predictions(values), key=lambda one: one["settings"].get("workers", 0)
    ):
        if "GPUs for" in one["what"] or "--transforms" in one["what"]:
            continue  # asked is what to change in the program, and one transform at a time
        if "workers" in one["settings"]:
            if one["rate"] < MORE_WORKERS_GIVE * workers:
                continue  # more of them give nothing
            workers = one["rate"]
        flags = [WORDS[name].format(value) for name, value in one["settings"].items()]
        yield {**one, "what": " ".join(flags) or one["what"].removeprefix("--")}


def _changes(
    model: what_if.Model, values: Summary, ranks: Sequence[Rank]
) -> Iterator[tuple[Any, ...]]:
    """Yield each change that our own runs do not know, and the limits after it, as what_if.Change has them."""
    if slow := values["slowest_rank"]:
        others = [rank for number, rank in enumerate(ranks) if number != slow["rank"]]
        each = [statistics.median(_rates([rank], "drain")) for rank in others]
        after = replace(model, loader=len(ranks) * statistics.median(each))
        yield f"rank {slow['rank']} as fast as the others", after
    for name, share in [*values["steps"]["transforms"].items()][:1]:
        of_all = share / values["stages"]["transforms"]["share"]
        yield f"without {name}", model.spared("transforms", of_all)
    theirs = next(iter(values["steps"]["decode"]), "")
    for name, ms in values["decoders"].items():
        spared = 1 - ms / values["decoders"].get(theirs, ms)
        if spared > 0:
            yield f"decoding by {name}", model.spared("decode", spared)
    all_replayed = all("kept" in rank["windows"] for rank in ranks)
    if all_replayed and values["idle_epochs"] > IDLE_EPOCHS:
        after = replace(model, loader=statistics.median(_rates(ranks, "kept")))
        yield "one DataLoader with persistent_workers=True", after
    for name, times in values["gains"].items():
        least, so_fast, most = (
            replace(model, compute=model.compute * one) for one in times
        )
        yield name, so_fast, least, most
    copy_ms = ranks[0].get("transfer_ms", 0.0)
    step_ms = values["ceiling"]["compute"]["step_ms"]
    # of a batch that takes longer than a step the program copies a part
    if 0 < copy_ms < step_ms and not ranks[0]["pinned"]:
        # at most the copy runs beside the rest of the step, whichever takes longer, and at least half of that
        most_ms = min(copy_ms, step_ms - copy_ms)
        fully, half = (
            replace(model, compute=model.compute * step_ms / (step_ms - saved))
            for saved in (most_ms, most_ms / 2)
        )
        what = "pin_memory=True with .to(device, non_blocking=True)"
        yield what, fully, half, fully


def _unmeasured(values: Summary) -> str:
    """Say what could make the step faster, and was not measured."""
    settings = values["settings"]
    on_gpu = values["hardware"]["gpu"] is not None
    in_fp32 = settings["dtypes"] == ["torch.float32"] and not settings["autocast"]
    can = {
        "torch.autocast": on_gpu and in_fp32,
        "channels_last": on_gpu
        and settings["has_convolutions"]
        and not settings["channels_last"],
        "torch.compile": not settings["compiled"]
        and "kernel_ms" not in values["ceiling"]["compute"],
        "an optimiser with fused=True": on_gpu and not settings["fused"],
        # a GradScaler's own wait is no copy
        "non_blocking=True": settings["pinned"]
        and any("grad_scaler.py" not in place for place in values["syncs"]),
        "a larger prefetch_factor": values["workers"]
        and values["bound"] == "contention",
    }
    tried = tuple(values["gains"])
    return ", ".join(
        name
        for name, is_left in can.items()
        if is_left and not any(one.startswith(name) for one in tried)
    )


def _of_validation(values: Summary) -> float:
    """Return the share of the time that is not trained in for a validation's sake."""
    whole_s = values["rate"]["active_s"] + sum(values["pauses"].values())
    return float(values["pauses"]["validation"] / whole_s)


def _first(values: Summary) -> str:
    """Say what to change first."""
    if advice := first_of(NEIGHBOURS, values):
        return advice
    worth = [one for one in values["what_if"] if one["gain"] > WORTH]
    pause = _of_validation(values)
    if pause / (1 - pause) > max([WORTH, *(one["gain"] for one in worth)]):
        return f"validate less often: it takes {pause:.0%} of the time"
    bound, workers, cores = (
        values["bound"],
        values["workers"],
        values["hardware"]["cores"],
    )
    if bound is None:
        return "measure again: the rate is above its own ceiling, so another program was busy meanwhile"
    # unless they wait for something else than a core
    more = any("workers" in one["settings"] for one in worth)
    if bound != "compute" and (workers or 0) > WORKERS_OF_A_CORE * cores and not more:
        return f"num_workers={cores:.0f}: {workers} hinder each other (not measured)"
    # one that changes the recipe, or the machine, behind the best of the others
    best = [
        one
        for one in worth
        if not one["what"].startswith(("without ", "storage "))
        and "batch_size" not in one["settings"]
    ][:1]
    best += [one for one in worth[:1] if one not in best]
    if best:
        return "; ".join(
            f"{one['what']}: {one['rate']:,.4g} samples/s are predicted, {one['gain']:+.0%}"
            for one in best
        )
    binds = values["binds"] or {}
    unmeasured = _unmeasured(values)
    ends = f": {unmeasured} (not measured)" if unmeasured else ""
    if binds.get("side") == "step":
        return f"the step, which has its data; most of it is {binds['stage']}{ends}"
    if binds.get("stage") == "queue":
        return "pin_memory=True: its thread takes the batches from the workers beside the step (not measured)"
    if bound == "loader":
        return f"the loader: smaller or fewer files to decode, fewer transforms, or more cores{ends}"
    return f"loader and step hinder each other, or other programs take these cores: more cores{ends}"


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
    largest = sorted(shares, key=shares.__getitem__, reverse=True)[:4]
    workers = [f"{name} {shares[name]:.0%}{_most(values, name)}" for name in largest]
    waits = ", ".join(f"{place} {count} x" for place, count in values["syncs"].items())
    rows += [
        ("workers", ", ".join(workers)),
        ("between epochs", _share(values["idle_epochs"])),
        ("validation", _share(_of_validation(values))),
        ("waits for GPU", waits and f"{waits} a step"),
        ("not measured", _unmeasured(values)),
        ("a batch", GUESS.format(values["batch_size"]) if values["is_guess"] else ""),
        *of_files(undo.Undone(values["undone"], values.get("in_place", ()))).items(),
        ("counted", NO_STEP if values["counts_batches"] else ""),
        ("change first", _first(values)),
    ]
    heading = f"saturate why | {values['loader']} | torch {values['versions']['torch']}"
    table = [heading, "-" * WIDTH]
    for title, text in rows:
        for index, line in enumerate(textwrap.wrap(text, WIDTH - 18)):
            table.append(f"{'' if index else title:<16}  {line}")
    return [*table, "-" * WIDTH]


def of_files(of_program: undo.Undone) -> dict[str, str]:
    """Return by title what is told of files that the program has saved."""
    texts = {}
    if of_program.undone:
        texts["not kept"] = f"{counted(of_program.undone, 'file')} {UNDONE}"
    if of_program.in_place:
        texts["not undone"] = undo.IN_PLACE + ", ".join(of_program.in_place)
    return texts


def _most(values: Summary, stage: str) -> str:
    """Say which part of a stage takes the most."""
    parts = values["steps"].get(stage) or {"": 0.0}
    name, share = next(iter(parts.items()))
    if len(parts) > 1:
        name = f"{name} {share:.0%}"
    return name and f" ({name})"


def _share(share: float) -> str:
    return f"{share:.1%} of the time" if share > IDLE_EPOCHS else ""
