"""The suite `loader` with images, and the set of links."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks import images, loader
from benchmarks._suite import Suite, results, run
from benchmarks.loader import (
    SUITE,
    Loader,
    class_folders,
    conclude,
    derive,
    expanded,
    remarks,
    settled,
    unique,
)
from contracts import UserError
from dataset.open import open_split
from scripts import bench, link_set
from tests.end_to_end.runs import draw


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("pictures") / "data", classes=("a", "b", "c"), train=24, val=1)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_auto_is_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "installed", lambda package: True)
    assert expanded("--x", ["auto"], 2) == [
        "pytorch",
        "pytorch+opencv",
        "dali",
        "torchvision",
        "dali-cpu",
        "dali-gpu",
        "dali-fed",
    ]
    assert "dali" in expanded("--x", ["auto"], 0)
    assert expanded("--x", ["auto"], 0, more=("dali-own",)) == [
        "dali-own",
        "torchvision",
        "dali-cpu",
        "dali-fed",
    ]
    assert expanded("--x", ["dali-gpu", "auto"], 0)[0] == "dali-gpu"
    monkeypatch.setattr(loader, "installed", lambda package: False)
    assert expanded("--x", ["auto", "torchvision"], 2) == ["pytorch", "torchvision"]
    with pytest.raises(UserError, match="--x got 'torchvison'"):
        expanded("--x", ["torchvison"], 0)


def test_data_is_the_folder_or_its_train(pictures: Path) -> None:
    assert class_folders(pictures) == class_folders(pictures / "train") == (pictures / "train").resolve()
    for wrong in (None, pictures / "none"):
        with pytest.raises(UserError, match="<class>"):
            class_folders(wrong)


def row(
    name: str, gpus: int, rate: float, *, files: int = 1000, links: int = 10, status: str = "ok"
) -> dict[str, Any]:
    figures = {"rate": rate, "pass_s": files / rate, "files": files, "unique_files": links, "samples": files}
    return {
        "point": {"loader": name, "gpus": gpus},
        "status": status,
        "figures": figures if status == "ok" else {},
        "spread": {},
    }


def test_speed_up_and_scaling_compare_rows() -> None:
    rows = [
        row("pytorch", 1, 100.0),
        row("dali-gpu", 1, 1000.0),
        row("pytorch", 2, 150.0),
        row("dali-gpu", 2, 1800.0),
    ]
    found = {(one["point"]["loader"], one["point"]["gpus"]): one["figures"] for one in derive(rows)}
    assert found["dali-gpu", 1]["speed_up"] == pytest.approx(10)
    assert found["dali-gpu", 1]["scaling"] is None
    assert found["dali-gpu", 2]["speed_up"] == pytest.approx(12)
    assert found["dali-gpu", 2]["scaling"] == pytest.approx(0.9)
    assert found["pytorch", 2]["scaling"] == pytest.approx(0.75)
    assert "speed_up" not in rows[0]["figures"]


def test_without_a_baseline_there_is_no_speed_up() -> None:
    failed, other = derive([row("pytorch", 2, 100.0, status="failed"), row("dali-gpu", 2, 1800.0)])
    assert failed["figures"] == {}
    assert {other["figures"][name] for name in ("speed_up", "scaling", "of_dali")} == {None}
    assert conclude([failed, other])[0] == "2 processes: dali-gpu passes over all files in 0.556 s."


def test_the_fastest_loop_by_hand_is_what_speed_ups_are_over() -> None:
    rows = [row("pytorch", 1, 100.0), row("pytorch+decord", 1, 200.0), row("nvdec", 1, 1000.0)]
    rows[2]["figures"] |= {"frames_per_s": 16_000.0, "fallback_kinds": "mjpeg in avi"}
    found = derive(rows)
    assert [one["figures"]["speed_up"] for one in found] == pytest.approx([0.5, 1.0, 5.0])
    assert conclude(found) == [
        "1 process: nvdec passes over all files in 1 s (16,000 frames/s), "
        "5.0 times as fast as pytorch+decord."
    ]
    assert remarks(found) == [
        "1,000 files, 10 of them unique: the others are links to these, or copies.",
        "nvdec: clips of some files were decoded by pyav (mjpeg in avi).",
    ]


def test_a_conclusion_is_over_the_baseline_that_it_names() -> None:
    """The fastest one may have been unsteady; then no conclusion is drawn from it."""
    pytorch, dali, nvdec = derive([row("pytorch", 1, 10.0), row("dali", 1, 80.0), row("nvdec", 1, 100.0)])
    assert conclude([pytorch, nvdec]) == [
        "1 process: nvdec passes over all files in 10 s, 10.0 times as fast as pytorch."
    ]
    assert conclude([pytorch, dali, nvdec]) == [
        "1 process: nvdec passes over all files in 10 s, "
        "10.0 times as fast as pytorch and 1.2 times as fast as dali."
    ]


def test_a_loader_is_compared_with_pytorch_and_with_dalis_own_reader_apart() -> None:
    rows = [
        row("pytorch", 1, 10.0),
        row("dali", 1, 80.0),
        row("dali-experimental", 1, 40.0),
        row("dali-gpu", 1, 100.0),
    ]
    ratios = [(one["figures"]["speed_up"], one["figures"]["of_dali"]) for one in derive(rows)]
    assert ratios == [pytest.approx(pair) for pair in ((1, 1 / 8), (8, 1), (4, 1 / 2), (10, 10 / 8))]


class Paths:
    read_delay_s = 0.0

    def __init__(self, *files: Path) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def path(self, sample: int) -> bytes:
        return os.fsencode(self.files[sample])


def test_links_and_copies_are_not_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, copy, same_size, longer, hard, soft = (
        tmp_path / name for name in ("one", "copy", "same_size", "longer", "hard", "soft")
    )
    one.write_bytes(b"abc")
    copy.write_bytes(b"abc")
    same_size.write_bytes(b"xyz")
    longer.write_bytes(b"abcd")
    hard.hardlink_to(one)
    soft.symlink_to(one)
    found: Any = Paths(one, copy, same_size, longer, hard, soft)
    assert unique(found) == 3
    monkeypatch.setattr(loader, "CONTENTS_UP_TO", 3)
    assert unique(found) == 4


@pytest.mark.parametrize("name", ["pytorch", "dali", "dali-cpu", "torchvision"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_pass_over_images_has_as_many_for_ours_and_for_others(
    name: str, rank: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("dali"):
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = settled(Loader(data=pictures, batch_size=8, image_size=32, workers=0, window="random-resized"))
    world: Any = SimpleNamespace(rank=rank, size=2, device=torch.device("cpu"))
    with images.opened(settings, name, open_split(pictures / "train"), world) as run:
        assert [list(run(epoch)) for epoch in range(2)] == [[8] * 4] * 2


def brief(folder: Path, least_s: float) -> Suite:
    """The suite, with windows that take no more than `least_s` and the pass that is under way."""
    script = folder / "brief.py"
    script.write_text(
        f"from benchmarks import loader; loader.LEAST_S = {least_s}; "
        "loader.measuring(loader.Loader, loader.measure)"
    )

    def command(*asked: Any) -> list[str]:
        *words, _, _, settings, point, folder = SUITE.command(*asked)  # between them -m benchmarks.loader
        return [*words, str(script), settings, point, folder]

    return replace(SUITE, command=command)


@pytest.mark.usefixtures("prompt_ran")
@pytest.mark.parametrize("loader", ["torchvision", "dali-gpu"])
def test_two_ranks_pass_over_the_files_and_a_loader_that_cannot_is_a_row(
    loader: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmarks.loader.SUITE", brief(tmp_path, 0.5))
    words = f"--loaders {loader} --gpus 2 --image-size 32 --batch-size 8 --workers 1".split()
    where = ["--data", str(pictures), "--output", str(tmp_path / "out")]
    code = bench.main(["loader", *where, *words])
    (row,) = results(tmp_path / "out")
    if loader == "dali-gpu":
        assert (code, row["status"]) == (1, "failed")
        assert "dali-gpu needs an NVIDIA GPU" in row["error"], (
            "what the rank said, not what torchrun says of it"
        )
        return
    assert (code, row["status"]) == (0, "ok"), row["error"]
    figures = row["figures"]
    assert figures["samples"] == 64
    assert figures["files"] == figures["unique_files"] == 72
    assert figures["pass_s"] == pytest.approx(72 / figures["rate"])
    assert figures["per_gpu"] == pytest.approx(figures["rate"] / 2)
    assert row["spread"]["rate"]["n"] == row["spread"]["pass_s"]["n"] == 3
    table = (tmp_path / "out" / "table.md").read_text()
    assert "72 files, 72 of them unique" in table
    assert (tmp_path / "out" / "plots" / "pass.png").is_file()


@pytest.mark.usefixtures("prompt_ran")
def test_small_sets_are_passed_over_until_there_are_enough_batches(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of two batches each, and no window is longer here."""
    gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = Loader(
        data=pictures, loaders=("synthetic",), image_size=32, workers=0, output=tmp_path / "out"
    )
    (row,) = run(brief(tmp_path, 0.0), settings, tmp_path / "out", lambda *_: None)
    assert (row["status"], row["figures"]["steps"], row["spread"]["rate"]["n"]) == ("ok", 20, 10), row[
        "error"
    ]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_set_of_links_keeps_the_classes(symbolic: bool, pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    words = [str(source), str(tmp_path / "made"), "--count", "100", *(["--symbolic"] * symbolic)]
    assert link_set.main(words) == 0
    made = sorted((tmp_path / "made").rglob("*.jpg"))
    assert len(made) == 100
    assert {*Counter(path.parent.name for path in made).values()} == {33, 34}
    assert all(path.is_symlink() is symbolic for path in made)
    assert unique(cast(Any, Paths(*made))) == 72
    shares = Counter(path.resolve() if symbolic else path.stat().st_ino for path in made)
    assert set(shares.values()) == {1, 2}
    for path in made:
        assert path.samefile(source / "train" / path.parent.name / path.name.partition("-")[2])


def test_a_set_of_links_refuses_in_one_line(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(source: Path, target: Path, count: int) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert link_set.main([str(source), str(target), "--count", str(count)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert sorted(tmp_path.rglob("*")) == before, "nothing half is left"
        return line

    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    assert "not empty" in refused(pictures, taken, 100)
    assert "less than the 72 files" in refused(pictures, tmp_path / "made", 71)
    assert "no files in <class>" in refused(tmp_path / "none", tmp_path / "made", 100)
    assert "lies inside" in refused(pictures, pictures / "made", 100)

    def elsewhere(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), "a", None, "b")

    monkeypatch.setattr(os, "link", elsewhere)
    assert "--symbolic" in refused(pictures, tmp_path / "made", 100)
