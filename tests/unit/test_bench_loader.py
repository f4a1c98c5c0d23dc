"""The suite `loader`: its points, figures and conclusions, ranks in processes, and the set of links."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import clips, loader
from benchmarks._suite import results
from benchmarks.by_hand import nvdec, pytorch
from benchmarks.loader import BASELINE, SUITE, Loader, class_folders, conclude, derive, expanded, facts, settled, unique
from contracts import Mistake
from dataset.video_scan import read
from dataset.videos import CODECS, RECORD
from scripts import bench, link_set, video_set
from tests.end_to_end.runs import draw
from tests.unit.video_files import make, number


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """72 training images of three classes."""
    return draw(tmp_path_factory.mktemp("pictures") / "data", classes=("a", "b", "c"), train=24, val=1)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


# --- points ---------------------------------------------------------------------------------------------------------------------------


def test_auto_is_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "find_spec", lambda name: True)
    assert expanded("--x", ["auto"], 2) == [BASELINE, "torchvision", "dali-cpu", "dali-gpu", "dali-fed"]
    assert expanded("--x", ["auto"], 0, more=("dali-own",)) == ["dali-own", "torchvision", "dali-cpu", "dali-fed"]
    assert expanded("--x", ["dali-gpu", "auto"], 0)[0] == "dali-gpu", "what is named is tried"
    monkeypatch.setattr(loader, "find_spec", lambda name: None)
    assert expanded("--x", ["auto", "torchvision"], 2) == [BASELINE, "torchvision"]
    with pytest.raises(Mistake, match="--x got 'torchvison'"):
        expanded("--x", ["torchvison"], 0)


def test_auto_of_videos_is_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "find_spec", lambda name: True)
    on_gpu = expanded("--x", ["auto"], 1, task="video")
    assert on_gpu == ["pytorch", "pytorch+decord", "dali", "pyav", "decord", "torchcodec", "nvdec", "dali-video"]
    assert expanded("--x", ["auto"], 0, task="video") == [name for name in on_gpu[:6] if name != "dali"]
    monkeypatch.setattr(loader, "find_spec", lambda name: None)
    assert expanded("--x", ["auto", "nvdec+decord"], 1, task="video") == ["pytorch", "pyav", "nvdec+decord"]
    with pytest.raises(Mistake, match="--x got 'dali-gpu'"):
        expanded("--x", ["dali-gpu"], 1, task="video")


def test_defaults_are_the_tasks(pictures: Path) -> None:
    image, clip = (loader.points(Loader(data=pictures, task=task, loaders=("pytorch",)))[0] for task in ("classification", "video"))
    assert (image["batch_size"], image["image_size"], clip["batch_size"], clip["image_size"]) == (32, 640, 8, 224)
    assert "clip_frames" not in image and "window" not in clip
    (asked,) = loader.points(Loader(data=pictures, task="video", loaders=("pytorch",), image_size=64))
    assert json.loads(loader.command(Loader(data=pictures, task="video"), asked, pictures)[3])["batch_size"] == 8


def test_points_are_loaders_on_each_number_of_gpus(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    found = loader.points(Loader(data=pictures, loaders=("pytorch", "dali-gpu"), gpus=(1, 2), image_size=64))
    assert [(point["gpus"], point["loader"]) for point in found] == [(1, "pytorch"), (1, "dali-gpu"), (2, "pytorch"), (2, "dali-gpu")]
    assert {point["image_size"] for point in found} == {64}
    with pytest.raises(Mistake, match="--gpus 4: there are 2 GPUs here"):
        loader.points(Loader(data=pictures, gpus=(1, 4)))


def test_data_is_the_folder_or_its_train(pictures: Path) -> None:
    assert class_folders(pictures) == class_folders(pictures / "train") == (pictures / "train").resolve()
    for wrong in (None, pictures / "none"):
        with pytest.raises(Mistake, match="<class>"):
            class_folders(wrong)


def test_ranks_are_started_by_torchrun(pictures: Path, tmp_path: Path) -> None:
    settings = Loader(data=pictures)
    alone = loader.command(settings, {"loader": "pytorch", "gpus": 1}, tmp_path)
    assert alone[1:3] == ["-m", "benchmarks.loader"]
    assert json.loads(alone[3])["data"] == str(pictures.resolve() / "train")
    two = loader.command(settings, {"loader": "pytorch", "gpus": 2}, tmp_path)
    assert two[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert two[6:8] == ["-m", "benchmarks.loader"]


# --- figures --------------------------------------------------------------------------------------------------------------------------


def row(name: str, gpus: int, rate: float, *, files: int = 1000, links: int = 10, status: str = "ok") -> dict[str, Any]:
    figures = {"rate": rate, "pass_s": files / rate, "files": files, "unique_files": links, "samples": files}
    return {"point": {"loader": name, "gpus": gpus}, "status": status, "figures": figures if status == "ok" else {}, "spread": {}}


def test_speed_up_and_scaling_compare_rows() -> None:
    rows = [row("pytorch", 1, 100.0), row("dali-gpu", 1, 1000.0), row("pytorch", 2, 150.0), row("dali-gpu", 2, 1800.0)]
    found = {(one["point"]["loader"], one["point"]["gpus"]): one["figures"] for one in derive(rows)}
    assert found["dali-gpu", 1]["speed_up"] == pytest.approx(10)
    assert found["dali-gpu", 1]["scaling"] is None
    assert found["dali-gpu", 2]["speed_up"] == pytest.approx(12)
    assert found["dali-gpu", 2]["scaling"] == pytest.approx(0.9)
    assert found["pytorch", 2]["scaling"] == pytest.approx(0.75)
    assert "speed_up" not in rows[0]["figures"], "the rows themselves stay"


def test_without_a_baseline_there_is_no_speed_up() -> None:
    failed, other = derive([row("pytorch", 2, 100.0, status="failed"), row("dali-gpu", 2, 1800.0)])
    assert failed["figures"] == {}
    assert other["figures"]["speed_up"] is other["figures"]["scaling"] is None
    assert conclude([failed, other])[0] == "2 processes: dali-gpu passes over all files in 0.556 s."


def test_the_fastest_loop_by_hand_is_what_speed_ups_are_over() -> None:
    rows = [row("pytorch", 1, 100.0), row("pytorch+decord", 1, 200.0), row("nvdec", 1, 1000.0)]
    rows[2]["figures"] |= {"frames_per_s": 16_000.0, "fallback_kinds": "mjpeg in avi"}
    found = derive(rows)
    assert [one["figures"]["speed_up"] for one in found] == pytest.approx([0.5, 1.0, 5.0])
    assert conclude(found) == ["1 process: nvdec passes over all files in 1 s (16,000 frames/s), 5.0 times as fast as pytorch+decord."]
    assert facts(found)[1:] == ["nvdec: clips of some files were decoded by pyav (mjpeg in avi)."]


def test_the_conclusion_states_unique_files_and_the_fastest() -> None:
    rows = derive([row("pytorch", 1, 100.0), row("dali-gpu", 1, 250.0)])
    assert facts(rows) == ["1,000 files, 10 of them unique: the others are links to these, or copies."]
    assert conclude(rows) == ["1 process: dali-gpu passes over all files in 4 s, 2.5 times as fast as pytorch."]
    assert conclude([]) == facts([]) == []


class Paths:
    """A contracts.Source of nothing but paths."""

    read_delay_s = 0.0

    def __init__(self, *files: Path) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def path(self, sample: int) -> bytes:
        return os.fsencode(self.files[sample])


def test_links_and_copies_are_not_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, copy, same_size, longer, hard, soft = (tmp_path / name for name in ("one", "copy", "same_size", "longer", "hard", "soft"))
    one.write_bytes(b"abc")
    copy.write_bytes(b"abc")
    same_size.write_bytes(b"xyz")
    longer.write_bytes(b"abcd")
    hard.hardlink_to(one)
    soft.symlink_to(one)
    found: Any = Paths(one, copy, same_size, longer, hard, soft)
    assert unique(found) == 3
    monkeypatch.setattr(loader, "CONTENTS_UP_TO", 3)
    assert unique(found) == 4, "of many files the contents are not read"


# --- the whole suite ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_pass_over_the_files_and_a_loader_that_cannot_is_a_row(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["loader", "--data", str(pictures), "--loaders", "torchvision", "dali-gpu", "--gpus", "2", "--image-size", "32"]
    assert bench.main([*words, "--batch-size", "8", "--workers", "1", "--output", str(tmp_path / "out")]) == 1
    good, bad = results(tmp_path / "out")
    assert good["status"] == "ok", good["error"]
    figures = good["figures"]
    assert figures["samples"] == 64, "of 72, whole batches of both ranks"
    assert figures["files"] == figures["unique_files"] == 72
    assert figures["pass_s"] == pytest.approx(72 / figures["rate"])
    assert figures["per_gpu"] == pytest.approx(figures["rate"] / 2)
    assert good["spread"]["rate"]["n"] == good["spread"]["pass_s"]["n"] == 3
    assert bad["status"] == "failed"
    assert "dali-gpu needs an NVIDIA GPU" in bad["error"], "what the rank said, not what torchrun says of it"
    table = (tmp_path / "out" / "table.md").read_text()
    assert "72 files, 72 of them unique" in table
    assert (tmp_path / "out" / "plots" / "pass.png").is_file()


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine of 24 frames and one of 6 that is odd."""
    folder = tmp_path_factory.mktemp("videos") / "data"
    kind = video_set.Kind(frames=24, height=64, width=96, gop=8)
    assert video_set.write(folder, 9, kind, progress=False, processes=1)
    make(folder / "train" / "odd" / "short.avi", frames=6, codec="mpeg4", size=(64, 96))
    return folder


