"""Where a data set keeps its annotations and its images, in COCO's own layout and in those of other tools.

Must not know what an annotation file holds.

    COCO            annotations/instances_train2017.json, train2017/*.jpg
    Roboflow        train/_annotations.coco.json, train/*.jpg; valid/ likewise
    FiftyOne        train/labels.json, train/data/*.jpg
    CVAT            annotations/instances_default.json, images/*.jpg
    Label Studio    result.json, images/*.jpg
    others          annotations/instances_Train.json, train_coco.json, train.json; or one *.json alone

The split is a word of a file's name, or the name of its folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from contracts import UserError

Split = Literal["train", "val"]
NAMES: dict[Split, set[str]] = {
    "train": {"train", "training"},
    "val": {"val", "valid", "validation"},
}
"""What the splits are called."""
ALL_NAMES = NAMES["train"] | NAMES["val"]
NO_BOXES = {"captions", "panoptic", "stuff", "info"}
"""Words in the names of COCO's files that have no boxes to train on."""


class Layout(NamedTuple):
    """The annotations of a split, and the folder of their images."""

    file: Path  # absolute
    folder: str  # below the root; "" = the root itself
    shared: bool = False  # the file is of both splits


def find(root: Path, split: Split, *, keypoints: bool) -> Layout:
    """Return where a split lies. Raises UserError."""
    real = Path(os.path.realpath(root))
    unwanted = NO_BOXES if keypoints else NO_BOXES | {"keypoints"}
    in_splits = [
        path for path in real.glob("*/*.json") if _words(path.parent.name) & ALL_NAMES
    ]
    files = [
        path
        for path in (*real.glob("annotations/*.json"), *real.glob("*.json"), *in_splits)
        if not _words(path.stem) & unwanted
    ]
    shared = not any(_says(path, real, ALL_NAMES) for path in files)
    if not shared:
        files = [path for path in files if _says(path, real, NAMES[split])]
    # of several: those of keypoints, then those of COCO's names
    for best in (*["keypoints"] * keypoints, f"{split}2017", "instances"):
        files = [path for path in files if best in path.stem] or files
    if not files:
        raise UserError(
            f"--data: {root} has no annotations of {split}; COCO's layout has {split}2017/ and "
            f"annotations/instances_{split}2017.json, docs/data.md names those of other tools, and "
            "what converts YOLO's and Pascal VOC's"
        )
    if len(files) > 1:
        names = ", ".join(sorted(path.name for path in files)[:3])
        raise UserError(
            f"--data: {root} has {len(files)} JSON files for {split} ({names}); COCO's form is one file a "
            "split, leave that one"
        )
    return Layout(files[0], _folder(files[0], real, split), shared)


def _says(file: Path, root: Path, names: set[str]) -> bool:
    """Whether a file's name, or that of its folder, has one of these words."""
    folder = "" if file.parent == root else file.parent.name
    return bool((_words(file.stem) | _words(folder)) & names)


def _folder(file: Path, root: Path, split: Split) -> str:
    """Return the folder of the images of an annotation file, below the root; "" for the root itself."""
    name = re.sub("^(instances|person_keypoints)_", "", file.stem)
    beside = file.parent
    default = ""
    if name != file.stem and name.startswith(split):
        # COCO's own; names of images in a store begin with that of this folder
        default = name
        places = [root / name, root / "images" / name, root / "images"]
    elif beside != root and _words(beside.name) & ALL_NAMES:
        places = [beside / "images", beside / "data", beside]
    else:
        places = [
            path
            for place in (root, root / "images", root / "data")
            for path in sorted(place.glob("*/"))
            if _words(path.name) & NAMES[split]
        ]
        places += [root / "images/default", root / "images", root / "data"]
    folder = next((path for path in places if path.is_dir()), root / default)
    return "" if folder == root else str(folder.relative_to(root))


def _words(name: str) -> set[str]:
    return {*re.split("[^a-z]+", name.lower())}
