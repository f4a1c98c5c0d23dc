"""What counts as growth, a planted leak, and one run of the suite `soak`."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import signal
import subprocess
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from benchmarks import _leaks, soak
from benchmarks._leaks import verdict
from benchmarks._suite import Measured, run
from benchmarks.soak import Soak
from contracts import UserError
from engine.distributed import ProcessWorld
from loaders import open_loader
from report.hardware import LOADS
from scripts import bench
from tests.conformance.plants import Leaks
from tests.end_to_end.runs import draw
from tests.unit.video_files import make

RNG = np.random.default_rng(0)
EPOCHS = np.arange(26.0)


def told(values: Any, name: str = "host_mib") -> tuple[list[str], list[str]]:
    return verdict(
        {"rate": [100.0] * len(values), name: list(values)}, max_mib_an_epoch=0.5
    )


@pytest.mark.parametrize(
    "values",
    [
        400 + RNG.normal(0, 8, 26),  # noise
        400 + 0.3 * EPOCHS,  # less than is allowed
        400 - 2.0 * EPOCHS,
        400 + 40 * (1 - np.exp(-EPOCHS / 4)),  # a pool that fills
        np.where(EPOCHS > 12, 460.0, 400.0),  # one jump
        400 + 128.0 * (EPOCHS > 13) + 24.0 * (EPOCHS > 18),  # two, late
    ],
    ids=["noise", "little", "falls", "settles", "jumps", "steps"],
)
def test_what_is_no_leak(values: Any) -> None:
    assert told(values)[0] == []


GRANULES = 400 + 2.0 * (EPOCHS // 2)  # a device gives memory in pieces of 2 MiB
LEAKS: dict[str, tuple[Any, str, str]] = {
    "through noise": (
        400 + EPOCHS + RNG.normal(0, 1, 26),
        "host_mib",
        "host memory: +",
    ),
    "of a device": (
        400 + EPOCHS + RNG.normal(0, 1, 26),
        "device_mib",
        f"{_leaks.MIB['device_mib']}: +",
    ),
    "in granules": (GRANULES, "device_mib", "allowed 0.5"),
    "in large granules": (400 + 16.0 * (EPOCHS // 5), "device_mib", ""),
    "few large steps": (
        400 + 100.0 * (EPOCHS // 7),
        "host_mib",
        "rose in 3 steps by 300 MiB, of which 256 may be",
    ),
    "few huge steps": (400 + 1024.0 * (np.arange(32.0) // 9), "device_mib", ""),
    "few threads": (20 + 2.0 * (EPOCHS // 7), "threads", ""),
    "threads": (20 + EPOCHS, "threads", ""),
    "processes": (20 + EPOCHS, "processes", ""),
    "a file every other epoch": (20 + EPOCHS // 2, "files", "open files: +0.5"),
}


@pytest.mark.parametrize(("values", "name", "said"), LEAKS.values(), ids=LEAKS)
def test_a_leak_is_seen(values: Any, name: str, said: str) -> None:
    (line,) = told(values, name)[0]
    assert said in line


def test_a_file_in_all_is_no_leak() -> None:
    assert told(np.where(EPOCHS > 3, 21, 20), "files")[0] == []


@pytest.mark.parametrize("epochs", [10, 13, 26])
def test_a_single_step_is_never_a_leak(epochs: int) -> None:
    for at in range(1, epochs):
        leaks, rose = told(np.where(np.arange(epochs) >= at, 1424.0, 400.0))
        assert leaks == [] and rose == ["host memory rose in 1 step by 1,024 MiB"], at


def measured(
    data: Path, folder: Path, mib: int, **changes: Any
) -> tuple[str | None, dict[str, Any]]:
    folder.mkdir()
    settings = Soak(
        **{
            "data": data,
            "epochs": 18,
            "batch_size": 8,
            "image_size": 32,
            "workers": 1,
            **changes,
        }
    )
    (point,) = soak.points(settings.model_copy(update={"loaders": ("synthetic",)}))
    found = soak.measure(
        settings,
        point,
        folder,
        open_=(
            lambda name, feed: Leaks(feed, partial(open_loader, name), mib, files=True)
        )
        if mib
        else None,
    )
    return found.error, found.figures


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return draw(tmp_path / "data", classes=("red", "blue"), train=12, val=1)


def freed(ready: Any, block: bool) -> None:
    """In a process of its own: 64 MiB are allocated and freed, and its heap keeps them."""
    if block:
        signal.pthread_sigmask(signal.SIG_BLOCK, {soak.TRIM})
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    size = 100_000  # less than malloc maps on its own
    blocks = [libc.malloc(size) for _ in range((64 << 20) // size)]
    for one in blocks:
        ctypes.memset(one, 1, size)
    libc.malloc(size)  # above them: the heap's end cannot move down
    for one in blocks:
        libc.free(one)
    ready.set()
    time.sleep(600)


@contextmanager
def has_freed(*, block: bool = False) -> Iterator[int]:
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    soak.host_mib()  # or the child would also give back what this process has freed
    child = fork.Process(target=freed, args=(ready, block), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks
        child.start()
    assert ready.wait(30) and child.pid
    try:
        yield child.pid
    finally:
        child.kill()
        child.join()


def held_mib(pid: int) -> float:
    return (
        float(
            psutil.Process(pid).memory_info().rss
            - psutil.Process(pid).memory_info().shared
        )
        / 2**20
    )


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
def test_what_children_have_freed_is_not_counted() -> None:
    other = subprocess.Popen(
        ["sleep", "600"]
    )  # without our handler the signal would end it
    try:
        with soak.trimming(), has_freed() as child:
            before = held_mib(child)
            soak.host_mib()
            assert before - held_mib(child) == pytest.approx(64, abs=4)
        assert other.poll() is None
        with has_freed() as child:  # it may have a use for the signal
            before = held_mib(child)
            soak.host_mib()
            assert held_mib(child) == pytest.approx(before, abs=4)
    finally:
        other.kill()
        other.wait()


def test_garbage_is_collected_before_a_reading() -> None:
    garbage: Any = type("Garbage", (), {})()
    garbage.kept = garbage
    gone = weakref.ref(garbage)
    gc.disable()
    try:
        del garbage
        assert gone() is not None
        soak.reading(torch.device("cpu"))
        assert gone() is None
    finally:
        gc.enable()


def test_a_child_that_does_not_answer_is_read_as_it_is() -> None:
    with soak.trimming(), has_freed(block=True) as child:
        before, began = held_mib(child), time.monotonic()
        soak.host_mib()
        assert held_mib(child) == pytest.approx(before, abs=4)
        assert soak.TRIM_S <= time.monotonic() - began < 10 * soak.TRIM_S


@pytest.fixture
def few_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each reading collects garbage: among what it makes, not among all that this process has imported."""
    unfreeze = gc.unfreeze
    gc.freeze()
    monkeypatch.setattr(
        gc, "unfreeze", lambda: None
    )  # system/processes.py does, after each fork
    yield
    unfreeze()