class Alone:
    """As much of a contracts.World as a pass needs."""

    rank, size, device = 0, 1, torch.device("cpu")


def passed(name: str, videos: Path, epochs: int = 1, **asked: Any) -> tuple[list[int], dict[str, Any]]:
    """Samples of each batch, and what is told at ten clips a second."""
    settings = settled(
        Loader(**{"data": videos, "task": "video", "batch_size": 2, "image_size": 16, "workers": 0, "clip_frames": 4, **asked})
    )
    world: Any = Alone()
    with clips.opened(settings, name, clips.open_split(videos / "train"), world) as (run, tell):
        return [samples for epoch in range(epochs) for samples in run(epoch)], tell(10.0)


@pytest.fixture
def cached(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("name", ["pytorch", "pytorch+decord", "pyav", "synthetic"])
def test_a_pass_over_clips(name: str, videos: Path) -> None:
    if name.endswith("decord"):
        pytest.importorskip("decord", reason="decord is not installed")
    found, told = passed(name, videos)
    assert found == [2] * 5, "a clip of each of ten videos"
    assert (told["unit"], told["frames_per_s"]) == ("clip/s", 40.0)
    found, told = passed(name, videos, clips=3)
    assert sum(found) == 30
    if name != "synthetic":
        found, told = passed(name, videos, clip_frames=0, clip_stride=2)
        assert sum(found) == 10 and told["frames_per_s"] == pytest.approx(10 * (9 * 12 + 3) / 10), "frames that differ"


@pytest.mark.usefixtures("cached")
def test_whole_files_are_decoded_once_from_end_to_end(videos: Path) -> None:
    _, told = passed("pyav", videos, clip_frames=0)
    assert told["decoded_per_frame"] == pytest.approx((9 * 24 + 6) / (10 * 24)), "a frame that is shown again is not decoded again"
    assert told["fallbacks"] is None
    _, told = passed("decord", videos, clip_frames=4) if importlib.util.find_spec("decord") else ([], {})
    assert not told or told["frames_per_s"] == 40.0


@pytest.mark.parametrize("decode", [pytorch.pyav_clip, pytorch.decord_clip])
def test_clips_by_hand_have_the_frames_that_were_asked_for(decode: pytorch.Decode, tmp_path: Path) -> None:
    if decode is pytorch.decord_clip:
        pytest.importorskip("decord", reason="decord is not installed")
    path = str(make(tmp_path / "a.mp4", frames=30, gop=12))

    def shown(*clip: Any) -> list[int]:
        return [number(frame) for frame in decode(path, *clip)]

    assert shown(4, 1, 0.0) == [0, 1, 2, 3] and shown(4, 2, 1.0) == [23, 25, 27, 29]
    assert shown(4, 3, 0.5) == [10, 13, 16, 19] and shown(40, 1, 0.7) == list(range(30))


def test_a_clip_by_hand_that_is_too_short_repeats_its_last_frame(tmp_path: Path) -> None:
    path = str(make(tmp_path / "a.mp4", frames=3))
    data = pytorch.Clips([path], [7], decode=pytorch.pyav_clip, frames=5, stride=1, clips=1, size=64)
    pixels, label = data[0]
    assert pixels.shape == (3, 5, 64, 64) and pixels.dtype == torch.float32 and label == 7


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("name", ["pyav-alone", "decord-alone"])
def test_decoding_alone_is_counted_as_loading_is(name: str, videos: Path) -> None:
    if name.startswith("decord"):
        pytest.importorskip("decord", reason="decord is not installed")
    found, told = passed(name, videos, epochs=2)
    assert found == [2] * 10 and told["frames_per_s"] == 40.0
    found, _ = passed(name, videos, clips=3)
    assert sum(found) == 30


def test_the_engines_by_hand_take_every_file_in_turn_and_miss_no_frame() -> None:
    log: list[tuple[str, int]] = []

    class SimpleDecoder:
        """Of PyNvVideoCodec: for files of 40 frames; `short.mp4` has fewer than it says."""

        def __init__(self, file: str, gpu_id: int, use_device_memory: bool) -> None:
            assert use_device_memory and gpu_id == 3
            self.reconfigure_decoder(file)

        def reconfigure_decoder(self, file: str) -> None:
            self.file, self.left = file, 20 if file == "short.mp4" else 40

        def __len__(self) -> int:
            return 40

        def get_batch_frames(self, count: int) -> list[int]:
            came = min(count, self.left)
            self.left -= came
            log.append((self.file, came))
            return [0] * came

        def get_batch_frames_by_index(self, wanted: list[int]) -> list[int]:
            log.append((self.file, len(wanted)))
            return [at for at in wanted if at < self.left]

    def first(files: list[str], count: int, **asked: Any) -> list[int]:
        given = {"frames": 4, "stride": 2, "clips": 0, "threads": 2, "gpu": 3} | asked
        log.clear()
        return list(itertools.islice(nvdec.clips(SimpleNamespace(SimpleDecoder=SimpleDecoder), files, **given), count))

    assert first(["a", "b", "c"], 6) == [4] * 6 and {file for file, _ in log[:9]} == {"a", "b", "c"}
    assert first(["a"], 3, clips=5) == [4] * 3
    assert first(["a", "b"], 2, frames=0) == [40, 40] and log[0][1] == 16
    for frames in (0, 40):
        with pytest.raises(ValueError, match="20 of 40 frames came"):
            first(["short.mp4"], 1, frames=frames, stride=1)


def test_the_fastest_loader_is_held_against_decoding_alone() -> None:
    rows = [row("nvdec-alone", 1, 100.0), row("decord-alone", 1, 25.0), row("pytorch", 1, 10.0), row("nvdec+pyav", 1, 115.0)]
    found = derive(rows)
    assert [one["figures"]["speed_up"] for one in found] == pytest.approx([10, 2.5, 1, 11.5])
    said = conclude(found)
    assert said[0].startswith("1 process: nvdec+pyav passes") and "11.5 times as fast as pytorch" in said[0], "no loader, no fastest"
    assert said[1] == "nvdec+pyav gives 92% of what nvdec-alone and decord-alone decode together."


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize(
    ("name", "said"), [("nvdec", "--loader nvdec"), ("dali", "--loaders dali"), ("nvdec-alone", "--loaders nvdec-alone")]
)
def test_a_loader_of_clips_that_cannot_run_here_says_so(name: str, said: str, videos: Path) -> None:
    with pytest.raises(Mistake, match=f"{said} needs an NVIDIA GPU"):
        passed(name, videos)


@pytest.mark.slow
def test_two_ranks_pass_over_clips(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["loader", "--task", "video", "--data", str(videos), "--loaders", "pyav", "--gpus", "2", "--image-size", "16"]
    assert bench.main([*words, "--batch-size", "2", "--workers", "1", "--clip-frames", "4", "--output", str(tmp_path / "out")]) == 0
    (pyav,) = results(tmp_path / "out")
    assert pyav["status"] == "ok", pyav["error"]
    figures = pyav["figures"]
    assert (figures["samples"], figures["files"]) == (8, 10), "whole batches of both ranks"
    assert figures["frames_per_s"] == pytest.approx(4 * figures["rate"]) and figures["pass_s"] == pytest.approx(10 / figures["rate"])
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| clip/s |" in table and "| frame/s |" in table and "img/s" not in table


# --- the set of videos ----------------------------------------------------------------------------------------------------------------


def test_a_set_of_videos_is_as_asked(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [read(os.fsencode(path)) for path in sorted((videos / "train" / "video").iterdir())]
    assert len(found) == 9
    for times in found:
        about = dict(zip(RECORD.names or (), times.record, strict=True))
        assert (about["height"], about["width"], about["count"], about["fps"], about["flags"]) == (64, 96, 24, 30.0, 0)
        assert CODECS[about["codec"]] == "h264" and times.keys.nonzero()[0].tolist() == [0, 8, 16]
    assert len({times.record for times in found}) > 1, "of different sizes in bytes, so no two are alike"
    assert not video_set.write(videos, 9), "it is there already"
    for words in (["--count", "0"], ["--size", "65", "96"], ["--frames", "0"]):
        assert video_set.main([str(tmp_path / "new"), *words]) == 2
    assert video_set.main([str(videos), "--count", "3"]) == 2
    assert capsys.readouterr().err.count("\n") == 4 and not (tmp_path / "new").exists()


# --- the set of links -----------------------------------------------------------------------------------------------------------------


def test_links_are_spread_evenly() -> None:
    found = link_set.shares(200, 21_453)
    assert sum(found) == 21_453
    assert set(found) == {107, 108}
    assert abs(sum(found[:100]) - sum(found[100:])) <= 1, "not all of the longer ones first"
    assert link_set.shares(3, 3) == [1, 1, 1]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_set_of_links_keeps_the_classes(symbolic: bool, pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    words = [str(source), str(tmp_path / "made"), "--count", "100", *(["--symbolic"] * symbolic)]
    assert link_set.main(words) == 0
    made = sorted((tmp_path / "made").rglob("*.jpg"))
    assert len(made) == 100
    assert {path.parent.name for path in made} == {"a", "b", "c"}
    assert all(path.is_symlink() is symbolic for path in made)
    found: Any = Paths(*made)
    assert unique(found) == 72
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


def test_the_suite_is_in_the_table() -> None:
    assert bench.suite_of("loader") is SUITE
