"""What counts as growth, a planted leak, and one run of the suite `soak`."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from benchmarks import bench, soak, video_set
from benchmarks._suite import results
from benchmarks.soak import Soak, verdict
from saturate.contracts import Batch, UserError
from saturate.loaders import open_loader
from tests.conformance.plants import Leaks
from tests.end_to_end.runs import draw

RNG = np.random.default_rng(0)
EPOCHS = np.arange(26.0)


def told(values: Any, name: str = "host_mib") -> tuple[list[str], list[str]]:
    return verdict({"rate": [100.0] * len(values), name: list(values)}, 0.5)


FLAT: dict[str, tuple[Any, str]] = {
    "noise": (400 + RNG.normal(0, 8, 26), "host_mib"),
    "settles": (400 + 40 * (1 - np.exp(-EPOCHS / 4)), "host_mib"),  # a pool that fills
    "jumps": (np.where(EPOCHS > 12, 460.0, 400.0), "host_mib"),
    "two late steps": (400 + 128.0 * (EPOCHS > 13) + 24.0 * (EPOCHS > 18), "host_mib"),
    "a file in all": (np.where(EPOCHS > 3, 21, 20), "files"),
    "within noise": (400 + 0.8 * EPOCHS + 40.0 * (-1) ** EPOCHS, "host_mib"),
}
# a device gives memory in pieces of 2 MiB
LEAKS: dict[str, tuple[Any, str]] = {
    "through noise": (400 + EPOCHS + RNG.normal(0, 1, 26), "host_mib"),
    "in large granules": (400 + 16.0 * (EPOCHS // 5), "device_mib"),
    "few huge steps": (400 + 1024.0 * (np.arange(32.0) // 9), "device_mib"),
    "few threads": (20 + 2.0 * (EPOCHS // 7), "threads"),
    "a file every other epoch": (20 + EPOCHS // 2, "files"),
}


@pytest.mark.parametrize("name", [*FLAT, *LEAKS])
def test_what_is_a_leak(name: str) -> None:
    values, reading = (FLAT | LEAKS)[name]
    leaks, _ = told(values, reading)
    assert [line.split()[0] for line in leaks] == [reading] * (name in LEAKS)


@pytest.mark.parametrize("epochs", [10, 13, 26])
def test_a_single_step_is_never_a_leak(epochs: int) -> None:
    for at in range(1, epochs):
        found = told(np.where(np.arange(epochs) >= at, 1424.0, 400.0))
        assert found == ([], ["host_mib rose in 1 steps by 1,024"]), at


def leaked(
    data: Path, folder: Path, **changes: Any
) -> tuple[str | None, dict[str, Any]]:
    folder.mkdir()
    small = {"epochs": 18, "batch_size": 8, "image_size": 32, "workers": 1}
    settings = Soak(**{"data": data, "loaders": ("synthetic",), **small, **changes})
    (point,) = soak.points(settings)

    def leaking(name: str, feed: Any) -> Any:
        return Leaks(feed, partial(open_loader, name), files=True)

    found = soak.measure(settings, point, folder, open_=leaking)
    return found.error, found.figures


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return draw(tmp_path / "data", classes=("red", "blue"), train=12, val=1)


@pytest.fixture
def few_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each reading collects garbage: among what it makes, not among all that this process has imported."""
    unfreeze = gc.unfreeze
    gc.freeze()
    # system/processes.py does, after each fork
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    yield
    unfreeze()


@pytest.mark.usefixtures("few_objects")
def test_a_planted_leak_of_1_mib_and_a_file_an_epoch_is_caught(
    data: Path, tmp_path: Path
) -> None:
    error, figures = leaked(data, tmp_path / "leaks")
    assert error and "host_mib +" in error and "files +1.00 ± 0.00" in error
    assert figures["host_mib_an_epoch"] == pytest.approx(1.0, abs=0.3)
    series = json.loads((tmp_path / "leaks" / "series.json").read_text())
    assert len(series["host_mib"]) == 18


class Mixed(Leaks):
    """A real loader that shows a frame of the third epoch twice."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        for batch in self.inner.batches(epoch, first):
            if epoch == 2:
                batch.images[1, :, 3] = batch.images[1, :, 2]
            yield batch


@pytest.mark.usefixtures("few_objects")
def test_a_frame_that_is_another_one_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kind = video_set.Kind(frames=12, height=128, width=128, gop=5)
    video_set.write(tmp_path / "videos", 4, kind, progress=False)
    settings = Soak(
        data=tmp_path / "videos",
        task="video",
        loaders=("pyav",),
        numbered=True,
        epochs=14,
        batch_size=4,
        image_size=128,
        workers=1,
        clip_frames=8,
        beside=2,
        max_mib_an_epoch=50,
    )
    (point,) = soak.points(settings)

    def mixed(name: str, feed: Any) -> Any:
        return Mixed(feed, partial(open_loader, name))

    before = psutil.Process().children(recursive=True)
    for open_, wrong in ((open_loader, 0), (mixed, 1)):
        found = soak.measure(settings, point, tmp_path, open_=open_)
        figures, said = found.figures, found.error or ""
        assert (figures["wrong"], figures["frames"]) == (wrong, 14 * 4 * 8)
        # a worker and two neighbours beside this one and its own, of which none stays
        assert figures["processes"] == len(before) + 4
        assert {*psutil.Process().children(recursive=True)} <= {*before}
    number = int(re.findall(r"^epoch 2, video \d shows frames \[(\d+)\]", said)[0])
    assert f"[{number}], not [{number + 1}]" in said
    assert [path.name[:8] for path in tmp_path.glob("wrong-*.pt")] == ["wrong-2-"]


def test_a_neighbour_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "NEIGHBOUR", "")
    before = {*psutil.Process().children()}
    with (
        pytest.raises(UserError, match="--beside"),
        soak.neighbours(2, torch.device("cpu")),
    ):
        psutil.wait_procs({*psutil.Process().children()} - before, timeout=60)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": 6}, "--epochs less --warm-epochs is 2"),
        ({"numbered": True}, "--numbered: --task video"),
    ],
)
def test_mistakes(data: Path, changes: dict[str, Any], said: str) -> None:
    settings = Soak(data=data, loaders=("synthetic",), **changes)
    with pytest.raises(UserError, match=said):
        soak.points(settings)


@pytest.mark.usefixtures("prompt_ran")
def test_a_short_soak_ends_as_a_table(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    flags = (
        "--loaders torchvision --epochs 14 --batch-size 8 --image-size 32 --workers 1"
    )
    words = ["soak", "--data", str(data), "--output", str(tmp_path / "out")]
    assert bench.main([*words, *flags.split(), "--max-mib-an-epoch", "20"]) == 0
    (row,) = results(tmp_path / "out")
    assert (row["status"], row["figures"]["processes"]) == ("ok", 2)
    assert row["spread"]["rate"]["n"] == 10
    assert "| flat |" in (tmp_path / "out" / "table.md").read_text()
