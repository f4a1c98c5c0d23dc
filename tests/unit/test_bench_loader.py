"""The suite `loader` with images: its points, passes, waits, cold files, other libraries, lists; links."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import _lists, _loaders, loader
from benchmarks._loaders import Asked, data_folder, expanded, open_data, opened
from benchmarks._suite import Absent, Suite, results, run
from benchmarks.baselines import lists as lists_by_hand
from benchmarks.baselines import peers
from benchmarks.loader import (
    SUITE,
    Loader,
    Pass,
    conclude,
    consume,
    derive,
    points,
    remarks,
)
from contracts import UserError
from scripts import bench, link_set
from tests.disk import synced
from tests.end_to_end.runs import draw

# a test has one core where several run side by side
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(
        tmp_path_factory.mktemp("pictures") / "data",
        classes=("a", "b", "c"),
        train=24,
        val=1,
    )


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- points -------------------------------------------------------------------------------------------------


def test_auto_is_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    known = lambda name: SimpleNamespace()  # noqa: E731
    for module in ("benchmarks._loaders", "loaders"):
        monkeypatch.setattr(f"{module}.find_spec", known)
    images = [
        "pytorch",
        "pytorch+opencv",
        "dali",
        "torchvision",
        "dali-cpu",
        "dali-gpu",
        "dali-fed",
    ]
    assert expanded("--x", ["auto"], 2, by_hand=True) == images
    assert expanded("--x", ["auto"], 0) == ["torchvision", "dali-cpu", "dali-fed"]
    assert (
        expanded("--x", ["dali-gpu", "auto", "webdataset"], 0, by_hand=True)[0]
        == "dali-gpu"
    )
    assert "dali" not in expanded("--x", ["auto"], 0, task="video", by_hand=True)
    for module in ("benchmarks._loaders", "loaders"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    assert expanded("--x", ["auto", "torchvision"], 2, by_hand=True) == [
        "pytorch",
        "torchvision",
    ]
    with pytest.raises(UserError, match="--x got 'torchvison'"):
        expanded("--x", ["torchvison"], 0)


def test_points_are_every_combination(pictures: Path) -> None:
    """A reader is of the torchvision loader alone; defaults that nobody asks for are no axis."""
    asked = Loader(
        data=pictures,
        loaders=("torchvision", "dali-fed"),
        readers=("pil", "opencv"),
        workers=(1, 2),
    )
    assert [
        (one["workers"], one["loader"], one["reader"]) for one in points(asked)
    ] == [
        (workers, *pair)
        for workers in (1, 2)
        for pair in (
            ("torchvision", "pil"),
            ("torchvision", "opencv"),
            ("dali-fed", "pil"),
        )
    ]
    (point,) = points(Loader(data=pictures, loaders=("torchvision",)))
    assert point == {
        "loader": "torchvision",
        "gpus": 1,
        "workers": 8,
        "batch_size": 32,
        "image_size": 640,
        "window": "stretch",
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"data": None}, "--data is missing; name one with <class>"),
        ({"data": Path("nowhere")}, "--data nowhere: no such folder"),
        ({"steps": 5}, "--steps got 5; it must be 0, or 20 and more"),
        ({"cold": True, "gpus": (2,)}, "--cold true: of images, and of one rank"),
        ({"readers": ("cv",)}, "--readers got 'cv'"),
        ({"loaders": ("ffcv",)}, "--loaders got 'ffcv'"),
        (
            {"task": "detection"},
            "--task detection: this suite loads images or videos with a label alone",
        ),
        ({"lines": 2001}, "--lines 2001 are no whole batches"),
        ({"lines": 2000, "loaders": ("panda",)}, "--loaders got 'panda'"),
    ],
)
def test_mistakes(asked: dict[str, Any], said: str, pictures: Path) -> None:
    with pytest.raises(UserError, match=said):
        points(Loader(**{"data": pictures} | asked))


def test_data_is_the_folder_or_its_train(pictures: Path, tmp_path: Path) -> None:
    assert (
        data_folder(pictures)
        == data_folder(pictures / "train")
        == (pictures / "train").resolve()
    )
    (tmp_path / "train.lmdb").touch()
    with pytest.raises(
        UserError,
        match="train is read as lmdb, and what is written by hand reads files",
    ):
        data_folder(tmp_path)
    assert data_folder(tmp_path, files=False) == (tmp_path / "train").resolve()


# --- passes -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # webdataset leaves files open
@pytest.mark.parametrize(
    "name",
    [
        *(
            "pytorch",
            "pytorch+opencv",
            "dali",
            "dali-by-hand",
            "dali-cpu",
            "torchvision",
        ),
        *("pil-alone", "opencv-alone", "loose", *peers.PEERS),
    ],
)
def test_a_pass_over_images_has_as_many_for_ours_and_for_others(
    name: str, pictures: Path, tmp_path: Path
) -> None:
    if name.startswith("dali"):
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    if name in peers.PEERS:
        pytest.importorskip(name, reason=f"without {peers.PEERS[name].package}")
    ranks = (
        [(0, 2), (1, 2)]
        if name in ("pytorch", "dali", "dali-cpu", "torchvision")
        else [(0, 1)]
    )
    for rank, size in ranks:
        world: Any = SimpleNamespace(rank=rank, size=size, device=torch.device("cpu"))
        window = "stretch" if name == "pytorch+opencv" else "random-resized"
        asked = Asked(
            medium="images", batch_size=8, image_size=32, workers=0, window=window
        )
        data = open_data(data_folder(pictures), "images")
        with opened(asked, name, data, world, tmp_path) as (epochs, _):
            for epoch in range(2):
                assert sum(epochs(epoch)) == 72 // size // 8 * 8


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("pytorch", {"batches": 10}, "72 files and 80 are asked for"),
        ("torchvision", {"batches": 10}, "72 files and 80 are asked for"),
        ("dali", {"delay_s": 0.1}, "cannot be slowed down"),
        ("pytorch+opencv", {"window": "center"}, "stretches the whole image"),
        ("webdataset", {}, "crops as in training"),
    ],
)
def test_a_pass_that_cannot_be(
    name: str, asked: dict[str, Any], said: str, pictures: Path, tmp_path: Path
) -> None:
    world: Any = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    small: dict[str, Any] = {
        "medium": "images",
        "batch_size": 8,
        "image_size": 32,
        "workers": 0,
    }
    whole = Asked(**small | asked)
    with (
        pytest.raises(UserError, match=said),
        opened(whole, name, open_data(pictures / "train", "images"), world, tmp_path),
    ):
        pass


def test_a_library_that_is_not_installed_is_named(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.PEERS, "nobody", peers.PEERS["litdata"])
    monkeypatch.setattr(_loaders, "PEERS", ("nobody",))
    world: Any = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    asked = Asked(
        medium="images", batch_size=8, image_size=32, workers=0, window="random-resized"
    )
    data = open_data(pictures / "train", "images")
    with (
        pytest.raises(Absent, match="--loaders nobody: No module named 'nobody'"),
        opened(asked, "nobody", data, world, tmp_path),
    ):
        pass


def test_waits_are_counted_apart_from_steps_and_from_the_first_batch() -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def batches() -> Iterator[int]:
        for late_s in (4.0, 0.5, 0.0, 0.25):
            sleep(late_s)
            yield 4
        sleep(9.0)  # the end of an epoch is nobody's wait

    counts: list[int] = []
    found, steps = consume(
        batches(),
        step_s=2.0,
        wait=lambda: sleep(0.125),
        count=counts.append,
        clock=lambda: now,
        sleep=sleep,
    )
    assert (steps, counts) == (4, [4] * 4)
    assert found == Pass(
        first_batch_s=4.125,
        total_s=4 * 2.0 + 0.75 + 3 * 0.125,
        waited_s=0.75 + 3 * 0.125,
    )


def brief(folder: Path, least_s: float) -> Suite:
    """The suite, with windows that take no more than `least_s` and the pass that is under way."""
    script = folder / "brief.py"
    script.write_text(
        f"from benchmarks import loader; loader.LEAST_S = {least_s}; "
        "loader.measuring(loader.Loader, loader.measure)"
    )

    def command(*asked: Any) -> list[str]:
        *words, _, _, settings, point, folder = SUITE.command(
            *asked
        )  # between them -m benchmarks.loader
        return [*words, str(script), settings, point, folder]

    return replace(SUITE, command=command)


@pytest.mark.usefixtures("prompt_ran")
@pytest.mark.parametrize("loader", ["torchvision", "dali-gpu"])
def test_two_ranks_pass_over_the_files_and_a_loader_that_cannot_is_a_row(
    loader: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.loader.SUITE", brief(tmp_path, 0.5))
    words = f"--loaders {loader} --gpus 2 --image-size 32 --batch-size 8 --workers 1".split()
    where = ["--data", str(pictures), "--output", str(tmp_path / "out")]
    code = bench.main(["loader", *where, *words])
    (row,) = results(tmp_path / "out")
    if loader == "dali-gpu":
        assert (code, row["status"]) == (1, "failed")
        assert "dali-gpu needs an NVIDIA GPU" in row["error"], (
            "what the rank said, not what torchrun says"
        )
        return
    assert (code, row["status"]) == (0, "ok"), row["error"]
    figures = row["figures"]
    assert figures["samples"] == 64
    assert figures["files"] == figures["unique_files"] == 72
    assert figures["pass_s"] == pytest.approx(72 / figures["rate"])
    assert figures["per_gpu"] == pytest.approx(figures["rate"] / 2)
    assert row["spread"]["rate"]["n"] == row["spread"]["pass_s"]["n"] == 3
    assert "72 files, 72 of them unique" in (tmp_path / "out" / "table.md").read_text()
    assert (tmp_path / "out" / "plots" / "rate.png").is_file()


@pytest.mark.usefixtures("prompt_ran")
def test_steps_delays_and_cold_files(pictures: Path, tmp_path: Path) -> None:
    """Reads in the consumer's thread are waited for; small sets are passed over for 20 batches."""
    settings = Loader(
        data=pictures,
        loaders=("torchvision", "dali-by-hand"),
        delays=(10.0,),
        batch_size=2,
        image_size=32,
        workers=(4,),
        step_ms=20.0,
        steps=24,
        cold=True,
        output=tmp_path / "out",
    )
    if not _loaders.find_spec("nvidia.dali"):
        settings = settings.model_copy(update={"loaders": ("torchvision",)})
    ours, *others = run(
        brief(tmp_path, 0.0), settings, tmp_path / "out", lambda *_: None
    )
    for row in (ours, *others):
        figures = row["figures"]
        assert row["status"] == "ok", row["error"]
        assert figures["floor_s"] == pytest.approx(0.48) and figures["steps"] == 72
        assert figures["total_s"] >= figures["floor_s"] + figures["waited_s"]
        assert row["spread"]["total_s"]["n"] == 3
    assert ours["figures"]["cold"] > 0 and "cold" not in others[0]["figures"]
    assert ours["figures"]["first_batch_s"] >= 0.010
    # twenty-four batches, three of them ahead of the consumer: twenty times two reads
    assert all(row["figures"]["waited_s"] >= 20 * 2 * 0.010 for row in others)


