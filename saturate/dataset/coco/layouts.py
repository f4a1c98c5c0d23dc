"""Where a data set keeps its annotations and its images, in COCO's own layout and in those of other tools.

Must not know what an annotation file holds.

    COCO            annotations/instances_train2017.json, train2017/*.jpg
    Roboflow        train/_annotations.coco.json, train/*.jpg; valid/ and test/ likewise
    FiftyOne        train/labels.json, train/data/*.jpg
    CVAT            annotations/instances_default.json, images/*.jpg
    Label Studio    result.json, images/*.jpg
    others          annotations/instances_Train.json, train_coco.json, train.json; or one *.json alone

The split is a word of a file's name, or the name of its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from saturate.contracts import UserError
from saturate.dataset.scan import names

NO_BOXES = {"captions", "panoptic", "stuff", "info"}
"""Words in the names of COCO's files that have no boxes to train on."""


class Layout(NamedTuple):
    """The annotations of a split, and the folder of their images."""

    file: Path  # absolute
    folder: str  # below the root; "" = the root itself
    shared: bool = False  # the file is of both splits


def find(root: Path, split: str, *, keypoints: bool) -> Layout:
    """Return where a split lies. Raises UserError."""
    real = Path(os.path.realpath(root))
    unwanted = NO_BOXES if keypoints else NO_BOXES | {"keypoints"}
    in_splits = [
        path
        for path in real.glob("*/*.json")
        if names.read(path.parent.name).splits & {"train", "val", split}
    ]
    files = [
        path
        for path in (*real.glob("annotations/*.json"), *real.glob("*.json"), *in_splits)
        if not unwanted.intersection(names.words(path.stem))
    ]
    shared = not any(_about(path, real).splits for path in files)
    if not shared or split == "test":
        files = [path for path in files if split in _about(path, real).splits]
    # of several: those of keypoints, then those of COCO's names
    for best in (*["keypoints"] * keypoints, f"{split}2017", "instances"):
        files = [path for path in files if best in path.stem] or files
    # and those of no other words: of train and old_train the first
    files = [path for path in files if not _about(path, real).rest] or files
    if not files:
        raise UserError(
            f"--data: {root} has no annotations of {split}; COCO's layout has {split}2017/ and "
            f"annotations/instances_{split}2017.json, docs/data.md names those of other tools, and "
            "what converts YOLO's and Pascal VOC's"
        )
    if len(files) > 1:
        several = ", ".join(sorted(str(path.relative_to(real)) for path in files)[:3])
        raise UserError(
            f"--data: {root} has {len(files)} JSON files for {split} ({several}); COCO's form is one file a "
            "split, leave that one"
        )
    return Layout(files[0], _folder(files[0], real, split), shared)


def _about(file: Path, root: Path) -> names.Name:
    """Return what a file's name, and that of its folder, say."""
    folder = "" if file.parent == root else file.parent.name
    return names.read(f"{folder}/{file.stem}")


def _folder(file: Path, root: Path, split: str) -> str:
    """Return the folder of the images of an annotation file, below the root; "" for the root itself."""
    name = re.sub("^(instances|person_keypoints)_", "", file.stem)
    beside = file.parent
    default = ""
    if name != file.stem and name.startswith(split):
        # COCO's own; names of images in a store begin with that of this folder
        default = name
        places = [root / name, root / "images" / name, root / "images"]
    elif beside != root and names.read(beside.name).splits:
        places = [beside / "images", beside / "data", beside]
    else:
        usual = [root / "images/default", root / "images", root / "data"]
        usual = [path for path in usual if path.is_dir()]
        places = [*_named(file, root, split, usual), *usual]
    folder = next((path for path in places if path.is_dir()), root / default)
    return "" if folder == root else str(folder.relative_to(root))


def _named(file: Path, root: Path, split: str, usual: Sequence[Path]) -> list[Path]:
    """Return the folder of images by its name, [] for none. Raises UserError where several may be it.

    It has the split's word and no other, or the other words of the annotation file: masks_train and old_train
    are passed over where train is there. With yet other words it may be as well one of the `usual` folders.
    """
    about = {
        place / name: names.read(name)
        for place in (root, root / "images", root / "data")
        for name in names.folders(place)
    }
    folders = [
        path
        for path, name in about.items()
        if split in name.splits
        and not names.NO_PHOTOS.intersection(names.words(path.name))
    ]
    own = names.read(file.stem).rest
    for best in (
        lambda path: about[path].rest <= own,
        lambda path: about[path].rest == own,
        lambda path: path.name == file.stem,
        lambda path: path.name == split,
    ):
        folders = [path for path in folders if best(path)] or folders
    if folders and not about[folders[0]].rest <= own:
        folders += [path for path in usual[:1] if path not in folders[0].parents]
    if len(folders) > 1:
        several = " and ".join(f"{path.relative_to(root)}/" for path in folders)
        raise UserError(
            f"--data: {root} has {several}, and either may be the images of {file.name}; leave one, or move "
            "the other out of --data"
        )
    return folders
