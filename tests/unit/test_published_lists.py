"""Lists of Kinetics, UCF101, HMDB51 and Something-Something as they are published."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from contracts import UserError
from dataset.open import list_of
from dataset.videos.columns import Videos
from dataset.videos.scan import open_videos
from tests.unit.video_files import make

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("clip") / "a.mp4", frames=6)


def place(clip: Path, *paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clip, path)


def named(videos: Videos, folder: Path) -> list[tuple[str, str]]:
    """(path below the folder, class) of each sample."""
    paths = [
        os.path.relpath(os.fsdecode(videos.path(i)), folder) for i in range(len(videos))
    ]
    return list(
        zip(paths, [videos.classes[label] for label in videos.label], strict=True)
    )


HEADING = "label,youtube_id,time_start,time_end,split"


@pytest.mark.parametrize(
    "heading", [HEADING, f"{HEADING},is_cc", HEADING.replace("label", '"label"')]
)
@pytest.mark.parametrize("layout", ["{0}/", "{1}/", ""])
def test_kinetics(layout: str, heading: str, clip: Path, tmp_path: Path) -> None:
    rows = [("air drumming", "--3ouPhoy2A", 20, 30), ("abseiling", "0T_2 x", 104, 114)]
    files = [
        f"train/{layout.format(label, label.replace(' ', '_'))}{video}_{start:06d}_{end:06d}.mp4"
        for label, video, start, end in rows
    ]
    place(clip, *(tmp_path / file for file in files))
    lines = [
        f'"{label}",{video},{start},{end},train,0' for label, video, start, end in rows
    ]
    (tmp_path / "train.csv").write_text(
        "\n".join([heading, *lines, "abseiling,gone,1,11,train"]) + "\n"
    )
    found = open_videos(
        tmp_path / "train.csv", cache=tmp_path.parent / f"{tmp_path.name}-cache"
    )
    assert named(found, tmp_path) == [
        (files[0], "air drumming"),
        (files[1], "abseiling"),
    ]
    assert found.frames.tolist() == [6, 6], (
        "the times are of the video that the file was cut from"
    )
    assert (
        "gone_000001_000011.mp4\tcannot be read: No such file"
        in (found.folder / "rejected.txt").read_text()
    )


def test_kinetics_with_its_columns_in_another_order(clip: Path, tmp_path: Path) -> None:
    place(clip, tmp_path / "train" / "x_000001_000011.mp4")
    (tmp_path / "train.csv").write_text(
        "youtube_id,split,time_start,time_end,label\nx,train,1,11,archery\n"
    )
    found = open_videos(
        tmp_path / "train.csv", cache=tmp_path.parent / f"{tmp_path.name}-cache"
    )
    assert named(found, tmp_path) == [("train/x_000001_000011.mp4", "archery")]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("abseiling,x,now,then,train", "abseiling,x,now,then,train"),
        ("abseiling,x,inf,3,train", "abseiling,x,inf,3,train"),
        ("abseiling,x,1,1e400,train", "abseiling,x,1,1e400,train"),
    ],
)
def test_a_line_that_is_none_of_kinetics(line: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f"{HEADING}\n{line}\n")
    with pytest.raises(
        UserError, match=f"line 2 is '{shown}'; a line of Kinetics is label,youtube_id"
    ):
        open_videos(tmp_path / "train.csv", cache=tmp_path / "cache")


def ucf(clip: Path, folder: Path) -> list[str]:
    files = [
        f"{name}/v_{name}_g0{group}_c01.avi"
        for name in ("ApplyLipstick", "Archery")
        for group in (1, 8)
    ]
    place(clip, *(folder / file for file in files))
    (folder / "classInd.txt").write_bytes(
        b"1 ApplyEyeMakeup\r\n2 ApplyLipstick\r\n3 Archery\r\n"
    )
    return files


def test_ucf101(clip: Path, tmp_path: Path) -> None:
    files, cache = ucf(clip, tmp_path), tmp_path.parent / f"{tmp_path.name}-cache"
    (tmp_path / "train.txt").write_bytes(f"{files[1]} 2\r\n{files[3]} 3\r\n".encode())
    (tmp_path / "val.txt").write_bytes(f"{files[0]}\r\n{files[2]}\r\n\r\n".encode())
    train = open_videos(tmp_path / "train.txt", cache=cache)
    assert named(train, tmp_path) == [
        (files[1], "ApplyLipstick"),
        (files[3], "Archery"),
    ]
    val = open_videos(tmp_path / "val.txt", cache=cache, classes=train.classes)
    assert named(val, tmp_path) == [(files[0], "ApplyLipstick"), (files[2], "Archery")]


def test_lists_that_are_not_ucf101s_are_read_as_ever(
    clip: Path, tmp_path: Path
) -> None:
    files = ucf(clip, tmp_path)
    (tmp_path / "train.txt").write_text(f"{files[1]} 2\n{files[3]} 0\n")
    found = open_videos(
        tmp_path / "train.txt", cache=tmp_path.parent / f"{tmp_path.name}-cache"
    )
    assert found.label.tolist() == [2, 0]


def test_ucf101s_first_split_under_its_own_names(tmp_path: Path) -> None:
    for name in ("trainlist01.txt", "testlist01.txt"):
        (tmp_path / name).touch()
    assert [list_of(tmp_path, split) for split in ("train", "val")] == [
        tmp_path / "trainlist01.txt",
        tmp_path / "testlist01.txt",
    ]
    (tmp_path / "val").mkdir()
    (tmp_path / "train.csv").touch()
    assert [list_of(tmp_path, split) for split in ("train", "val")] == [
        tmp_path / "train.csv",
        None,
    ]


def test_one_class_of_ucf101_with_two_numbers(tmp_path: Path) -> None:
    (tmp_path / "classInd.txt").write_text("1 Archery\n3 Archery\n")
    (tmp_path / "val.txt").write_text("Archery/a.avi\n")
    with pytest.raises(UserError, match=r"classInd\.txt names 'Archery' twice"):
        open_videos(tmp_path / "val.txt", cache=tmp_path / "cache")


def test_a_path_of_ucf101_with_a_nul(tmp_path: Path) -> None:
    (tmp_path / "classInd.txt").write_text("3 Archery\n")
    (tmp_path / "val.txt").write_text("Archery/a.avi\nArchery/a\0b.avi\n")
    with pytest.raises(UserError, match="line 2 has a NUL in its path"):
        open_videos(tmp_path / "val.txt", cache=tmp_path / "cache")


def commands() -> list[str]:
    text = (ROOT / "docs" / "video.md").read_text()
    return re.findall(
        r"```bash\n(.*?)```",
        text.partition("## Lists")[2].partition("\n## ")[0],
        re.DOTALL,
    )


def test_hmdb51_by_the_line_of_the_docs(clip: Path, tmp_path: Path) -> None:
    splits = tmp_path / "testTrainMulti_7030_splits"
    splits.mkdir()
    for name in ("brush_hair", "wave"):
        place(clip, *(tmp_path / name / f"{name}_{part}.avi" for part in range(3)))
        lines = [f"{name}_{part}.avi {part} \n" for part in range(3)]
        (splits / f"{name}_test_split1.txt").write_text("".join(lines))
    subprocess.run(["bash", "-ec", commands()[0]], cwd=tmp_path, check=True)
    cache = tmp_path.parent / f"{tmp_path.name}-cache"
    train = open_videos(tmp_path / "train.txt", cache=cache)
    assert named(train, tmp_path) == [
        (f"{name}/{name}_1.avi", name) for name in ("brush_hair", "wave")
    ]
    val = open_videos(tmp_path / "val.txt", cache=cache, classes=train.classes)
    assert named(val, tmp_path) == [
        (f"{name}/{name}_2.avi", name) for name in ("brush_hair", "wave")
    ]


def test_something_something_by_the_line_of_the_docs(
    clip: Path, tmp_path: Path
) -> None:
    told = [
        ("78687", "Holding [something] next to [something]"),
        ("9", "Moving [something], slowly"),
    ]
    place(
        clip,
        *(
            tmp_path / "20bn-something-something-v2" / f"{video}.webm"
            for video, _ in told
        ),
    )
    text = json.dumps(
        [
            {"id": video, "label": "holding a box", "template": template}
            for video, template in told
        ]
    )
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(UserError, match=r"is JSON: docs/video\.md has a command"):
        open_videos(tmp_path / "train.csv", cache=tmp_path / "cache")
    (tmp_path / "something-something-v2-train.json").write_text(text)
    subprocess.run(["bash", "-ec", commands()[1]], cwd=tmp_path, check=True)
    found = open_videos(
        tmp_path / "train.csv", cache=tmp_path.parent / f"{tmp_path.name}-cache"
    )
    assert [name for _, name in named(found, tmp_path)] == [
        "Holding something next to something",
        "Moving something, slowly",
    ]