def test_a_store_that_is_dropped_is_not_in_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", synced)
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    assert loader.dropped(tmp_path) == 10_000
    file = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        os.preadv(file, [bytearray(10)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return  # it would have to be read from the disk
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("the file system does not say what is cached")
    finally:
        os.close(file)
    pytest.fail("it is still in the page cache")


@pytest.mark.parametrize(("longest_s", "taken"), [(60.0, 3), (1e-9, 1)])
def test_a_cold_pass_ends_with_its_time(
    longest_s: float, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1200)
    counts = iter([0, 400 * taken])
    monkeypatch.setattr(loader, "disk_bytes", lambda: next(counts))
    world: Any = SimpleNamespace(synchronise=lambda: None)
    _, share = loader.cold(
        lambda epoch, batches=3: iter([4] * batches), tmp_path, world, longest_s, 12
    )
    assert share == 1, "a third of the store a batch"


def test_pixels_are_compared_with_pils(pictures: Path) -> None:
    files = [str(path) for path in sorted(pictures.rglob("*.jpg"))]
    assert loader.compared("pil", files) == {"mad": 0.0, "worst": 0.0}
    other = loader.compared("opencv", files)
    assert 0 <= other["mad"] <= other["worst"] < 2


# --- what is told -------------------------------------------------------------------------------------------


def row(
    name: str,
    gpus: int,
    rate: float,
    *,
    files: int = 1000,
    links: int = 10,
    status: str = "ok",
) -> dict[str, Any]:
    figures = {
        "rate": rate,
        "pass_s": files / rate,
        "files": files,
        "unique_files": links,
        "samples": files,
    }
    return {
        "point": {"loader": name, "gpus": gpus},
        "status": status,
        "figures": figures if status == "ok" else {},
        "spread": {},
    }


def test_rows_are_compared_with_pytorch_and_with_dalis_own_reader_apart() -> None:
    """The fastest loop by hand is what a speed-up is over."""
    named = {
        "pytorch": 10.0,
        "pytorch+decord": 20.0,
        "dali": 80.0,
        "dali-experimental": 40.0,
        "nvdec": 100.0,
    }
    rows = [row(name, 1, rate) for name, rate in named.items()]
    ratios = [
        (one["figures"]["speed_up"], one["figures"]["of_dali"]) for one in derive(rows)
    ]
    assert ratios == [
        pytest.approx(pair)
        for pair in ((1 / 2, 1 / 8), (1, 1 / 4), (4, 1), (2, 1 / 2), (5, 10 / 8))
    ]
    assert "speed_up" not in rows[0]["figures"]
    failed, other = derive(
        [row("pytorch", 2, 100.0, status="failed"), row("dali-gpu", 2, 1800.0)]
    )
    assert failed["figures"] == {}
    assert {other["figures"][name] for name in ("speed_up", "scaling", "of_dali")} == {
        None
    }
    assert (
        conclude([failed, other])[0]
        == "2 processes: dali-gpu passes over all files in 0.556 s."
    )


def test_scaling_is_over_one_gpu() -> None:
    one, two = derive([row("dali-gpu", 1, 1000.0), row("dali-gpu", 2, 1800.0)])
    assert (one["figures"]["scaling"], two["figures"]["scaling"]) == (
        None,
        pytest.approx(0.9),
    )


def test_a_conclusion_is_over_the_baselines_that_it_names() -> None:
    """The fastest one may have been unsteady; then no conclusion is drawn from it."""
    pytorch, dali, nvdec = rows = derive(
        [row("pytorch", 1, 10.0), row("dali", 1, 80.0), row("nvdec", 1, 100.0)]
    )
    begin = "1 process: nvdec passes over all files in 10 s"
    assert conclude([pytorch, nvdec]) == [f"{begin}, 10.0 times as fast as pytorch."]
    nvdec["figures"] |= {"frames_per_s": 16_000.0, "fallback_kinds": "mjpeg in avi"}
    assert conclude([pytorch, dali, nvdec]) == [
        f"{begin} (16,000 frames/s), 10.0 times as fast as pytorch and 1.2 times as fast as dali."
    ]
    assert remarks(rows) == [
        "1,000 files, 10 of them unique: the others are links to these.",
        "nvdec: clips of some files were decoded by pyav (mjpeg in avi).",
    ]
    beside = [*rows, row("nvdec-alone", 1, 100.0), row("decord-alone", 1, 25.0)]
    assert (
        conclude(beside)[1]
        == "nvdec gives 80% of what nvdec-alone and decord-alone decode together."
    )


def test_who_keeps_up_with_the_steps() -> None:
    rows = []
    for name, delay, waited_s in (
        ("pytorch", 10, 1.1),
        ("dali-fed", 10, 0.25),
        ("dali-fed", 50, 0.5),
    ):
        one = row(name, 1, 100.0)
        one["point"]["delay_ms"] = delay
        one["figures"] |= {"floor_s": 10.0, "waited_s": waited_s}
        rows.append(one)
    assert conclude([*rows, row("dali-cpu", 1, 1.0, status="failed")])[1:] == [
        "10 ms a read, steps of 10 s in all: kept by dali-fed 0.25 s; lost by pytorch 1.10 s.",
        "50 ms a read, steps of 10 s in all: kept by none; lost by dali-fed 0.50 s.",
        "Kept: waited for at most 3% of that time, the first batch apart.",
    ]
    assert conclude([]) == []


# --- lists --------------------------------------------------------------------------------------------------

LINES = 5_000


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("list") / "data" / "train.csv"
    _lists.write_list(path, LINES)
    return path


@pytest.mark.parametrize("name", [name for name in _lists.METHODS if name != "pandas"])
def test_every_way_gives_each_line_once(
    name: str, listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a look at processes forked from one that has imported all of this takes a tenth of a second each
    monkeypatch.setattr(_lists, "WINDOWS", 4)
    monkeypatch.setattr(_lists, "EVERY_S", 5.0)
    epoch = (
        _lists.ours(listed, listed.parents[1] / "cache", batch_size=50, workers=2)
        if name == _lists.OURS
        else _lists.hand_made(
            lists_by_hand.DATASETS[name](listed), batch_size=50, workers=2
        )
    )
    watch = _lists.Watch(reserve_gib=0.0)
    samples, total, rates = _lists.passed(
        epoch, lines=LINES, batch_size=50, most_s=60.0, watch=watch
    )
    watch.close()
    assert (samples, total, len(rates)) == (
        LINES,
        _lists.expected_sum(LINES),
        _lists.WINDOWS,
    )
    assert len(watch.peaks) >= 2, "other tests' processes may not have ended yet"
    assert all(peak["own"] > 0.1 for peak in watch.peaks.values())


@pytest.mark.parametrize("short", [False, True])
def test_an_epoch_is_broken_off(short: bool, listed: Path) -> None:
    """When it takes too long, or where memory is short."""
    epoch = _lists.hand_made(lists_by_hand.PythonList(listed), batch_size=50, workers=1)
    watch = _lists.Watch(reserve_gib=1e6 if short else 0.0)
    most_s = 60.0 if short else 0.0
    samples, *_ = _lists.passed(
        epoch, lines=LINES, batch_size=50, most_s=most_s, watch=watch
    )
    watch.close()
    assert (samples, watch.short) == (LINES // _lists.WINDOWS, short)


def test_memory_is_what_the_kernel_says() -> None:
    content = b"x" * (
        96 << 20
    )  # made first: an allocator that was told to keeps what is freed
    before = _lists.rollup(os.getpid())
    own = mmap.mmap(
        -1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # not from freed memory
    own.write(memoryview(content)[: 64 << 20])
    between = _lists.rollup(os.getpid())
    shared = mmap.mmap(-1, 96 << 20)
    shared.write(content)
    after = _lists.rollup(os.getpid())
    assert between["Private_Dirty"] - before["Private_Dirty"] == pytest.approx(
        64, abs=12
    )
    assert after["Pss_Shmem"] - between["Pss_Shmem"] == pytest.approx(96, abs=12)


def test_growth_is_over_an_empty_worker_and_the_bound_is_told() -> None:
    workers = [
        {pid: {"own": own, "shared": 0.0}}
        for pid, own in enumerate((30.0, 12.0, 9.0, 11.0))
    ]
    grown = _lists.growth({**workers[0], **workers[1]}, {**workers[2], **workers[3]})
    assert grown["own"] == [20.0, 2.0]
    rows: Any = [
        {
            "point": {"loader": name, "workers": count},
            "figures": {"own_mib": own, "shared_mib": 0.5},
        }
        for name, own, count in (
            ("ours", 2.0, 1),
            ("python-list", 900.0, 1),
            ("ours", 20.0, 16),
        )
    ]
    begin = "Own and shared memory of a worker over an empty one, --workers"
    assert _lists.remarks(rows) == [
        f"{begin} 1: ours 2.5 MiB keeps the bound of 20 MiB.",
        f"{begin} 16: ours 20.5 MiB does not keep the bound of 20 MiB.",
    ]


def test_a_point_of_a_list_has_all_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lists, "prepare_process", lambda: None)
    settings = Loader(lines=2_000, workers=(2,), loaders=("ours",))
    (point,) = points(settings)
    found = loader.measure(settings, point, tmp_path / "runs" / "point")
    assert found.error is None and found.spread["rate"]["n"] >= 3
    assert {"rate", *(column.key for column in _lists.COLUMNS)} <= {*found.figures}


# --- links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_set_of_links_keeps_the_classes(
    symbolic: bool, pictures: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    words = [
        str(source),
        str(tmp_path / "made"),
        "--count",
        "100",
        *(["--symbolic"] * symbolic),
    ]
    assert link_set.main(words) == 0
    made = sorted((tmp_path / "made").rglob("*.jpg"))
    assert len(made) == 100
    assert {*Counter(path.parent.name for path in made).values()} == {33, 34}
    assert all(path.is_symlink() is symbolic for path in made)
    split = open_data(tmp_path / "made", "images")
    assert loader._different(split) == 72
    shares = Counter(
        path.resolve() if symbolic else path.stat().st_ino for path in made
    )
    assert set(shares.values()) == {1, 2}
    for path in made:
        assert path.samefile(
            source / "train" / path.parent.name / path.name.partition("-")[2]
        )


def test_a_set_of_links_refuses_in_one_line(
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
