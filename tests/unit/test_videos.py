"""The manifest of videos: folders and lists, segments, labels, and what is left out."""

from __future__ import annotations

import os
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from saturate.dataset.videos.columns import RECORD, Videos
from saturate.dataset.videos.packets import read
from saturate.dataset.videos.scan import open_videos
from tests.unit.folders import names, reasons
from tests.unit.video_files import make

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Videos of 25 frames a second: 40 frames, 10 frames, a turned one, and one at a variable rate."""
    made = tmp_path_factory.mktemp("clips")
    ticks = tuple(90_000 * t // 100 for t in (0, 4, 30, 31, 60, 150))
    return {
        "long": make(made / "long.mp4", b_frames=2),
        "short": make(made / "short.mkv", frames=10),
        "turned": make(made / "turned.mp4", frames=12, rotation=90),
        "variable": make(made / "variable.mp4", frames=6, ticks=ticks),
    }


@pytest.fixture
def videos(tmp_path: Path, clips: dict[str, Path]) -> Path:
    return place(
        tmp_path / "train",
        {
            "ant/a b.mp4": clips["long"],
            "ant/z.mkv": clips["short"],
            "bee/x,1.mp4": clips["turned"],
        },
    )


def place(root: Path, files: dict[str, Path]) -> Path:
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / name)
    return root


def scanned(*call: Any, **how: Any) -> tuple[Videos, bool]:
    said: list[str] = []
    return open_videos(
        *call, progress=lambda done, total, what: said.append(what), **how
    ), "reading videos" in said


def test_what_is_left_out_is_named(
    videos: Path, cache: Path, clips: dict[str, Path]
) -> None:
    (videos / "ant/broken.mp4").write_bytes(clips["long"].read_bytes()[:2000])
    (videos / "cat").mkdir()
    (videos / "cat/notes.txt").write_text("hello\n" * 100)
    place(videos, {"dog/x.mp4": clips["long"]})
    found = open_videos(videos, cache=cache)
    assert names(found) == ["ant/a b.mp4", "ant/z.mkv", "bee/x,1.mp4", "dog/x.mp4"]
    assert (found.classes, found.label.tolist()) == (
        ("ant", "bee", "dog"),
        [0, 0, 1, 2],
    )
    assert [*reasons(found).items()] == [
        ("ant/broken.mp4", "cannot be read: Invalid data found when processing input"),
        ("cat/notes.txt", "no known video container (read as tty)"),
        ("cat", "class without a video"),
    ]
    # what is left out shifts nothing
    assert (found.first.tolist(), found.frames.tolist()) == ([0] * 4, [40, 10, 12, 40])
    for sample in range(4):
        times = read(found.path(sample))
        assert found.pts(sample).tolist() == times.pts.tolist()
        record = [getattr(found, name)[sample] for name in RECORD.names or ()]
        assert record == list(times.record)


def test_a_list_in_the_order_of_its_lines(
    videos: Path, cache: Path, clips: dict[str, Path]
) -> None:
    lines = [
        "bee/x,1.mp4 2",
        "ant/a b.mp4 0",
        "",
        f"{clips['variable']} 1",
        f"  ant/z.mkv\t{'1'}\r",
        f"{videos}/bee/.././ant/a b.mp4 0",
    ]
    (videos / "list.csv").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    found = open_videos(videos / "list.csv", cache=cache)
    assert found.classes == ("0", "1", "2")
    assert found.label.tolist() == [2, 0, 1, 1, 0]
    assert [Path(os.fsdecode(found.path(i))).resolve() for i in range(5)] == [
        videos / "bee/x,1.mp4",
        videos / "ant/a b.mp4",
        clips["variable"],
        videos / "ant/z.mkv",
        videos / "ant/a b.mp4",
    ]
    assert found.file.tolist() == [0, 1, 2, 3, 1], "each file is read once"
    assert found.frames.tolist() == [12, 40, 6, 10, 40]
    assert not scanned(videos / "list.csv", cache=cache)[1]
    (videos / "list.csv").write_text("ant/z.mkv 0\n")
    assert scanned(videos / "list.csv", cache=cache)[1]


def test_segments_are_seconds_from_the_first_frame(
    videos: Path, cache: Path, clips: dict[str, Path]
) -> None:
    shutil.copy(clips["variable"], videos / "v.mp4")
    lines = [
        "ant/a b.mp4 run 0 0.4",
        "ant/a b.mp4 sit 0.4 1.2",
        "ant/a b.mp4 run 0.5 99",
        "v.mp4 run .04 .3",
        "v.mp4 sit 0.30 0.6",
        "v.mp4 sit",
    ]
    (videos / "list.txt").write_text("\n".join(lines))
    found = open_videos(videos / "list.txt", cache=cache)
    assert found.classes == ("run", "sit")
    assert found.label.tolist() == [0, 1, 0, 0, 1, 1]
    assert found.first.tolist() == [0, 10, 13, 1, 2, 0]
    assert found.frames.tolist() == [10, 20, 27, 1, 2, 6]
    assert len(found.pts(1)) == 40, "times are the whole file's"
    # of this one the first time is not 0
    make(videos / "late.ts", frames=40, b_frames=3)
    # and of this one times are rounded: 0, 33, 67, 100 ms
    make(videos / "ms.mkv", fps=Fraction(30), frames=10)
    (videos / "list.txt").write_text("late.ts 0 0.4 0.8\nms.mkv 0 0.033333 0.1")
    found = open_videos(videos / "list.txt", cache=cache)
    assert found.pts(0)[0] > 0
    assert (found.first.tolist(), found.frames.tolist()) == ([10, 1], [10, 2])


def test_what_is_left_out_of_a_list_is_named(videos: Path, cache: Path) -> None:
    (videos / "list.txt").write_text(
        "ant/a b.mp4 1 0.4 0.8\nant/a b.mp4 1 7 9\nant/gone.mp4 0\nbee/x,1.mp4 0\nant/z.mkv 5\n"
    )
    found = open_videos(videos / "list.txt", cache=cache)
    assert [*reasons(found).items()] == [
        ("ant/gone.mp4", "cannot be read: No such file or directory"),
        ("ant/a b.mp4", "from 7 to 9 s: no frame (the video has 40 in 1.6 s)"),
    ]
    assert names(found) == ["ant/a b.mp4", "bee/x,1.mp4", "ant/z.mkv"]
    assert found.classes == tuple("012345"), (
        "labels of a list are numbers of the head: none moves up"
    )


def test_a_class_of_a_list_without_a_video_has_no_label(
    videos: Path, cache: Path
) -> None:
    gone = "gone.mp4 bee\n# a comment\ngone/too.mp4 up -1 0.5\n"
    (videos / "list.txt").write_text(
        f"ant/z.mkv zebra\n{gone}ant/a b.mp4 cat\nant/z.mkv zebra\n"
    )
    found = open_videos(videos / "list.txt", cache=cache)
    assert (list(found.classes), found.label.tolist()) == (["cat", "zebra"], [1, 0, 1])
    said = (found.folder / "rejected.txt").read_text()
    assert (
        "list.txt\tclass 'bee' has no video that can be read" in said
        and "class 'comment' has" in said
    )
    (videos / "numbers.txt").write_text("gone.mp4 1\nant/z.mkv 3\n")
    numbered = open_videos(videos / "numbers.txt", cache=cache)
    # numbers are places in somebody's list of classes
    assert (len(numbered.classes), numbered.label.tolist()) == (4, [3])