@pytest.mark.usefixtures("few_objects")
def test_a_planted_leak_of_1_mib_and_a_file_an_epoch_is_caught(
    data: Path, tmp_path: Path
) -> None:
    error, figures = measured(data, tmp_path / "leaks", 1)
    assert (
        error
        and "host memory: +1." in error
        and "open files: +1.00 an epoch" in error
        and error.endswith("--warm-epochs 167 tells")
    )
    assert figures["host_mib_an_epoch"] == pytest.approx(1.0, abs=0.3)
    assert (
        len(json.loads((tmp_path / "leaks" / "series.json").read_text())["host_mib"])
        == 18
    )
    error, figures = measured(data, tmp_path / "flat", 0)
    assert (error, figures["verdict"]) == (None, "flat")


@pytest.fixture
def videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = make(tmp_path / "a.mp4", frames=8, size=(48, 64), gop=4)
    (tmp_path / "videos" / "train" / "x").mkdir(parents=True)
    for i in range(8):
        (tmp_path / "videos" / "train" / "x" / f"{i}.mp4").symlink_to(made)
    return tmp_path / "videos"


@pytest.mark.usefixtures("few_objects")
def test_a_planted_leak_beside_clips_is_caught(videos: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"task": "video", "batch_size": 4, "clip_frames": 2}
    error, figures = measured(videos, tmp_path / "leaks", 1, **asked)
    assert (
        error and "host memory: +1." in error and "open files: +1.00 an epoch" in error
    )
    assert figures["unit"] == "clip/s"


