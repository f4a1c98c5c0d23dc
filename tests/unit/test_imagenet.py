"""scripts.imagenet: the archives of ILSVRC2012, and Kaggle's folders, read where they lie."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from scripts import imagenet
from tests.conformance import scenes
from tests.unit.folders import fill
from tests.unit.test_pack import opened

IMAGES = list(scenes.small(6).values())
CLASSES = ("n01440764", "n01443537")
TRAIN = {
    f"{CLASSES[place % 2]}/{CLASSES[place % 2]}_{place}.JPEG": content
    for place, content in enumerate(IMAGES[:4])
}
VAL = {
    f"{CLASSES[1 - place]}/ILSVRC2012_val_{place + 1:08d}.JPEG": content
    for place, content in enumerate(IMAGES[4:])
}


def tar(files: dict[str, bytes], link: str = "", mode: str = "w") -> bytes:
    """Return a tar of files; `link`, of the name of an image of CLASSES[0], goes to the first of its own."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        if link.startswith(next(iter(files))[:9]):
            member = tarfile.TarInfo(link)
            member.type = tarfile.SYMTYPE
            member.linkname = next(iter(files))
            archive.addfile(member)
    return made.getvalue()


def devkit() -> bytes:
    matlab = pytest.importorskip("scipy.io")
    numpy = pytest.importorskip("numpy")
    synsets = numpy.zeros(3, [("ILSVRC2012_ID", object), ("WNID", object)])
    synsets["ILSVRC2012_ID"] = [1, 2, 3]
    synsets["WNID"] = [*CLASSES[::-1], "n99999999"]
    made = io.BytesIO()
    matlab.savemat(made, {"synsets": synsets})
    data = "ILSVRC2012_devkit_t12/data"
    numbers = b"1\n2\n"
    return tar(
        {
            f"{data}/meta.mat": made.getvalue(),
            f"{data}/ILSVRC2012_validation_ground_truth.txt": numbers,
        },
        mode="w:gz",
    )


def archives(folder: Path, train: dict[str, bytes] = TRAIN, link: str = "") -> None:
    inner = {
        f"{wnid}.tar": tar(
            {name[10:]: content for name, content in train.items() if name[:9] == wnid},
            link,
        )
        for wnid in CLASSES
    }
    val = tar({name[10:]: content for name, content in VAL.items()})
    fill(
        folder, {"ILSVRC2012_img_train.tar": tar(inner), "ILSVRC2012_img_val.tar": val}
    )


def kaggle(folder: Path) -> None:
    train = {
        f"{imagenet.KAGGLE}/train/{name}": content for name, content in TRAIN.items()
    }
    val = {
        f"{imagenet.KAGGLE}/val/{name[10:]}": content for name, content in VAL.items()
    }
    lines = [f"{name[10:-5]},{name[:9]} 1 2 3 4 {name[:9]} 5 6 7 8" for name in VAL]
    solution = "\n".join(["ImageId,PredictionString", *lines]).encode()
    fill(folder, train | val | {imagenet.SOLUTION: solution})


def run(folder: Path, target: Path, *more: str) -> int:
    command = [
        str(target),
        "--from",
        str(folder),
        "--manifest-dir",
        str(folder.parent / "cache"),
        *more,
    ]
    return imagenet.main(command)


@pytest.mark.parametrize(
    ("truth", "form"),
    [("devkit", "folder"), ("synsets", "tar"), ("kaggle", "folder")],
    ids=str,
)
def test_all_forms_give_the_same_images(truth: str, form: str, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    if truth == "kaggle":
        kaggle(folder)
    else:
        archives(folder)
    if truth == "devkit":
        fill(folder, {imagenet.DEVKIT: devkit()})
    if truth == "synsets":
        fill(folder, {imagenet.SYNSETS: "\n".join(CLASSES[::-1]).encode()})
    assert run(folder, tmp_path / "to", "--format", form, "--any-count", "true") == 0
    for split, expected in (("train", TRAIN), ("val", VAL)):
        found = opened(tmp_path / "to")[split]
        columns = found.columns
        assert columns.classes == CLASSES
        names = [columns.entry(sample).decode() for sample in range(len(columns))]
        images = {
            name.removeprefix(f"{split}/"): found.source.read(sample)
            for sample, name in enumerate(names)
        }
        assert images == expected
        assert [CLASSES[label] for label in columns.label] == [
            name.split("/")[-2] for name in names
        ]


@pytest.mark.parametrize("form", ["archives", "kaggle"])
def test_images_that_are_left_out_are_counted_and_named(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "published"
    damaged = f"{CLASSES[0]}/{CLASSES[0]}_8.JPEG"
    broken = dict(TRAIN, **{damaged: b"<html>"})
    names = [damaged]
    if form == "kaggle":
        kaggle(folder)
        fill(folder, {f"{imagenet.KAGGLE}/train/{damaged}": b"<html>"})
    else:
        archives(folder, broken, link=f"{CLASSES[0]}_9.JPEG")
        fill(folder, {imagenet.SYNSETS: "\n".join(CLASSES[::-1]).encode()})
        names.append(f"{CLASSES[0]}/{CLASSES[0]}_9.JPEG\ta link")
    assert run(folder, tmp_path / "to", "--any-count", "true") == 0
    said = capsys.readouterr()
    (line,) = [
        line for line in (said.out + said.err).splitlines() if "left out" in line
    ]
    assert f"train: {len(names)} left out" in line
    rejected = Path(line.partition("named in ")[2]).read_text()
    assert all(name in rejected for name in names)
    assert len(opened(tmp_path / "to")["train"].columns) == len(TRAIN)


def test_counts_and_names_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "published"
    kaggle(folder)
    assert run(folder, tmp_path / "to") == 2
    assert "train has 4 images, and ILSVRC2012 has 1,281,167" in capsys.readouterr().err
    fill(
        folder, {f"{imagenet.KAGGLE}/train/{CLASSES[0]}/{CLASSES[1]}_7.JPEG": IMAGES[0]}
    )
    assert run(folder, tmp_path / "to", "--any-count", "true") == 2
    assert "which is no image of ILSVRC2012" in capsys.readouterr().err
    (folder / imagenet.SOLUTION).unlink()
    assert not (tmp_path / "to").exists()
