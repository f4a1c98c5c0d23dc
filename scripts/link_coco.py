"""`python -m scripts.link_coco COCO TO --count N`: N training images of few, as links, with their annotations; copies no pixels.

For an epoch as long as a large data set's. Each image gets N / images links, evenly spread, and each link the annotations of its image
under ids of its own. val2017 is linked as it is.

    COCO/train2017/a.jpg  ->  TO/train2017/0000-a.jpg, TO/train2017/0001-a.jpg, ...
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.link_set import shares

KINDS = ("instances", "person_keypoints")
VAL = "val2017"
TRAIN = "train2017"


def repeated(told: dict[str, Any], count: int) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """An annotation file of `count` images, and (file of an image, link to it). ValueError when there are more images than that."""
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
            place, name = len(made["images"]) + 1, f"{number:05d}-{image['file_name'].strip('/').replace('/', '-')}"
            links.append((image["file_name"], name))
            made["images"].append({**image, "id": place, "file_name": name})
            for one in of_image[image["id"]]:
                made["annotations"].append({**one, "id": len(made["annotations"]) + 1, "image_id": place})
    if len({name for _, name in links}) < len(links):
        raise ValueError("names of its image files differ only by / and -, or one is there twice")
    return {**told, **made}, links


def link(root: Path, target: Path, count: int, *, symbolic: bool = False) -> int:
    """Make the set; how many images of COCO it leads to. ValueError for what was asked or found, OSError from the file system."""
    files = {kind: root / "annotations" / f"{kind}_{TRAIN}.json" for kind in KINDS}
    files = {kind: path for kind, path in files.items() if path.exists()}
    if not files:
        raise ValueError(f"{root} has no annotations/instances_{TRAIN}.json; it must be in COCO's layout")
    if target.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{target} lies inside {root}, which is never written to; name a folder elsewhere")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there and not empty; name a new folder")
    fresh = target.with_name(f".{target.name}.{os.getpid()}.partial")  # whatever has the name TO is whole
    found: dict[str, str] = {}  # link -> file
    try:
        for folder in (TRAIN, VAL, "annotations"):
            (fresh / folder).mkdir(parents=True, exist_ok=True)
        for kind, path in files.items():
            try:
                told, links = repeated(json.loads(path.read_text(encoding="utf-8")), count)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = str(error) if isinstance(error, ValueError) else f"no annotation file of COCO: {error!r}"
                raise ValueError(f"{path}: {why}") from None
            (fresh / "annotations" / path.name).write_text(json.dumps(told), encoding="utf-8")
            found |= {name: file for file, name in links}
            val = root / "annotations" / f"{kind}_{VAL}.json"
            if val.exists():
                shutil.copy(val, fresh / "annotations" / val.name)
        places = [(root / TRAIN / file, fresh / TRAIN / name) for name, file in found.items()]
        places += [(path, fresh / VAL / path.name) for path in sorted((root / VAL).glob("*"))]
        for real, name in places:
            name.symlink_to(real.resolve()) if symbolic else os.link(real.resolve(), name)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return len(set(found.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="link_coco", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="COCO", type=Path, help="folder in COCO's layout; never written to")
    parser.add_argument("target", metavar="TO", type=Path, help="new folder, in the same layout")
    parser.add_argument("--count", type=int, required=True, help="training images, at least one link each")
    parser.add_argument("--symbolic", action="store_true", help="symbolic links, also to another file system; else hard links")
    options = parser.parse_args(arguments)
    try:
        images = link(options.source, options.target, options.count, symbolic=options.symbolic)
    except ValueError as error:
        print(f"link_coco: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        hint = "" if options.symbolic else "; --symbolic links to another file system too"
        print(f"link_coco: {error.filename2 or error.filename}: {error.strerror}{hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"{options.target}: {options.count} links to {images} training images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
