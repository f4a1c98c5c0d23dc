"""`python -m benchmarks link-set FROM TO --count N`: N images of few, as links; copies no pixels.

For a pass as long as a large data set's. Each file gets N / files links, evenly spread, in a folder of its
class; of a set in COCO's layout the training images do, each with the annotations of its image under ids of
its own, and val2017 is linked as it is:

    FROM/cat/a.jpg        ->  TO/cat/0000-a.jpg, TO/cat/0001-a.jpg, ...
    FROM/train2017/a.jpg  ->  TO/train2017/00000-a.jpg, TO/train2017/00001-a.jpg, ...

All links to one file share its place in the page cache: the storage is read once for each.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saturate.run.folders import filled
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program
from saturate.system.user_files import read_text

KINDS = ("instances", "person_keypoints")
TRAIN = "train2017"
VAL = "val2017"


def sources(root: Path) -> list[Path]:
    """Return the files in <class>/ or train/<class>/. Raises ValueError where there are none."""
    top = _top(root)
    files = [path for path in sorted(top.rglob("*")) if path.is_file()]
    parts = [path.relative_to(top).parts for path in files]
    in_classes = [
        path
        for path, names in zip(files, parts, strict=True)
        if len(names) > 1 and not any(name.startswith(".") for name in names)
    ]
    if not in_classes:
        raise ValueError(
            f"{root} has no files in <class>/* or train/<class>/*, and no annotations/instances_{TRAIN}.json"
        )
    return in_classes


def _top(root: Path) -> Path:
    return root / "train" if (root / "train").is_dir() else root


def shares(root: Path, files: int, count: int) -> list[int]:
    """Return how many links each file gets; those that get one more are spread over the list.

    Raises ValueError for fewer links than files.
    """
    if not files or count < files:
        raise ValueError(
            f"--count {count} is less than the {files} files of {root}; each gets a link at least"
        )
    return [(i + 1) * count // files - i * count // files for i in range(files)]


def link(root: Path, target: Path, count: int, *, symbolic: bool = False) -> int:
    """Make the links; return the number of files they lead to.

    Raises ValueError for what was asked, and OSError from the file system.
    """
    names: dict[Path, Path] = {}  # link below TO -> file
    documents = {
        path.name: _repeated(path, root, count, names)
        for kind in KINDS
        if (path := root / f"annotations/{kind}_{TRAIN}.json").exists()
    }
    if documents:
        linked = len({*names.values()})
        for path in sorted((root / VAL).glob("*")):
            names[Path(VAL, path.name)] = path
    else:
        top = _top(root)
        files = sources(root)
        linked = len(files)
        copies = shares(root, linked, count)
        for file, number in zip(files, copies, strict=True):
            below = file.relative_to(top)
            names |= {
                below.with_name(f"{i:04d}-{file.name}"): file for i in range(number)
            }
    with filled(target, root) as fresh:
        for name, file in names.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # what it is itself a link to
            real = file.resolve()
            path.symlink_to(real) if symbolic else os.link(real, path)
        if documents:
            (fresh / "annotations").mkdir()
        for file_name, document in documents.items():
            (fresh / "annotations" / file_name).write_text(json.dumps(document))
            val = root / "annotations" / file_name.replace(TRAIN, VAL)
            if val.exists():
                shutil.copy(val, fresh / "annotations")
    return linked


def _repeated(
    file: Path, root: Path, count: int, names: dict[Path, Path]
) -> dict[str, Any]:
    """Return an annotation file of `count` images, and add the link of each to `names`.

    Raises ValueError.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    try:
        document = json.loads(read_text(file))
        of_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for annotation in document["annotations"]:
            of_image[annotation["image_id"]].append(annotation)
        copies = shares(root, len(document["images"]), count)
        for image, number in zip(document["images"], copies, strict=True):
            for i in range(number):
                image_id = len(images) + 1
                name = f"{i:05d}-{image['file_name'].strip('/').replace('/', '-')}"
                names[Path(TRAIN, name)] = root / TRAIN / image["file_name"]
                images.append({**image, "id": image_id, "file_name": name})
                for annotation in of_image[image["id"]]:
                    ids = {"id": len(annotations) + 1, "image_id": image_id}
                    annotations.append(annotation | ids)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: no annotation file of COCO: {error!r}") from None
    if len({image["file_name"] for image in images}) < count:
        raise ValueError(
            f"{file}: names of its images differ only by / and -, or one is there twice"
        )
    return {**document, "images": images, "annotations": annotations}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("link_set", __doc__)
    parser.add_argument(
        "source", metavar="FROM", type=Path, help="folder; never written to"
    )
    parser.add_argument("target", metavar="TO", type=Path, help="new folder")
    parser.add_argument(
        "--count", type=int, required=True, help="links to files, at least one each"
    )
    parser.add_argument(
        "--symbolic",
        action="store_true",
        help="symbolic links, also to another file system; else hard links",
    )
    options = parser.parse_args(arguments)

    def work() -> int:
        try:
            linked = link(
                options.source, options.target, options.count, symbolic=options.symbolic
            )
        except OSError as error:
            hint = "" if options.symbolic else "; try --symbolic"
            path = error.filename2 or error.filename or options.target
            raise ValueError(f"{path}: {error.strerror}{hint}") from None
        print(f"{options.target}: {options.count} links to {linked} files")
        return 0

    return of_program("link_set", work, ValueError)
