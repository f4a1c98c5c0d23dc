"""The search for the largest batch, over simulated memory; and one run of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks import _show, max_batch
from benchmarks._suite import name_of, run
from benchmarks.max_batch import GRID, MaxBatch, Search, follow, search, summarise
from contracts import UserError
from report.hardware import LOADS
from scripts import bench
from tests.end_to_end.runs import draw


def found(
    limit: int, *, start: int, largest: int, tolerance: float, above: str = "oom"
) -> Search:
    """The search on a device on which `limit` is the largest batch; each trial asked for once."""
    outcomes: dict[int, str] = {}
    while (
        its := search(outcomes, start=start, largest=largest, tolerance=tolerance)
    ).after is not None:
        assert its.after not in outcomes
        assert 1 <= its.after <= largest
        assert list(its.tried) == list(outcomes)
        outcomes[its.after] = "ok" if its.after <= limit else above
        assert len(outcomes) < 60
    return its


@given(
    limit=st.integers(0, 20_000),
    start=st.integers(1, 20_000),
    largest=st.integers(1, 20_000),
    tolerance=st.floats(0.0, 1.0),
)
@example(limit=0, start=64, largest=16384, tolerance=0.05)  # not even one sample
@example(
    limit=5, start=4096, largest=16384, tolerance=0.0
)  # the first trial is far too large
@example(
    limit=10_000, start=64, largest=2000, tolerance=0.05
)  # the data set ends before the memory
@example(limit=64, start=64, largest=64, tolerance=0.05)
def test_the_search_finds_the_largest_within_the_tolerance(
    limit: int, start: int, largest: int, tolerance: float
) -> None:
    its = found(limit, start=start, largest=largest, tolerance=tolerance)
    assert its.fits <= limit
    if its.fails is None:
        assert its.fits == largest <= limit
    else:
        assert its.fits <= limit < its.fails
        assert its.fails - its.fits <= max(
            tolerance * its.fits, GRID if its.fails > GRID else 1
        )


def test_batches_are_multiples_of_eight_and_few() -> None:
    its = found(1900, start=64, largest=16384, tolerance=0.05)
    assert its.tried == (64, 128, 256, 512, 1024, 2048, 1536, 1792, 1920, 1856)
    assert (its.fits, its.fails) == (1856, 1920)


def test_a_failure_above_a_batch_that_trains_is_too_large_and_one_before_any_ends_the_search() -> (
    None
):
    its = found(700, start=512, largest=4096, tolerance=0.05, above="failed")
    assert its.fits <= 700 < (its.fails or 0)
    assert found(0, start=512, largest=4096, tolerance=0.05, above="failed").tried == (
        512,
    )


def row(loader: str, batch: int, status: str, **figures: Any) -> dict[str, Any]:
    point = {
        "arch": "resnet18",
        "loader": loader,
        "precision": "fp16",
        "batch_size": batch,
    }
    told = {
        "point": point,
        "status": status,
        "error": None,
        "figures": figures,
        "began": 0.0,
        "took_s": 2.0,
    }
    empty: dict[str, Any] = {name: {} for name in ("spread", "versions", "hardware")}
    return {**told, **empty, "folder": f"runs/{name_of(point)}", "suite": "max-batch"}


def test_the_summary_has_a_row_a_search_and_compares_only_what_memory_has_limited() -> (
    None
):
    rows = [
        *(
            row("torchvision", 64, "ok", device_gib=10.0),
            row("torchvision", 128, "ok", device_gib=20.0, sm_mhz=1755.0),
        ),
        row("torchvision", 136, "oom"),
        *(row("dali-gpu", 64, "ok", device_gib=12.0), row("dali-gpu", 72, "oom")),
        *(
            row("other", 64, "ok"),
            row("other", 72, "failed") | {"error": "exit code 1: cuDNN"},
        ),
        *(
            row("dali-cpu", 64, "ok"),
            row("dali-cpu", 96, "ok", reached="all training samples"),
        ),
        *(row("dali-fed", 64, "oom"), row("dali-fed", 1, "oom")),
        row("synthetic", 64, "failed") | {"error": "exit code 2: no such architecture"},
    ]
    told = {its["point"]["loader"]: its for its in summarise(rows)}
    assert list(told) == [
        "torchvision",
        "dali-gpu",
        "other",
        "dali-cpu",
        "dali-fed",
        "synthetic",
    ]
    best = told["torchvision"]["figures"]
    wanted = {
        "largest": 128,
        "device_gib": 20.0,
        "ended": "out of memory at 136",
        "trials": 3,
    }
    assert (
        best.items() >= (wanted | {"of_torchvision": 1.0, "of_dali-gpu": 2.0}).items()
    )
    stolen = "Up to 25% of the cores' time"
    lines = "\n".join(_show.conditions(max_batch.SUITE, [*told.values()]))
    assert "GPU clock 1,755 " in lines and stolen not in lines
    best["cpu_steal"] = 0.25
    assert stolen in "\n".join(_show.conditions(max_batch.SUITE, [*told.values()]))
    assert told["torchvision"]["took_s"] == 6.0
    assert told["dali-gpu"]["figures"]["of_torchvision"] == 0.5
    assert told["other"]["figures"]["ended"] == "failed (exit code 1: cuDNN) at 72"
    assert "of_torchvision" not in told["other"]["figures"]
    assert told["dali-cpu"]["figures"]["ended"] == ">= 96: all training samples"
    assert "of_torchvision" not in told["dali-cpu"]["figures"]
    assert told["dali-fed"]["status"] == "oom"
    assert (told["synthetic"]["status"], told["synthetic"]["error"]) == (
        "failed",
        "batch 64: exit code 2: no such architecture",
    )


def test_a_trial_that_is_killed_or_gets_no_thread_was_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import json, os, sys
batch, folder = int(sys.argv[1]), sys.argv[2]
if batch > 16:
    print("images are read", flush=True)
    os.kill(os.getpid(), 9)
if batch > 8:
    sys.exit("libgomp: Thread creation failed: Resource temporarily unavailable")
json.dump({"figures": {"largest": batch}}, open(folder + "/figures.json", "w"))
"""

    def command(_: MaxBatch, point: dict[str, Any], folder: Path) -> list[str]:
        return [sys.executable, "-c", program, str(point["batch_size"]), str(folder)]

    monkeypatch.setattr(max_batch, "training_samples", lambda _: 1000)
    settings = MaxBatch(
        loaders=("synthetic",), archs=("resnet18",), start=64, output=tmp_path
    )
    rows = run(
        replace(max_batch.SUITE, command=command), settings, tmp_path, lambda *_: None
    )
    assert [(its["point"]["batch_size"], its["status"]) for its in rows] == [
        (64, "oom"),
        (32, "oom"),
        (16, "oom"),
        (8, "ok"),
    ]
    (told,) = summarise(rows)
    assert (
        told["figures"]["ended"] == "out of memory at 16"
        and told["figures"]["limited"] == 1
    )


