"""scripts.imagenet: the archives of ILSVRC2012, and Kaggle's folders."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from torchvision.datasets import imagenet as torchvisions

from saturate.run import imagenet
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
OF_NO_CLASS = {name[10:]: content for name, content in VAL.items()}


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def devkit() -> bytes:
    matlab = pytest.importorskip("scipy.io")
    numpy = pytest.importorskip("numpy")
    names = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")
    synsets = numpy.zeros(3, [(name, object) for name in names])
    for place, wnid in enumerate([*CLASSES[::-1], "n99999999"]):
        synsets[place] = (place + 1, wnid, "a, b", "c", int(place == 2))
    made = io.BytesIO()
    matlab.savemat(made, {"synsets": synsets})
    data = "ILSVRC2012_devkit_t12/data"
    truth = f"{data}/ILSVRC2012_validation_ground_truth.txt"
    return tar({f"{data}/meta.mat": made.getvalue(), truth: b"1\n2\n"}, "w:gz")


def archives() -> dict[str, bytes]:
    inner = {
        f"{wnid}.tar": tar({n[10:]: TRAIN[n] for n in TRAIN if n[:9] == wnid})
        for wnid in CLASSES
    }
    contents = (devkit(), tar(inner), tar(OF_NO_CLASS))
    names = (f"ILSVRC2012_{name}" for name in imagenet.ARCHIVES)
    return dict(zip(names, contents, strict=True))


def of_kaggle() -> dict[str, bytes]:
    lines = [f"{name[10:-5]},{name[:9]} 1 2 3 4 {name[:9]} 5 6 7 8" for name in VAL]
    solution = "\n".join(["ImageId,PredictionString", *lines])
    files = {f"train/{name}": content for name, content in TRAIN.items()}
    files |= {f"val/{name}": content for name, content in OF_NO_CLASS.items()}
    files = {f"{imagenet.KAGGLE}/{name}": files[name] for name in files}
    return files | {imagenet.SOLUTION: solution.encode()}


@pytest.mark.parametrize("files", [archives, of_kaggle])
def test_both_forms_give_the_same_images(
    files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = files()
    folder = fill(tmp_path / "published", published)
    kinds = ("devkit", "train", "val")
    digests = {
        kind: (name, hashlib.md5(published[name]).hexdigest())
        for kind, name in zip(kinds, published, strict=False)
        if files is archives
    }
    monkeypatch.setattr(torchvisions, "ARCHIVE_META", digests)
    assert imagenet.main([str(tmp_path / "to"), "--from", str(folder)]) == 0
    for split, expected in (("train", TRAIN), ("val", VAL)):
        found = opened(tmp_path / "to")[split]
        columns = found.columns
        names = [columns.entry(sample).decode() for sample in range(len(columns))]
        images = map(found.source.read, range(len(columns)))
        assert columns.classes == CLASSES
        assert dict(zip(names, images, strict=True)) == expected
        labels = [CLASSES[label] for label in columns.label]
        assert labels == [name[:9] for name in names]


def test_archives_that_are_missing_or_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "published", archives())
    words = [str(tmp_path / "to"), "--from", str(folder)]
    for said in ("corrupted", "img_train.tar is missing"):
        assert imagenet.main(words) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
        assert not (tmp_path / "to").exists()
        (folder / "ILSVRC2012_img_train.tar").unlink(missing_ok=True)
