"""TensorBoard's own readers see each step once, the HPARAMS table whole, and whole records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import (
    api_pb2,
    backend_context,
    get_experiment,
    list_session_groups,
)

from saturate.report.facts import CURVES, SHARES, shares
from saturate.report.tensorboard import (
    KEYS,
    SETTINGS_FILE,
    Board,
    layout,
    metrics,
)
from saturate.tasks import COMPARED
from saturate.tasks.classification import KIND

METRICS = metrics(COMPARED)
Settings = dict[str, str | int | float | bool]
ROW: Settings = {
    "arch": "resnet18",
    "loader": "dali-gpu",
    "batch_size": 512,
    "precision": "fp16",
}
ROW |= {"world_size": 1, "compile": True, "lr": 0.5}


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0}
    )
    accumulator.Reload()
    return accumulator


def provider(parent: Path) -> data_provider.MultiplexerDataProvider:
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(parent))
    multiplexer.Reload()
    return data_provider.MultiplexerDataProvider(multiplexer, str(parent))


def table(
    parent: Path,
) -> tuple[
    api_pb2.Experiment, dict[str, tuple[dict[str, object], dict[str, float], int]]
]:
    """The HPARAMS page as its own backend makes it: columns, and (settings, metrics, status) a run."""
    backend = backend_context.Context(
        base_plugin.TBContext(data_provider=provider(parent))
    )
    ctx = RequestContext()
    columns = get_experiment.Handler(
        ctx, backend, "", api_pb2.GetExperimentRequest()
    ).run()
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, allowed_statuses=list(api_pb2.Status.values())
    )
    groups = list_session_groups.Handler(ctx, backend, "", request).run().session_groups
    return columns, {
        group.name: (
            {
                name: getattr(value, value.WhichOneof("kind"))
                for name, value in group.hparams.items()
            },
            {value.name.tag: value.value for value in group.metric_values},
            group.sessions[0].status,
        )
        for group in groups
    }


def write(board: Board, first: int, end: int, value: float) -> None:
    board.settings(ROW, KIND, COMPARED)
    for step in range(first, end, 10):
        board.scalars({"train/loss": value}, step)
    for step in range(first + 5, end, 77):
        board.scalars({"throughput/samples_per_s": value}, step)


def test_scalars_are_read_back_and_what_is_no_number_is_left_out(
    tmp_path: Path,
) -> None:
    board = Board(tmp_path)
    none = {"train/grad_norm": None, "train/loss_scale": math.inf, "val/loss": math.nan}
    board.scalars({"train/loss": 2.5, "train/lr": 1, **none}, 3)
    # before flush and close: a reader sees each point at once
    assert points(tmp_path, "train/loss") == [(3, 2.5)]
    board.settings(ROW, KIND, COMPARED)
    board.scalars({"val/top1": 0.5}, 4)
    board.close()
    assert sorted(read(tmp_path).Tags()["scalars"]) == [
        *("at_a_glance/top1", "train/loss", "train/lr", "val/top1"),
    ]


def test_a_resumed_curve_has_every_step_once_in_both_readers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    first = Board(run)
    write(first, 0, 751, 1.0)
    pictures = np.full((5, 4, 6, 3), 7, np.uint8)
    for step in (590, 600, 610):
        first.images("val/images", pictures, step)
    first.scalars({"val/top1": 0.1}, 600)
    first.scalars({"val/loss": 9.0}, 601)
    first.scalars({"val/top1": 0.9}, 601)
    # killed in mid-write
    (path, settings) = sorted(run.glob("events*"), reverse=True)
    assert settings.name == SETTINGS_FILE
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)

    resumed = Board(run, purge_step=601)  # the checkpoint is of step 600
    write(resumed, 610, 1001, 2.0)
    # the checkpoint came before the validation, which runs again
    resumed.scalars({"val/top1": 0.1, "val/loss": 3.0}, 600)
    resumed.images("val/images", pictures, 600)
    resumed.close()

    loss = points(run, "train/loss")
    assert loss == [(step, 1.0 if step <= 600 else 2.0) for step in range(0, 1001, 10)]
    windows = [*range(5, 600, 77), *range(615, 1001, 77)]
    assert [step for step, _ in points(run, "throughput/samples_per_s")] == windows
    assert [step for step, _ in points(run, "val/top1")] == [600]
    assert points(run, "val/loss") == [(600, 3.0)]
    accumulator = read(run)
    assert [event.step for event in accumulator.Images("val/images")] == [590, 600]
    assert len(accumulator.Tensors("custom_scalars__config__")) == 1
    served = provider(tmp_path).read_scalars(
        RequestContext(), experiment_id="", plugin_name="scalars", downsample=5000
    )["run"]
    assert [datum.step for datum in served["train/loss"]] == list(range(0, 1001, 10))
    assert [datum.step for datum in served["throughput/samples_per_s"]] == windows


def test_hparams_is_one_row_a_run_and_no_column_is_lost(tmp_path: Path) -> None:
    rows: dict[str, Settings] = {
        "a": {**ROW, "arch": "resnet18"},
        "b": {**ROW, "batch_size": 1024, "reader": "pil"},
    }
    rates = {"throughput/samples_per_s": 1000.0, "throughput/efficiency": 0.5}
    for name, settings in rows.items():
        (tmp_path / name).mkdir()
        if name == "b":  # its row is that of the run that was resumed last
            earlier = Board(tmp_path / name)
            earlier.settings({**settings, "world_size": 8}, KIND, COMPARED)
            earlier.close()
        board = Board(tmp_path / name, purge_step=0 if name == "b" else None)
        board.settings({**settings, "bound": None}, KIND, COMPARED)
        board.scalars({"throughput/samples_per_s": 5.0}, 1)
        board.scalars(rates, 2)
        if name == "a":
            settings |= {"bound": "loader", "rate": 9876}
            board.settings(settings, KIND, COMPARED, finished=True)
        board.close()

    columns, found = table(tmp_path)
    headers = [info.display_name for info in columns.hparam_infos]
    assert headers[:5] == ["bound", "loader", "network", "samples/s", "batch a GPU"]
    assert {info.name for info in columns.hparam_infos} == set(KEYS.values())
    assert {info.name.tag: info.display_name for info in columns.metric_infos} == (
        METRICS
    )
    assert set(found) == {"a", "b"}, "no sub-runs"
    for name, settings in rows.items():
        shown, metrics, status = found[name]
        assert shown.keys() == {KEYS[key] for key in settings}
        for key, value in settings.items():
            assert str(shown[KEYS[key]]).strip().replace(",", "") == str(value)
        assert metrics == rates
        ended = api_pb2.STATUS_UNKNOWN if name == "b" else api_pb2.STATUS_SUCCESS
        assert status == ended
    batches = [str(found[name][0][KEYS["batch_size"]]) for name in ("a", "b")]
    assert batches == sorted(batches), "texts that the page sorts as numbers"


def test_a_fast_loader_flattens_no_rate_in_the_chart_of_shares() -> None:
    compute, loader = {"rate": 40.0}, {"rate": 480.0}
    assert shares(30.0, {"compute": None, "loader": loader}) == {}
    found = shares(30.0, {"compute": compute, "loader": loader})
    assert (found["rate"], found["loader_ceiling"]) == (0.75, 1.5)
    drawn = {curve.tag for curve in CURVES if curve.chart == SHARES}
    hold = "zero, and the compute ceiling at 1, hold its range"
    assert drawn == {f"share/{name}" for name in found}, hold
    assert {*layout(KIND)["at a glance"][SHARES]} == drawn
