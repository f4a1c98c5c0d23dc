"""`python -m scripts.to_coco FROM TO`: COCO's annotations of a set in YOLO's layout.

    data.yaml             names of the classes; folders, or lists, of the images of train and val
    images/train/a.jpg
    labels/train/a.txt    a line an object: its class, then a box or a polygon as shares of the sides

TO gets annotations/instances_<split>.json and <split>, a link to FROM, which is never written to and has to
stay where it is.
"""

from __future__ import annotations

import json
import mimetypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import ExifTags, Image

from contracts import one_line
from scripts import Parser, exit_code
from scripts.link_set import filled
from settings.preset import parsed
from system.user_files import open_bytes, read_text

Annotation = dict[str, Any]
"""An annotation in COCO's form, without its ids."""


def convert(root: Path, target: Path) -> tuple[list[str], list[str]]:
    """Write TO; return a line for each split, and what is left out. Raises ValueError for what the set holds."""
    file = root / "data.yaml"
    try:
        settings = dict(parsed(read_text(file)))
        names = settings["names"]
        if isinstance(names, dict):
            names = [names[i] for i in range(len(names))]
        names = [str(name) for name in names]
        splits = {split: images_of(root, settings, split) for split in ("train", "val")}
    except (OSError, yaml.YAMLError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"{file}: no YAML mapping with names, train and val: {error!r}"
        ) from None
    categories = [{"id": i, "name": name} for i, name in enumerate(names, start=1)]
    lines: list[str] = []
    left_out: list[str] = []
    with filled(target, root) as fresh:
        (fresh / "annotations").mkdir(parents=True)
        for split, paths in splits.items():
            images: list[dict[str, Any]] = []
            annotations: list[Annotation] = []
            for path in paths:
                try:
                    width, height = shown_size(root / path)
                except ValueError as error:
                    left_out.append(f"{path}: {error}")
                    continue
                image_id = len(images) + 1
                image = {"id": image_id, "file_name": path.as_posix()}
                images.append(image | {"height": height, "width": width})
                for line in label_lines(root / path):
                    try:
                        found = annotation(line, (width, height), len(names))
                    except ValueError as error:
                        left_out.append(f"a label of {path}: {error}")
                        continue
                    ids = {"id": len(annotations) + 1, "image_id": image_id}
                    annotations.append({**ids, "iscrowd": 0, **found})
            if not images:
                why = f"left out: {left_out[0]}" if left_out else "there is none"
                raise ValueError(f"{root}: no image of {split} can be used; {why}")
            document = {"images": images, "annotations": annotations}
            (fresh / f"annotations/instances_{split}.json").write_text(
                json.dumps({**document, "categories": categories})
            )
            (fresh / split).symlink_to(root.resolve(), target_is_directory=True)
            lines.append(f"{split} {len(images):,} images, {len(annotations):,} boxes")
    return lines, left_out


def images_of(root: Path, settings: Mapping[str, Any], split: str) -> list[Path]:
    """Return the images of a split, below `root`. Raises ValueError, and LookupError without an entry."""
    entry: Any = settings[split]
    found: list[Path] = []
    for named in entry if isinstance(entry, list) else [entry]:
        path = Path(str(named))
        # exports write train: ../train/images, of a data.yaml beside train/
        inside = Path(*[part for part in path.parts if part not in ("..", ".")])
        bases = [root / str(settings.get("path") or ""), root]
        real = root.resolve()
        places = [(base / name).resolve() for name in (path, inside) for base in bases]
        place = next((p for p in places if p.exists() and p.is_relative_to(real)), None)
        if place is None:
            raise ValueError(f"{named}, which data.yaml names, is not in {root}")
        if place.is_dir():
            found += [
                each.relative_to(real)
                for each in sorted(place.rglob("*"))
                if (mimetypes.guess_type(each.name)[0] or "").startswith("image/")
            ]
        else:
            lines = [Path(line.strip()) for line in read_text(place).splitlines()]
            found += [
                line.relative_to(real) if line.is_relative_to(real) else line
                for line in lines
                if line.name
            ]
    return found


def shown_size(path: Path) -> tuple[int, int]:
    """Return width and height as a viewer shows an image, which labels are of. Raises ValueError."""
    try:
        with open_bytes(path) as file, Image.open(file) as image:
            turn = image.getexif().get(ExifTags.Base.Orientation, 1)
            # Pillow turns TIFF itself
            turned = turn in range(5, 9) and image.format != "TIFF"
            return (image.height, image.width) if turned else image.size
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None


def label_lines(image: Path) -> list[str]:
    """Return the lines of the file of labels beside an image; none where there is no file."""
    parts = list(image.parts)
    # the last folder of this name
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    file = Path(*parts).with_suffix(".txt")
    lines = read_text(file).splitlines() if file.exists() else []
    return [line for line in lines if line.strip()]


def annotation(line: str, size: tuple[int, int], classes: int) -> Annotation:
    """Return the annotation of a line, in an image of width and height `size`. Raises ValueError."""
    label, *values = map(float, line.split())
    if label not in range(classes) or not np.isfinite(values).all():
        raise ValueError(f"{line!r:.60}: no class of 0 to {classes - 1}, or no number")
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise ValueError(
            f"{len(values)} numbers behind the class; a box has 4, a polygon 6 or more"
        )
    points = np.reshape(values, (-1, 2)) * size
    if len(values) == 4:
        middle, extent = points
        first = middle - extent / 2
        area = float(extent.prod())
        shape = {}
    else:
        x, y = points.T
        first = points.min(0)
        extent = points.max(0) - first
        area = abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
        shape = {"segmentation": [points.ravel().tolist()]}
    box = [*first.tolist(), *extent.tolist()]
    return {"category_id": int(label) + 1, "bbox": box, "area": area, **shape}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("to_coco", __doc__)
    parser.add_argument(
        "source", metavar="FROM", type=Path, help="folder of the set; never written to"
    )
    parser.add_argument(
        "target", metavar="TO", type=Path, help="new folder, for --data"
    )
    options = parser.parse_args(arguments)

    def run() -> int:
        lines, left_out = convert(options.source, options.target)
        print(f"{options.target}: {'; '.join(lines)}")
        if left_out:
            what = f"to_coco: {len(left_out):,} left out, first {left_out[0]}"
            print(one_line(what), file=sys.stderr)
        return 0

    return exit_code("to_coco", run, ValueError)


if __name__ == "__main__":
    sys.exit(main())
