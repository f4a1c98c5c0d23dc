"""`python -m scripts.link_coco FROM TO --count N`: N training images of few, as links with annotations.

For an epoch as long as a large data set's. Each image gets N / images links, evenly spread, and each link the
annotations of its image under ids of its own. val2017 is linked as it is.

    FROM/train2017/a.jpg  ->  TO/train2017/0000-a.jpg, TO/train2017/0001-a.jpg, ...
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.link_set import command, filled, put, shares
from system.user_files import read_text

KINDS = ("instances", "person_keypoints")
VAL = "val2017"
TRAIN = "train2017"


def repeated(told: dict[str, Any], count: int) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return an annotation file of `count` images, and (file of an image, link to it). ValueError when there
    are more images than that."""
    images = told["images"]
    if not images or count < len(images):
        raise ValueError(f"--count {count} for {len(images)} images; each gets a link at least")
    of_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in told["annotations"]:
        of_image[one["image_id"]].append(one)
    made: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    links = []
    for image, its in zip(images, shares(len(images), count), strict=True):
        for number in range(its):
            place = len(made["images"]) + 1
            name = f"{number:05d}-{image['file_name'].strip('/').replace('/', '-')}"
            links.append((image["file_name"], name))
            made["images"].append({**image, "id": place, "file_name": name})
            for one in of_image[image["id"]]:
                made["annotations"].append({**one, "id": len(made["annotations"]) + 1, "image_id": place})
    if len({name for _, name in links}) < len(links):
        raise ValueError("names of its image files differ only by / and -, or one is there twice")
    return {**told, **made}, links


def link(root: Path, target: Path, count: int, *, symbolic: bool = False) -> int:
    """Make the set; return how many images of COCO it leads to. ValueError for what was asked or found,
    OSError from the file system."""
    files = {kind: root / "annotations" / f"{kind}_{TRAIN}.json" for kind in KINDS}
    files = {kind: path for kind, path in files.items() if path.exists()}
    if not files:
        raise ValueError(f"{root} has no annotations/instances_{TRAIN}.json; it must be in COCO's layout")
    found: dict[str, str] = {}  # link -> file
    with filled(target, root) as fresh:
        for folder in (TRAIN, VAL, "annotations"):
            (fresh / folder).mkdir(parents=True, exist_ok=True)
        for kind, path in files.items():
            try:
                told, links = repeated(json.loads(read_text(path)), count)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = (
                    str(error) if isinstance(error, ValueError) else f"no annotation file of COCO: {error!r}"
                )
                raise ValueError(f"{path}: {why}") from None
            (fresh / "annotations" / path.name).write_text(json.dumps(told), encoding="utf-8")
            found |= {name: file for file, name in links}
            val = root / "annotations" / f"{kind}_{VAL}.json"
            if val.exists():
                shutil.copy(val, fresh / "annotations" / val.name)
        places = [(root / TRAIN / file, fresh / TRAIN / name) for name, file in found.items()]
        places += [(path, fresh / VAL / path.name) for path in sorted((root / VAL).glob("*"))]
        for file, name in places:
            put(file, name, symbolic)
    return len(set(found.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    helps = (
        "folder in COCO's layout; never written to",
        "new folder, in the same layout",
        "training images, at least one link each",
    )
    return command("link_coco", __doc__, link, helps, "training images", arguments)


if __name__ == "__main__":
    sys.exit(main())