def test_one_search_follows_the_other_and_a_resumed_one_asks_for_the_same_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(max_batch, "training_samples", lambda _: 100)
    settings = MaxBatch(
        loaders=("synthetic", "torchvision"),
        archs=("resnet18",),
        precisions=("fp16",),
        start=64,
        by_hand=("dali",),
    )
    rows: list[dict[str, Any]] = []
    for _ in range(20):
        points = follow(settings, rows)
        new = [point for point in points if point not in [its["point"] for its in rows]]
        if not new:
            break
        assert len(new) == 1
        rows.append(
            row(
                new[0]["loader"],
                new[0]["batch_size"],
                "ok" if new[0]["batch_size"] <= 70 else "oom",
            )
        )
    assert [(its["point"]["loader"], its["point"]["batch_size"]) for its in rows] == [
        *(("synthetic", batch) for batch in (64, 100, 80, 72)),
        *(("torchvision", batch) for batch in (64, 100, 80, 72)),
        *(("by hand: dali", batch) for batch in (64, 100, 80, 72)),
    ]
    assert follow(settings, rows) == [its["point"] for its in rows]


@pytest.mark.parametrize(
    ("gpu", "wanted"), [(True, ["fp16"]), (False, ["fp32", "fp16"])]
)
def test_a_precision_is_named_as_by_hand_has_it(
    gpu: bool, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or no ratio to it would be formed; what is named twice is searched once."""
    monkeypatch.setattr(max_batch.torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("engine.precision._cpu_has_bf16", lambda: False)
    settings = MaxBatch(
        loaders=("synthetic",),
        archs=("resnet18",),
        precisions=("auto", "fp16"),
        by_hand=("dali",),
    )
    *ours, theirs = max_batch.searches(settings)
    named = {"arch": "resnet18", "loader": "synthetic"}
    assert ours == [named | {"precision": one} for one in wanted]
    assert theirs == {
        "arch": "resnet18",
        "loader": "by hand: dali",
        "precision": "fp16",
    }
    eager = max_batch.searches(
        settings.model_copy(update={"eager": True, "by_hand": ()})
    )
    assert [one.get("graphs") for one in eager] == [None, "false"] * len(wanted)


def test_what_a_graph_costs() -> None:
    """The ratio is to eager steps with the same loader; trials of the two are not taken for each other's."""
    settings = MaxBatch(
        loaders=("synthetic",), archs=("resnet18",), precisions=("fp16",), eager=True
    )
    graphs = [row("synthetic", 64, "ok"), row("synthetic", 72, "oom")]
    eager = [
        row("synthetic", 64, "ok"),
        row("synthetic", 128, "ok"),
        row("synthetic", 136, "oom"),
    ]
    for trial in eager:
        trial["point"]["graphs"] = "false"
    one, other = summarise([*graphs, *eager])
    assert one["figures"]["of_eager"] == 0.5 and "of_eager" not in other["figures"]
    assert "graphs" not in one["point"] and other["point"]["graphs"] == "false"
    following = follow(settings, graphs[:1])
    assert following[-1] == graphs[0]["point"] | {"batch_size": 128}
    assert follow(settings, eager[:2])[0] == graphs[0]["point"], (
        "the eager search is another one"
    )


def test_by_hand_gets_the_workers_and_refuses_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    settings = MaxBatch(
        data=str(tmp_path),
        loaders=("synthetic",),
        by_hand=("dali-cpu",),
        flags="--workers 3",
    )
    with pytest.raises(UserError, match="--image-size behind -- with --by-hand"):
        max_batch.points(
            settings.model_copy(update={"flags": "--workers 3 --image-size 96"})
        )
    monkeypatch.setattr(max_batch, "training_samples", lambda _: 100)
    assert max_batch.points(settings)
    said: list[list[str]] = []
    monkeypatch.setattr(max_batch.loop_by_hand, "main", lambda: said.append(sys.argv))
    monkeypatch.setattr(max_batch.torch.cuda, "max_memory_allocated", lambda _: 0)
    monkeypatch.setattr(sys, "argv", [])
    point = {"arch": "resnet18", "loader": "by hand: dali-cpu", "batch_size": 8}
    max_batch._by_hand(settings, point, max_batch.torch.device("cpu"), [], 0.0, dict)
    assert said[0][-2:] == ["--workers", "3"]
    assert said[0][said[0].index("--loader") + 1] == "dali-cpu"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {}),
    ],
)
def test_a_loop_by_hand_has_torchs_own_allocator(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    environment = dict(given)
    max_batch.keep_allocator(environment)
    assert environment == given | expected


def test_files_are_needed_but_for_the_synthetic_loader() -> None:
    with pytest.raises(UserError, match="--data is missing"):
        max_batch.points(MaxBatch())


@pytest.mark.usefixtures("prompt_ran")
def test_a_search_on_the_cpu_ends_at_the_last_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    data = draw(tmp_path / "data", classes=("red", "blue"), train=12, val=3)
    out = tmp_path / "out"
    flags = "--archs squeezenet1_1 --loaders torchvision --start 16 --steps 2 -- --image-size 32 --workers 1"
    assert (
        bench.main(
            ["max-batch", "--data", str(data), "--output", str(out), *flags.split()]
        )
        == 0
    )
    rows = [
        json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()
    ]
    assert [(its["point"]["batch_size"], its["status"]) for its in rows] == [
        (16, "ok"),
        (24, "ok"),
    ]
    assert all(set(LOADS) <= set(its["figures"]) for its in rows)
    assert ">= 24: all training samples" in (out / "table.md").read_text()
    assert not list(out.rglob("*.pt"))
    assert "validated" in (out / rows[-1]["folder"] / "log.txt").read_text()
    shown = {path.parent.name for path in out.rglob("events.out.tfevents.*")}
    assert shown == {Path(rows[-1]["folder"]).name, "plots", "max-batch"}
    curve = (
        EventAccumulator(str(out / "curves" / "max-batch"))
        .Reload()
        .Scalars("max-batch over batch_size/host_gib")
    )
    assert [event.step for event in curve] == [16, 24]
    answer = EventAccumulator(str(out / rows[-1]["folder"])).Reload()
    assert [event.value for event in answer.Scalars("max-batch/largest")] == [24.0]
    assert "_hparams_/session_start_info" in answer.summary_metadata