def test_points_of_videos(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("loaders.installed", lambda package: package == "decord")
    found = soak.points(Soak(task="video", data=videos, clip_stride=2))
    assert [point.pop("loader") for point in found] == ["pyav", "decord"]
    assert found[0] == {
        "batch_size": 8,
        "image_size": 224,
        "clip_frames": 16,
        "clip_stride": 2,
        "clips": 0,
    }
    (image,) = soak.points(Soak(data=videos, loaders=("synthetic",)))
    assert image == {"loader": "synthetic", "batch_size": 64, "image_size": 224}
    with pytest.raises(UserError, match="got 'torchvision', which is unknown"):
        soak.points(Soak(task="video", data=videos, loaders=("torchvision",)))


def test_videos_of_a_list(videos: Path, tmp_path: Path) -> None:
    (videos / "train.csv").write_text(
        "".join(f"train/x/{i}.mp4 {i % 2}\n" for i in range(3))
    )
    settings = Soak(
        task="video", data=videos, loaders=("pyav",), batch_size=1, workers=1
    )
    (point,) = soak.points(settings)
    feed = soak.feed(settings, point, ProcessWorld(torch.device("cpu")))
    assert (len(feed.columns), feed.columns.classes) == (3, ("0", "1")), (
        "a list goes before a folder"
    )


def test_what_leaks_fails_and_keeps_its_figures(tmp_path: Path) -> None:
    suite = replace(
        soak.SUITE,
        command=lambda *_: ["true"],
        read=lambda *_: Measured(figures={"rate": 1.0}, error="it grows"),
    )
    (tmp_path / "data").mkdir()
    (row,) = run(
        suite,
        Soak(data=tmp_path / "data", loaders=("synthetic",)),
        tmp_path / "out",
        lambda *_: None,
    )
    # bench's exit code is then 1
    assert (row["status"], row["error"], row["figures"]) == (
        "failed",
        "it grows",
        {"rate": 1.0},
    )


def test_too_few_epochs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves 2 epochs to judge"):
        soak.points(Soak(data=tmp_path, epochs=6))
    with pytest.raises(UserError, match="--data is missing"):
        soak.points(Soak())


@pytest.mark.usefixtures("prompt_ran")
def test_a_short_soak_ends_as_a_table_curves_and_hparams(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = tmp_path / "out"
    flags = "--loaders torchvision --epochs 14 --batch-size 8 --image-size 32 --workers 1 --max-mib-an-epoch 20"
    assert (
        bench.main(["soak", "--data", str(data), *flags.split(), "--output", str(out)])
        == 0
    )
    (row,) = [
        json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()
    ]
    assert (row["status"], row["figures"]["processes"], row["spread"]["rate"]["n"]) == (
        "ok",
        2,
        10,
    )
    assert set(LOADS) <= set(row["figures"])
    assert {path.name for path in (out / "plots").glob("*.png")} == {
        "host.png",
        "rate.png",
    }
    assert "| flat |" in (out / "table.md").read_text()
    events = EventAccumulator(str(out / row["folder"])).Reload()
    assert len(events.Scalars("epochs/host_mib")) == 14
    assert len(events.Scalars("soak/rate")) == 1
    assert {
        "_hparams_/experiment",
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
    } <= set(events.summary_metadata)
    assert "custom_scalars__config__" in events.summary_metadata
