"""TensorBoard in a real browser, over a folder that a benchmark has left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks import _suite
from benchmarks._suite import results
from report.tensorboard import layout
from scripts import bench
from tasks.classification import KIND
from tests.end_to_end import screenshots

pytest.importorskip(
    "websockets", reason="websockets is not installed (requirements-dev.txt)"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(map(shutil.which, screenshots.BROWSERS)),
        reason=f"none of {', '.join(screenshots.BROWSERS)} is installed",
    ),
]


@pytest.fixture(scope="module")
def measured(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bench train` at two batch sizes; how few steps a busy machine has made of them is no matter here."""
    folder = tmp_path_factory.mktemp("bench")
    asked = [
        "--archs",
        "squeezenet1_1",
        "--batch-sizes",
        "4",
        "8",
        "--loaders",
        "torchvision",
        "--precisions",
        "fp32",
        "--seconds",
        "1",
    ]
    small = [
        "--workers",
        "0",
        "--image-size",
        "32",
        "--min-window-s",
        "0.2",
        "--log-every",
        "5",
        "--manifest-dir",
        str(folder / "cache"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(_suite, "LEAST", 1)
        patch.setattr(_suite, "LEAST_STEPS", 1)
        assert (
            bench.main(
                [
                    "train",
                    "--data",
                    str(pictures),
                    *asked,
                    "--output",
                    str(folder / "out"),
                    "--",
                    *small,
                ]
            )
            == 0
        )
    assert [row["status"] for row in results(folder / "out")] == ["ok", "ok"]
    return folder / "out"


@pytest.fixture(scope="module")
def pages(measured: Path) -> Iterator[dict[str, list[str]]]:
    with screenshots.tensorboard(measured) as address, screenshots.browser() as page:
        found = {}
        for name in screenshots.PAGES:
            page.open(address, name)
            found[name] = page.settle().splitlines()
            assert page.picture().startswith(b"\x89PNG")
        yield found


def test_hparams_is_the_table_of_throughput(
    measured: Path, pages: dict[str, list[str]]
) -> None:
    lines = pages["hparams"]
    first = lines.index("Trial ID")
    titles = ["arch", "batch_size", "loader", "precision", "world_size"]
    titles += [
        f"throughput/{name}"
        for name in ("samples_per_s", "compute_ceiling", "loader_ceiling", "efficiency")
    ]
    assert [line for line in lines[first + 1 :] if line != "Show Metrics"][
        : len(titles)
    ] == titles
    rows = results(measured)
    assert len(rows) == 2
    for row in rows:
        told = json.loads((measured / row["folder"] / "summary.json").read_text())
        cells = lines[lines.index(row["folder"], first) + 1 :][: len(titles)]
        assert [cells[0], float(cells[1]), cells[2], cells[3]] == [
            told[name] for name in ("arch", "batch_size", "loader", "precision")
        ]
        figures = [
            told["world_size"],
            told["rate"]["steady"],
            *(told["ceiling"][name]["rate"] for name in ("compute", "loader")),
        ]
        assert [float(cell) for cell in cells[4:]] == pytest.approx(
            [*figures, told["efficiency"]], rel=1e-3
        )


def test_custom_scalars_has_the_charts(pages: dict[str, list[str]]) -> None:
    lines = pages["custom_scalars"]
    for group, charts in layout(KIND).items():
        assert group in lines
        assert {*charts} <= {*lines}, group
    at = lines.index("rate and its ceilings")
    assert "Matches (6)" in lines[at : lines.index("efficiency", at)], (
        "of two runs the rate and two ceilings"
    )


def test_scalars_has_a_group_for_every_kind_of_figure(
    measured: Path, pages: dict[str, list[str]]
) -> None:
    found: set[str] = set()
    for row in results(measured):
        events = EventAccumulator(str(measured / row["folder"]))
        events.Reload()
        found |= {*events.Tags()["scalars"]}
    assert {"throughput/samples_per_s", "time/data_wait_ms", "train/loss"} <= found
    first = pages["scalars"].index(min(tag.partition("/")[0] for tag in found))
    assert {tag.partition("/")[0] for tag in found} <= {*pages["scalars"][first:]}


def test_images_has_the_plots(measured: Path, pages: dict[str, list[str]]) -> None:
    drawn = {f"train/{path.stem}" for path in (measured / "plots").glob("*.png")}
    assert {"train/rate", "train/compute_ceiling", "train/loader_ceiling"} <= drawn
    assert {*drawn, "augmented"} <= {*pages["images"]}
