"""The suite `readers`, with a plant."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import readers
from benchmarks._decoders import AUGMENTED, OTHERS, Files, parts_of
from benchmarks._suite import Row, run
from benchmarks.readers import OF_PNG, Readers, between, compare, conclude, derive, files_of, points, remarks
from contracts import UserError
from loaders._workers import PART
from loaders.images.decoders import READERS
from tests.end_to_end.runs import draw


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return draw(tmp_path / "data", classes=("blue", "red"), train=24, val=1)


@pytest.fixture
def files(data: Path) -> Files:
    return files_of(Readers(data=data))


def test_points(tmp_path: Path) -> None:
    found = points(Readers(data=tmp_path, processes=(1, 4)))
    assert {point["reader"] for point in found} == {*READERS, *OTHERS, "dali"}
    assert {point["reader"] for point in found if point["task"] == "entropy"} == {"nvimgcodec"}
    assert len(points(Readers(data=tmp_path, readers=("pil", "dali"), tasks=("train",), processes=(2,)))) == 2
    with pytest.raises(UserError, match=r"--readers got 'pill' \(did you mean pil"):
        points(Readers(data=tmp_path, readers=("pill",)))
    with pytest.raises(UserError, match="name one with"):
        points(Readers(data=tmp_path / "nowhere"))


def test_only_plain_jpegs_are_decoded_and_no_more_than_asked_for(data: Path) -> None:
    Image.new("RGB", (20, 20)).save(data / "train" / "red" / "no_jpeg.png")
    Image.new("CMYK", (20, 20)).save(data / "train" / "red" / "printed.jpg")
    assert len(files_of(Readers(data=data)).ids) == 48
    some = files_of(Readers(data=data, files=7))
    assert len(some.ids) == len(set(some.ids.tolist())) == len(some.bytes_of) == 7


def test_the_parts_are_the_plans_whatever_their_size(files: Files) -> None:
    first, second = itertools.islice(files.parts(0), 2)
    assert len(first) == PART and not np.array_equal(first.regions, second.regions)
    (again,) = itertools.islice(files.parts(0), 1)
    np.testing.assert_array_equal(first.windows, again.windows)
    assert len(next(files.parts(0, 512))) == 512
    (x0, y0, x1, y1) = files.regions("region", first)[0]
    assert files.regions("entropy", first)[0] == (x0, y1 - 1, x1, y1)
    assert files.regions("to-array", first)[0][:2] == (0, 0) and y0 < y1


@pytest.mark.parametrize(
    ("reader", "task"),
    [
        *((reader, "region") for reader in ("nvimgcodec", "torchvision", "opencv", "dali")),
        *(("torchvision", "to-pil"), ("opencv", "to-array"), ("dali", "to-array"), ("dali", "train")),
    ],
)
def test_what_is_told_of_the_pixels(files: Files, reader: str, task: Any) -> None:
    pytest.importorskip("nvidia.dali" if reader == "dali" else "cv2")
    found = compare(reader, task, files)
    assert found["compared"] == 48 and found["refused"] == 0
    assert found["worst"] < (0.5 if task == "train" else 1e-9)


@pytest.mark.parametrize("reader", OF_PNG)
def test_png_is_read_by_those_who_can(data: Path, reader: str) -> None:
    for place in range(5):
        pixels = np.random.default_rng(place).integers(0, 256, (70, 80, 3), np.uint8)
        Image.fromarray(pixels).save(data / "train" / "red" / f"{place}.png")
    settings = Readers(data=data, format="png", readers=(reader,), processes=(1,))
    assert [(point["format"], point["task"]) for point in points(settings)] == [
        ("png", task) for task in ("to-pil", "to-array", "region")
    ]
    found = compare(reader, "region", files_of(settings))
    assert found["refused"] == found["worst"] == 0 and found["compared"] == 5


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch has one thread, as in a reader's process: beside other work several wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("task", AUGMENTED)
def test_a_library_of_augmentations_follows_a_workers_work(files: Files, task: Any) -> None:
    """With numbers of the plan, so that all readers are followed by the same."""
    pytest.importorskip(AUGMENTED[task][0])
    found = compare("opencv", task, files)
    assert found["compared"] == 48 and found["worst"] < 0.5
    plain, changed = (next(parts_of("pil", name, files, seed=0)) for name in ("train", task))
    assert any((one != other).any() for one, other in zip(plain, changed, strict=True))


def test_a_reader_with_shifted_pixels_is_seen(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        OTHERS, "shifted", lambda: lambda data, region: np.roll(READERS["pil"]()(data, region), 1, axis=1)
    )
    for task in ("to-array", "region", "train"):
        found = compare("shifted", task, files)
        assert 1.0 < found["mad"] < found["worst"], task
    assert "shifted" not in READERS


def test_refused_files_are_counted_and_have_no_pixels(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses_small(data: bytes, region: tuple[int, int, int, int]) -> Any:
        if region[2] - region[0] < 65:
            raise ValueError("small")
        return READERS["pil"]()(data, region)

    monkeypatch.setitem(OTHERS, "choosy", lambda: refuses_small)
    small = sum(int(files.split.columns.width[i]) < 65 for i in next(files.parts(0)).ids)
    part: list[Any] = list(
        itertools.islice(itertools.chain.from_iterable(parts_of("choosy", "to-pil", files, seed=0)), PART)
    )
    assert sum(one is None for one in part) == small > 0
    found = compare("choosy", "to-array", files)
    assert found["mad"] == 0.0 and found["refused"] > 0 and found["refused"] + found["compared"] == 48


def test_a_rate_is_the_sum_of_each_processs_own() -> None:
    before, after = np.array([[0, 0.0, 0.0], [10, 5.0, 1.0]]), np.array([[100, 1.0, 0.5], [110, 7.0, 2.0]])
    window, cpu_us = between(before, after)
    assert window.samples == 200 and window.rate == pytest.approx(150.0) and cpu_us == pytest.approx(7500.0)
    with pytest.raises(UserError, match="refuses every file"):
        between(before, before + np.array([0, 1.0, 1.0]))


def row(
    reader: str, task: str, rate: float, *, processes: int = 1, worst: float | None = 0.0, status: str = "ok"
) -> Row:
    figures = {
        "rate": rate,
        "cpu_us": 1e6 * processes / rate,
        "files": 9,
        "size": 2048.0,
        "width": 4.0,
        "height": 3.0,
    }
    figures |= {} if worst is None else {"worst": worst}
    return {
        "point": {"reader": reader, "task": task, "processes": processes},
        "status": status,
        "figures": figures if status == "ok" else {},
    }


def test_against_pil_and_the_conclusions() -> None:
    rows = [
        row("pil", "train", 100),
        row("quick", "train", 150),
        row("wrong", "train", 900, worst=3.0),
        row("lost", "train", 1, status="absent"),
    ]
    rows += [
        row("pil", "train", 390, processes=4),
        row("quick", "train", 585, processes=4),
        row("quick", "region", 200),
    ]
    rows += [row("nvimgcodec", "region", 500), row("nvimgcodec", "entropy", 1000, worst=None)]
    found = derive(rows)
    assert [one["figures"].get("against_pil") for one in found] == [
        1.0,
        1.5,
        9.0,
        None,
        1.0,
        1.5,
        None,
        None,
        None,
    ]
    assert found[1]["figures"]["cpu_against_pil"] == pytest.approx(1.5)
    (files,), (train, region, floor) = remarks(found), conclude(found)
    assert files.startswith("Files: 9 plain JPEGs, mean 2 KiB and 4 x 3 pixels")
    assert (
        "quick is the fastest at 4 processes, 1.50x PIL; its rate is 3.9 times that of one process" in train
    )
    assert region.startswith("region: ") and "x PIL" not in region
    assert "takes nvimgcodec 1,000 of the region's 2,000 µs, 50%" in floor
    lost = [row("lost", "train", 1, status="absent")]
    assert conclude(lost) == remarks(lost) == []


@pytest.mark.usefixtures("prompt_ran")
def test_a_small_run_in_which_one_reader_is_absent(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simplejpeg.py").write_text("raise ImportError('planted')")  # found before an installed one
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = Readers(
        data=data,
        readers=("pil", "simplejpeg"),
        tasks=("to-array",),
        processes=(2,),
        seconds=0.3,
        warmup_s=0.1,
    )
    pil, absent = run(readers.SUITE, settings, tmp_path / "bench", lambda done, known, said: None)
    assert pil["status"] == "ok", pil
    figures = pil["figures"]
    assert figures["per_core"] * 2 == pytest.approx(figures["rate"]) and pil["spread"]["rate"]["n"] >= 3
    assert figures["mad"] == figures["worst"] == figures["refused"] == 0 and figures["cpu_us"] > 0
    assert (absent["status"], absent["error"]) == ("absent", "not installed (planted)")
    rows = derive([pil, absent])
    assert [path.name for path in readers.plots(rows[:1], tmp_path)] == ["bars-2.png"]
