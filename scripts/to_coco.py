"""`python -m scripts.to_coco FROM TO`: COCO's annotations of a set in YOLO's or Pascal VOC's layout.

    YOLO          data.yaml, images/train/a.jpg, labels/train/a.txt: boxes, polygons or keypoints as shares
    Pascal VOC    Annotations/a.xml, JPEGImages/a.jpg, ImageSets/Main/train.txt and val.txt

TO gets annotations/instances_<split>.json and <split>, a link to FROM, which is never written to and has to
stay where it is. Where FROM names no splits there is one file of both, of which a tenth validates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts import one_line
from scripts import Parser
from scripts._labels import Labels, Left
from scripts._voc import read_voc
from scripts._yolo import read_yolo
from scripts.link_set import filled

KINDS = {False: ("instances",), True: ("instances", "person_keypoints")}
"""Whether there are keypoints -> the annotation files that are written."""


def converted(root: Path, labels: Labels, images: Sequence[Path], left: Left) -> dict[str, Any]:
    """Return the document of one split. `images` are paths below `root`."""
    made: dict[str, Any] = {"images": [], "annotations": [], "categories": labels.categories}
    for path in images:
        number = len(made["images"]) + 1
        try:
            (height, width), shapes = labels.read(root, path, left)
        except ValueError as error:
            left(path, str(error))
            continue
        made["images"].append({"id": number, "file_name": path.as_posix(), "height": height, "width": width})
        for shape in shapes:
            own = {"id": len(made["annotations"]) + 1, "image_id": number, "iscrowd": 0}
            made["annotations"].append({**own, **shape})
    return made


def convert(root: Path, target: Path, left: Left) -> dict[str, tuple[int, int]]:
    """Write TO; return split -> (images, annotations). ValueError for what was found, OSError from files."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder")
    labels = read_voc(root) if any(root.glob("Annotations/*.xml")) else read_yolo(root)
    counts = {}
    with filled(target, root) as fresh:
        (fresh / "annotations").mkdir(parents=True)
        for split, images in labels.splits.items():
            document = converted(root, labels, images, left)
            if not document["images"]:
                raise ValueError(f"{root}: no image of {split} can be used; {left.said() or 'there is none'}")
            for kind in KINDS[labels.keypoints]:
                text = json.dumps(document)
                (fresh / "annotations" / f"{kind}_{split}.json").write_text(text, encoding="utf-8")
            folder = "images" if split == "default" else split
            (fresh / folder).symlink_to(root.resolve(), target_is_directory=True)
            counts[split] = len(document["images"]), len(document["annotations"])
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("to_coco", __doc__)
    parser.add_argument("source", metavar="FROM", type=Path, help="folder of the set; never written to")
    parser.add_argument("target", metavar="TO", type=Path, help="new folder, for --data")
    options = parser.parse_args(arguments)
    left = Left()
    try:
        counts = convert(options.source, options.target, left)
    except ValueError as error:
        print(one_line(f"to_coco: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(one_line(f"to_coco: {error.filename or options.target}: {error.strerror}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    parts = [f"{split} {images:,} images, {boxes:,} boxes" for split, (images, boxes) in counts.items()]
    print(f"{options.target}: {'; '.join(parts)}")
    if left.count:
        print(one_line(f"to_coco: {left.said()}"), file=sys.stderr)
    if left.turned:
        print(f"EXIF turns {left.turned:,} images; where boxes are of what is shown, train with --exif shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
