"""Where a data set keeps its annotations and its images, in COCO's own layout and in those of other tools.

Must not know what an annotation file holds.

    COCO            annotations/instances_train2017.json, train2017/*.jpg
    Roboflow        train/_annotations.coco.json, train/*.jpg; valid/ likewise
    FiftyOne        train/labels.json, train/data/*.jpg
    CVAT            annotations/instances_default.json, images/*.jpg
    Label Studio    result.json, images/*.jpg
    by its words    annotations/instances_Train.json, train_coco.json
    flat            train.json, val.json, or one *.json alone
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from contracts import UserError

Split = Literal["train", "val"]
NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
}
"""What the splits are called."""
KINDS = ("person_keypoints", "instances")
OTHER_KINDS = {"captions", "panoptic", "stuff", "info"}
"""Words in the names of COCO's files that have no boxes to train on."""
FOLDERS = ("{split}", "images/{split}", "data/{split}", "images", "data", "")
"""Where the images may be, "" = beside the file; the first that is there counts."""
OF_A_SPLIT: Sequence[tuple[str, Sequence[str]]] = (
    ("{split}/_annotations.coco.json", ("{split}",)),
    ("annotations/{kind}_{split}.json", FOLDERS),
    ("annotations/{split}.json", FOLDERS),
    ("{split}.json", FOLDERS),
    ("{split}/*.json", ("{split}/images", "{split}/data", "{split}")),
)
"""Annotations of one split, and where its images may be."""
OF_BOTH: Sequence[tuple[str, Sequence[str]]] = (
    ("annotations/{kind}_default.json", ("images/default", "images", "")),
    ("annotations/*.json", ("images/default", "images", "data", "")),
    ("*.json", ("images", "data", "")),
)
"""Annotations that no name gives to a split: a part of the images then validates."""

YOLO = (
    "data.y*ml",
    "labels/*.txt",
    "labels/*/*.txt",
    "*/labels/*.txt",
    "classes.txt",
    "obj.names",
)
"""Files that tell YOLO's layout."""


class Layout(NamedTuple):
    """The annotations of a split, and the folder of their images."""

    file: Path  # absolute
    folder: str  # below the root; "" = the root itself
    shared: bool = False  # the file is of both splits


def find(root: Path, split: Split, *, keypoints: bool, images: bool = True) -> Layout:
    """Return where a split lies. Without `images` their folder need not exist. Raises UserError."""
    real = Path(os.path.realpath(root))
    kinds = KINDS if keypoints else KINDS[1:]
    wanted = (
        f"COCO's layout has {split}2017/ and annotations/{kinds[0]}_{split}2017.json"
    )
    if not real.is_dir():
        raise UserError(f"--data: {root} is no folder; {wanted}")
    if own := _coco_layout(root, real, split, kinds[0]):
        if images and not (real / own.folder).is_dir():
            raise UserError(
                f"--data: {root} has no folder {own.folder} for the images of annotations/{own.file.name}; "
                f"{wanted}"
            )
        return own
    for kind in kinds:
        if layout := _first(real, OF_A_SPLIT, NAMES[split], kind):
            return layout
    if worded := _worded(real, split, kinds):
        return worded
    if not _splits_are_named(real):
        for kind in kinds:
            if layout := _first(real, OF_BOTH, ("",), kind):
                return layout._replace(shared=True)
    if remedy := _other_tool(root, real):
        raise UserError(f"--data: {remedy}")
    if not (real / "annotations").is_dir():
        raise UserError(
            f"--data: {root} has no folder annotations; {wanted}; docs/data.md names other tools' layouts"
        )
    raise UserError(
        f"--data: {root}/annotations has no {kinds[0]}_{split}*.json; {wanted}"
    )


