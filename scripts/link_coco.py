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


def repeated(
    document: dict[str, Any], count: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return an annotation file of `count` images, and link -> file of its image.

    ValueError when there are more images than that.
    """
    images = document["images"]
    if not images or count < len(images):
        raise ValueError(
            f"--count {count} for {len(images)} images; each gets a link at least"
        )
    of_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for annotation in document["annotations"]:
        of_image[annotation["image_id"]].append(annotation)
    made: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    links = {}
    for image, copies in zip(images, shares(len(images), count), strict=True):
        for number in range(copies):
            image_id = len(made["images"]) + 1
            name = f"{number:05d}-{image['file_name'].strip('/').replace('/', '-')}"
            links[name] = image["file_name"]
            made["images"].append({**image, "id": image_id, "file_name": name})
            for annotation in of_image[image["id"]]:
                ids = {"id": len(made["annotations"]) + 1, "image_id": image_id}
                made["annotations"].append(annotation | ids)
    if len(links) < count:
        raise ValueError(
            "names of its image files differ only by / and -, or one is there twice"
        )
    return document | made, links


def link(root: Path, target: Path, count: int, *, symbolic: bool = False) -> int:
    """Make the set; return how many images of COCO it leads to. ValueError for what was asked or found."""
    files = [root / "annotations" / f"{kind}_{TRAIN}.json" for kind in KINDS]
    files = [path for path in files if path.exists()]
    if not files:
        raise ValueError(
            f"{root} has no annotations/instances_{TRAIN}.json; it must be in COCO's layout"
        )
    links: dict[str, str] = {}
    with filled(target, root) as fresh:
        for folder in (TRAIN, VAL, "annotations"):
            (fresh / folder).mkdir(parents=True, exist_ok=True)
        for path in files:
            try:
                document, of_kind = repeated(json.loads(read_text(path)), count)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path}: no annotation file of COCO: {error!r}"
                ) from None
            (fresh / "annotations" / path.name).write_text(
                json.dumps(document), encoding="utf-8"
            )
            links |= of_kind
            val = path.with_name(path.name.replace(TRAIN, VAL))
            if val.exists():
                shutil.copy(val, fresh / "annotations")
        for name, file in links.items():
            put(root / TRAIN / file, fresh / TRAIN / name, symbolic)
        for path in sorted((root / VAL).glob("*")):
            put(path, fresh / VAL / path.name, symbolic)
    return len({*links.values()})


def main(arguments: Sequence[str] | None = None) -> int:
    return command("link_coco", __doc__, link, "training images", arguments)


if __name__ == "__main__":
    sys.exit(main())
