"""The suite `sources`: stores of the same images, cold passes, other libraries' rows, and what is told."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import sources
from benchmarks._suite import Absent, Row
from benchmarks.baselines import peers
from contracts import UserError
from tests.conformance import scenes
from tests.disk import synced
from tests.unit.folders import fill

# a test has one core where several run side by side
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
IMAGES = 12


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sources, "prepare_process", lambda: torch.device("cpu"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = scenes.small(IMAGES).values()
    fill(tmp_path / "data", {f"{'ab'[place % 2]}/{place}.jpg": each for place, each in enumerate(images)})
    return tmp_path / "data"


def settings(data: Path, **asked: Any) -> sources.Sources:
    same = {"workers": (1,), "batch_size": 4, "image_size": 16, "seconds": 1e-6}
    return sources.Sources(data=data, **{**same, "loader": "torchvision", **asked})


def test_points_have_all_figures(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One store behind a network, one packed as FFCV does, and loose files by hand."""
    pytest.importorskip("lmdb", reason="without lmdb")
    trained: list[int] = []
    monkeypatch.setattr(sources, "training", lambda *_: lambda batch: trained.append(batch.delivered))
    asked = settings(data, stores=("lmdb",), peers=("pytorch",))
    points = sources.points(asked)
    assert [(point["store"], point["loader"]) for point in points] == [
        ("lmdb", "torchvision"),
        ("tar", "torchvision+pil"),
        ("tar", "torchvision"),
        ("folder", "pytorch"),
        (sources.SMALLER, "torchvision"),
    ]
    cold = {"images", "cold", "from_disk", "rate", "per_core"}
    wanted = {0: {*cold, "train", "train_cold"}, 3: {"images", "rate", "per_core"}, 4: cold}
    rows = []
    for place, names in wanted.items():
        found = sources.measure(asked, points[place], data.parent / "runs" / "point")
        assert {*found.figures} == names and found.figures["images"] == IMAGES
        assert all(value is None or value >= 0 for value in found.figures.values())  # type: ignore[operator]
        assert found.figures["rate"] > 0 and found.spread["rate"]["n"] == 3  # type: ignore[operator]
        rows.append({"point": points[place], "figures": found.figures})
    assert set(trained) == {4} and len(trained) > 2 * IMAGES // 4
    assert [path.name for path in sources.plots(rows, data.parent)] == ["rates.png"]


def test_a_store_that_is_dropped_is_not_in_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", synced)
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    assert sources.dropped(tmp_path) == 10_000
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


class World:
    def synchronise(self) -> None:
        pass


def test_windows_go_on_over_passes_and_a_cold_one_ends_with_its_time(tmp_path: Path) -> None:
    asked: list[tuple[int, ...]] = []

    def epochs(*which: int) -> Iterator[int]:
        asked.append(which)
        for _ in range(which[1] if which[1:] else 3):
            time.sleep(0.01)
            yield 4

    world: Any = World()
    rates = sources.warm(epochs, 1e-6, world, least=2)
    assert len(rates) == 3 and all(0 < rate <= 400 for rate in rates)
    assert asked == [(1,), (2,), (3,)]  # eight batches, of which the first two are not counted
    (tmp_path / "a").write_bytes(b"x" * 1200)
    for longest_s, taken in ((60.0, 3), (1e-6, 1)):
        counts = iter([0, 400 * taken])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "disk_bytes", lambda counts=counts: next(counts))
            _, share = sources.cold(epochs, tmp_path, world, longest_s=longest_s, images=12)
        assert share == 1, "a third of the store a batch"


def test_a_library_that_is_not_installed_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "nobody", peers.PEERS["litdata"])
    point = {"store": "its own", "loader": "nobody", "workers": 1, "batch_size": 4, "image_size": 16}
    monkeypatch.setattr(sources, "PEERS", ("nobody",))
    with pytest.raises(Absent, match="--peers nobody: No module named 'nobody'"):
        sources.measure(settings(data), point, data.parent / "runs" / "point")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves files open
@pytest.mark.parametrize("name", peers.PEERS)
def test_others_give_each_image_once(name: str, data: Path) -> None:
    pytest.importorskip(name, reason=f"without {peers.PEERS[name].package}")
    files = [(str(path), 0) for path in sorted(data.rglob("*.jpg"))]
    how = {"size": 16, "batch_size": 4, "workers": 0, "pinned": False}
    loader = peers.loader(name, data.parent, files, **how)  # type: ignore[arg-type]
    for _ in range(2):
        batches = list(peers.batches(loader, torch.device("cpu")))
        assert sum(map(len, batches)) == IMAGES and batches[0].shape[1:] == (3, 16, 16)


def row(loader: str, rate: float, store: str = "tar") -> Row:
    return {
        "point": {"store": store, "loader": loader},
        "status": "ok",
        "figures": {"rate": rate, "images": 9},
    }


def test_what_is_told() -> None:
    rows = [
        row("torchvision+pil", 300.0),
        row("torchvision", 600.0),
        row("webdataset", 200.0, "its own"),
        row("torchvision", 5_000.0, sources.SMALLER),
    ]
    assert sources.conclude(rows) == [
        "torchvision+pil: 1.50 x webdataset.",
        "torchvision: 3.00 x webdataset.",
    ]
    assert sources.remarks(rows) == [
        "9 images in every store.",
        "FFCV publishes 31,278 img/s on 96 cores, 326 a core, packed alike.",
    ]


def test_mistakes(data: Path) -> None:
    with pytest.raises(UserError, match="--stores got 'zip'"):
        sources.points(settings(data, stores=("zip",)))
    with pytest.raises(UserError, match="--peers got 'ffcv'"):
        sources.points(settings(data, peers=("ffcv",)))