def _coco_layout(root: Path, real: Path, split: Split, kind: str) -> Layout | None:
    """Return COCO's own layout: the only annotations whose name begins with the split, or its 2017."""
    files = sorted(real.glob(f"annotations/{kind}_{split}*.json"))
    by_name = {path.stem[len(kind) + 1 :]: path for path in files}
    if f"{split}2017" in by_name:
        by_name = {f"{split}2017": by_name[f"{split}2017"]}
    if len(by_name) > 1:
        names = ", ".join(path.name for path in by_name.values())
        raise UserError(
            f"--data: {root}/annotations has {names}; leave one of them, or name the one "
            f"{kind}_{split}2017.json"
        )
    if not by_name:
        return None
    ((name, file),) = by_name.items()
    there = [
        folder
        for folder in (name, f"images/{name}", "images")
        if (real / folder).is_dir()
    ]
    return Layout(file, there[0] if there else name)


def _splits_are_named(real: Path) -> bool:
    """Return whether some annotations are of one split, so that no others can be of both."""
    own = any(
        any(real.glob(f"annotations/{kind}_{split}*.json"))
        for kind in KINDS
        for split in NAMES
    )
    own = own or any(_worded(real, split, KINDS) for split in NAMES)
    every = [name for names in NAMES.values() for name in names]
    return own or any(_first(real, OF_A_SPLIT, every, kind) for kind in KINDS)


def _worded(real: Path, split: Split, kinds: Sequence[str]) -> Layout | None:
    """Return the only annotations of which a word of their name is the split, however it is written, such as
    instances_Train.json or train_coco.json, and the images' folder of that name; None: there are not one."""
    others = OTHER_KINDS if "person_keypoints" in kinds else OTHER_KINDS | {"keypoints"}
    for folder in ("annotations", ""):
        files = [
            path
            for path in sorted((real / folder).glob("*.json"))
            if not _words(path) & others
        ]
        matches = [path for path in files if _words(path) & {*NAMES[split]}]
        kind = next(
            (
                kind
                for kind in kinds
                if any(kind in path.stem.lower() for path in matches)
            ),
            "",
        )
        matches = [path for path in matches if kind in path.stem.lower()]
        if len(matches) == 1:
            below = (
                place
                for at in ("", "images", "data")
                for place in sorted((real / at).glob("*/"))
            )
            there = (place for place in below if _words(place) & {*NAMES[split]})
            usual = (
                real / name for name in ("images", "data") if (real / name).is_dir()
            )
            images = next(chain(there, usual, [real]))
            return Layout(matches[0], str(images.relative_to(real)).removeprefix("."))
    return None


def _words(path: Path) -> set[str]:
    return {*re.split("[^a-z]+", path.stem.lower())}


def _first(
    real: Path,
    places: Sequence[tuple[str, Sequence[str]]],
    names: Sequence[str],
    kind: str,
) -> Layout | None:
    """Return the first place that has annotations. Raises UserError where it has several."""
    for pattern, folders in places:
        for name in names:
            files = sorted(real.glob(pattern.format(split=name, kind=kind)))
            if len(files) > 1:
                listed = ", ".join(file.name for file in files[:3]) + ", ..." * (
                    len(files) > 3
                )
                raise UserError(
                    f"--data: {files[0].parent} has {len(files)} JSON files ({listed}); "
                    "COCO's form is one file a split, leave that one"
                )
            if files:
                where = [folder.format(split=name) for folder in folders]
                there = [folder for folder in where if (real / folder).is_dir()]
                return Layout(files[0], there[0] if there else where[0])
    return None


def _other_tool(root: Path, real: Path) -> str:
    """Return a line for layouts that scripts.to_coco converts, "" for any other."""
    tool = ""
    for pattern in (
        "Annotations/*.xml",
        "*/Annotations/*.xml",
        "*/*/Annotations/*.xml",
    ):
        if file := next(real.glob(pattern), None):
            tool = "Pascal VOC"
            root = root / file.relative_to(real).parents[1]
            break
    if any(any(real.glob(pattern)) for pattern in YOLO):
        tool = "YOLO"
    convert = f"python -m scripts.to_coco {shlex.quote(str(root))} NEW_FOLDER"
    return (
        tool
        and f"{root} is in {tool}'s layout; {convert} makes COCO's of it, with links to its images"
    )
