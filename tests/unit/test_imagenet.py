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
DAMAGED = f"{CLASSES[0]}/{CLASSES[0]}_8.JPEG"
SYNSETS = "\n".join(CLASSES[::-1]).encode()


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    """Return a tar of files; one without bytes is a link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.type = tarfile.REGTYPE if content else tarfile.SYMTYPE
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def devkit() -> bytes:
    matlab = pytest.importorskip("scipy.io")
    numpy = pytest.importorskip("numpy")
    synsets = numpy.zeros(3, [("ILSVRC2012_ID", object), ("WNID", object)])
    synsets["ILSVRC2012_ID"] = [1, 2, 3]
    synsets["WNID"] = [*CLASSES[::-1], "n99999999"]
    made = io.BytesIO()
    matlab.savemat(made, {"synsets": synsets})
    files = {
        "meta.mat": made.getvalue(),
        "ILSVRC2012_validation_ground_truth.txt": b"1\n2\n",
    }
    data = "ILSVRC2012_devkit_t12/data"
    return tar({f"{data}/{name}": files[name] for name in files}, "w:gz")


def published(folder: Path, truth: str, more: dict[str, bytes]) -> Path:
    """Write archives, or Kaggle's folders, with more images of train."""
    train = TRAIN | more
    val = {name[10:]: content for name, content in VAL.items()}
    if truth == "kaggle":
        lines = [f"{name[10:-5]},{name[:9]} 1 2 3 4 {name[:9]} 5 6 7 8" for name in VAL]
        solution = "\n".join(["ImageId,PredictionString", *lines])
        files = {f"train/{name}": content for name, content in train.items()}
        files |= {f"val/{name}": content for name, content in val.items()}
        files = {f"{imagenet.KAGGLE}/{name}": files[name] for name in files}
        return fill(folder, files | {imagenet.SOLUTION: solution.encode()})
    inner = {
        f"{wnid}.tar": tar(
            {name[10:]: train[name] for name in train if name[:9] == wnid}
        )
        for wnid in CLASSES
    }
    known = {imagenet.SYNSETS: SYNSETS}
    if truth == "devkit":
        known = {imagenet.DEVKIT: devkit()}
    archives = {"train": tar(inner), "val": tar(val)}
    files = {imagenet.ARCHIVE.format(split): archives[split] for split in archives}
    return fill(folder, files | known)


def run(folder: Path, *more: str) -> int:
    target = str(folder.parent / "to")
    cache = str(folder.parent / "cache")
    return imagenet.main(
        [target, "--from", str(folder), "--manifest-dir", cache, *more]
    )


@pytest.mark.parametrize(
    ("truth", "form", "more"),
    [
        ("devkit", "folder", {}),
        (
            "synsets",
            "tar",
            {DAMAGED: b"<html>", f"{CLASSES[0]}/{CLASSES[0]}_9.JPEG": b""},
        ),
        ("kaggle", "folder", {DAMAGED: b"<html>"}),
    ],
    ids=["devkit", "synsets", "kaggle"],
)
def test_all_forms_give_the_same_images(
    truth: str,
    form: str,
    more: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is left out, damaged or a link, is counted and named."""
    folder = published(tmp_path / "published", truth, more)
    assert run(folder, "--format", form, "--any-count", "true") == 0
    output = "".join(capsys.readouterr()).splitlines()
    lines = [line for line in output if "left out" in line]
    assert len(lines) == bool(more)
    for line in lines:
        assert f"train: {len(more)} left out" in line
        rejected = Path(line.partition("named in ")[2]).read_text()
        assert all(name in rejected for name in more)
    for split, expected in (("train", TRAIN), ("val", VAL)):
        found = opened(tmp_path / "to")[split]
        columns = found.columns
        assert columns.classes == CLASSES
        images = {
            columns.entry(sample).decode(): found.source.read(sample)
            for sample in range(len(columns))
        }
        assert images == expected
        assert [CLASSES[label] for label in columns.label] == [
            name[:9] for name in images
        ]


def test_counts_and_names_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = f"{CLASSES[0]}/{CLASSES[1]}_7.JPEG"
    for truth, more, flags, said in (
        (
            "kaggle",
            {},
            (),
            "train has 4 images of 2 classes, and 0 that cannot be read",
        ),
        ("synsets", {odd: IMAGES[0]}, ("--any-count", "true"), "is no image of ILSVRC"),
    ):
        folder = published(tmp_path / truth, truth, more)
        assert run(folder, *flags) == 2
        assert said in capsys.readouterr().err
    (folder / imagenet.SYNSETS).write_bytes(SYNSETS[:9])
    inner = tar({f"{CLASSES[0]}_0.JPEG": IMAGES[0]})
    archive = folder / imagenet.ARCHIVE.format("train")
    archive.write_bytes(tar({f"{CLASSES[0]}.tar": inner}))
    assert run(folder, "--any-count", "true") == 2
    assert "does not say the class of" in capsys.readouterr().err
    (folder / imagenet.SYNSETS).unlink()
    assert run(folder, "--any-count", "true") == 2
    assert "which say the classes of val" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
