"""`python -m scripts.imagenet TO --from FOLDER`: ImageNet as it is published, to a form that train.py reads.

FOLDER holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, and what says the classes of the latter:
ILSVRC2012_devkit_t12.tar.gz, imagenet_2012_validation_synset_labels.txt or Kaggle's LOC_val_solution.csv. Or
it holds Kaggle's ILSVRC/Data/CLS-LOC/ and LOC_val_solution.csv. Images are read where they lie, from the tars
in the tar too, and nothing is unpacked on the way. Counts and names are checked. What is interrupted goes on
when it is called again.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from contracts import Split, UserError
from dataset.images.scan import open_images
from dataset.open import cache_folder
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Files, ReadAt
from dataset.scan.cache import Progress, reading
from dataset.scan.manifest import Rejects, printable
from dataset.stores.shards import (
    Entry,
    Scan,
    Shard,
    Shelf,
    Stored,
    StoredEntries,
    open_shards,
)
from dataset.stores.tar import members
from models.classification import WNIDS
from report.console import Console
from scripts import Parser, exit_code
from scripts._reencode import add_arguments, asked
from scripts._stores import FORMATS
from scripts.pack import pack_splits
from system import storage
from system.user_files import open_bytes, read_text

COUNTS = {"train": 1_281_167, "val": 50_000}
NAMES = {
    "train": re.compile(rb"(n\d{8})/\1_\d+\.JPEG"),
    "val": re.compile(rb"n\d{8}/ILSVRC2012_val_\d{8}\.JPEG"),
}
ARCHIVE = "ILSVRC2012_img_{}.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
SYNSETS = "imagenet_2012_validation_synset_labels.txt"
SOLUTION = "LOC_val_solution.csv"
KAGGLE = "ILSVRC/Data/CLS-LOC"
TRUTH = f"{DEVKIT}, {SYNSETS} or {SOLUTION}"
ClassOf = Callable[[str], str]
"""Name of an image of val -> its class, such as n01440764. Raises UserError."""


# --- the classes of val -------------------------------------------------------------------------------------


def class_of_val(folder: Path) -> ClassOf:
    """Return what knows the classes of val, from the first of TRUTH that is there. Raises UserError."""
    file = next(
        (name for name in (DEVKIT, SYNSETS, SOLUTION) if (folder / name).exists()), None
    )
    if file is None:
        raise UserError(
            f"{folder} has none of {TRUTH}, which say the classes of val; put one there"
        )
    if file == SOLUTION:
        rows = csv.reader(io.StringIO(read_text(folder / file)))
        classes = {
            row[0]: row[1].split()[0]
            for row in rows
            if len(row) == 2 and row[1].strip()
        }
    else:
        in_order = (
            _of_devkit(folder / file)
            if file == DEVKIT
            else read_text(folder / file).split()
        )
        classes = {
            f"ILSVRC2012_val_{number:08d}": wnid
            for number, wnid in enumerate(in_order, start=1)
        }
    return partial(_class_of, file, classes)


def _class_of(file: str, classes: Mapping[str, str], name: str) -> str:
    if name.removesuffix(".JPEG") not in classes:
        raise UserError(
            f"{file} does not say the class of {name}; copy it again, or take the image away"
        )
    return classes[name.removesuffix(".JPEG")]


def _of_devkit(path: Path) -> list[str]:
    """Return the class of each image of val, in the order of their numbers. Raises UserError."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError(
            f"{DEVKIT} names the classes in Matlab's format, which needs the package scipy: pip install "
            f"scipy, or put {SYNSETS} there"
        ) from None
    try:
        with open_bytes(path) as file, tarfile.open(fileobj=file, mode="r:gz") as kit:
            held = {Path(member.name).name: member for member in kit.getmembers()}
            matlab, numbers = (
                (kit.extractfile(held[name]) or io.BytesIO()).read()
                for name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt")
            )
        synsets = loadmat(io.BytesIO(matlab), squeeze_me=True)["synsets"]
        name_of = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
        return [name_of[int(number)] for number in numbers.split()]
    except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is no devkit of ILSVRC2012, or damaged ({error}); copy it again"
        ) from None


# --- the images where they lie ------------------------------------------------------------------------------


def _walk(class_of: ClassOf | None, shard: Shard) -> Iterator[Entry]:
    """Yield the images of an archive: of train, without `class_of`, those of the tars in it."""
    # by headers alone: the images between them are large
    with (
        open(shard.path, "rb", buffering=0) as outer,
        open(shard.path, "rb", buffering=0) as inner,
    ):
        for member in members(outer, shard.path, shard.size):
            name_of_tar = Path(os.fsdecode(member.name)).name
            if member.unfit:
                shard.reject(member.name, member.unfit)
                continue
            images = iter([member])
            if class_of is None:
                inner.seek(member.offset)
                images = members(
                    inner, f"{shard.path}:{name_of_tar}", member.offset + member.size
                )
            for image in images:
                base = os.path.basename(os.fsdecode(image.name))
                wnid = (
                    name_of_tar.removesuffix(".tar")
                    if class_of is None
                    else class_of(base)
                )
                name = os.fsencode(f"{wnid}/{base}")
                if image.unfit:
                    shard.reject(name, image.unfit)
                else:
                    yield Entry(name, image.offset, image.size, wnid)


class Unpacked:
    """The images of Kaggle's folders: a dataset.stores.shards.Container. Those of val lie in no class."""

    def __init__(self, folder: Path, class_of: ClassOf | None) -> None:
        self._class_of = class_of
        self._files = Files(folder)

    def _place(self, key: bytes) -> bytes:
        return key if self._class_of is None else key.partition(b"/")[2]

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected."""
        with self._files.opened(self._place(key)) as file:
            yield file

    def shown(self, key: bytes) -> bytes:
        """Return the path of an image."""
        return self._files.shown(self._place(key))

    def files(self) -> Sequence[Path]:
        """Return the folders, which show a change."""
        root = self._files.root
        return (
            [root]
            if self._class_of
            else [root, *(path for path in sorted(root.iterdir()) if path.is_dir())]
        )

    def names(self) -> list[bytes]:
        """Return class/name of each image. Raises UserError."""
        if self._class_of is not None:
            return [
                os.fsencode(f"{self._class_of(name)}/{name}")
                for name in os.listdir(self._files.root)
            ]
        return [
            os.fsencode(f"{folder.name}/{name}")
            for folder in self.files()[1:]
            for name in os.listdir(folder)
        ]

    def close(self) -> None:
        """Do nothing: no file stays open."""


# --- a split ------------------------------------------------------------------------------------------------


def open_imagenet(
    folder: Path,
    split: str,
    *,
    cache: Path,
    any_count: bool,
    classes: Sequence[str] | None,
    progress: Progress,
) -> Split:
    """Return a split of ImageNet from archives or Kaggle's folders. Raises UserError."""
    real = Path(os.path.realpath(folder))
    class_of = class_of_val(real) if split == "val" else None
    archive = ARCHIVE.format(split)
    kaggle = real / KAGGLE / split
    key = ["imagenet 2", split, any_count]
    check = partial(require_names, split, any_count=any_count)
    if (real / archive).exists():
        shelf = Shelf(folder=real, names=[archive], paths=[real / archive])
        opened = open_shards(
            real,
            split,
            Scan(shelf=shelf, walk=partial(_walk, class_of)),
            key=key,
            where=str(real),
            check=check,
            classes=classes,
            cache=cache,
            progress=progress,
        )
    elif kaggle.is_dir():
        opened = _open_unpacked(
            real, Unpacked(kaggle, class_of), key, check, classes, cache, progress
        )
    else:
        raise UserError(
            f"{folder} has no {archive}, and no {KAGGLE}/{split}/; it must have one"
        )
    columns = opened.columns
    if columns.rejected and not any_count:
        raise UserError(
            f"{split}: {columns.rejected} images cannot be read, named in {columns.folder / 'rejected.txt'}; "
            "copy the archive again, or --any-count true leaves them out"
        )
    return opened


def _open_unpacked(
    real: Path,
    unpacked: Unpacked,
    key: list[object],
    check: Callable[[list[bytes]], None],
    classes: Sequence[str] | None,
    cache: Path,
    progress: Progress,
) -> Split:
    entries = StoredEntries(real, lambda _: unpacked, "all")

    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        entries.remember(visits, [])
        with reading(real):
            names = storage.in_scan(unpacked.names, lambda: str(real))
        check(names)
        labels = file_tree.numbered(
            sorted({os.fsdecode(name.partition(b"/")[0]) for name in names}),
            classes,
            "val has class",
        )
        file_tree.write_labelled(
            {name: labels[os.fsdecode(name.partition(b"/")[0])] for name in names}, made
        )
        return labels

    columns = open_images(
        real,
        entries,
        list_files,
        key=key,
        where=str(real),
        classes=classes,
        cache=cache,
        progress=progress,
    )
    return Split(columns=columns, source=Stored(columns, unpacked))


def require_names(split: str, names: Sequence[bytes], *, any_count: bool) -> None:
    """Raise UserError unless these are the names of the images of ILSVRC2012, all of them."""
    odd = next((name for name in names if not NAMES[split].fullmatch(name)), None)
    if odd is not None:
        raise UserError(
            f"{split} has '{printable(odd)}', which is no image of ILSVRC2012; take it away"
        )
    if any_count:
        return
    if len({*names}) != COUNTS[split]:
        raise UserError(
            f"{split} has {len({*names}):,} images, and ILSVRC2012 has {COUNTS[split]:,}; copy it again, or "
            "--any-count true takes a part of it"
        )
    classes = {os.fsdecode(name.partition(b"/")[0]) for name in names}
    if classes != {*read_text(WNIDS).split()}:
        raise UserError(
            f"{split} has {len(classes)} classes that are not the 1,000 of ILSVRC2012; copy it again"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("imagenet", __doc__)
    parser.add_argument(
        "target", metavar="TO", type=Path, help="folder of the result, for --data"
    )
    parser.add_argument(
        "--from", dest="data", metavar="FOLDER", type=Path, required=True
    )
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="folder", help="default: folder"
    )
    parser.add_argument(
        "--any-count",
        choices=("true", "false"),
        default="false",
        help="take a part of ImageNet",
    )
    parser.add_argument("--manifest-dir", type=Path, help="as of training")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    code = exit_code("imagenet", lambda: _run(options))
    if code == 130:
        print("imagenet: interrupted; the same command goes on", file=sys.stderr)
    return code


def _run(options: argparse.Namespace) -> int:
    console = Console()
    smaller = asked(options.max_side, options.quality, options.share)
    splits: dict[str, Split] = {}
    for name in COUNTS:
        with console.counting(name) as progress:
            splits[name] = open_imagenet(
                options.data,
                name,
                cache=cache_folder(options.manifest_dir),
                any_count=options.any_count == "true",
                classes=splits["train"].columns.classes if splits else None,
                progress=progress,
            )
        if line := splits[name].columns.left_out:
            console.warn(f"{name}: {line}")
    pack_splits(splits, options.data, options.target, options.format, console, smaller)
    print(f"{options.target}: --data {options.target} --source {options.format}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
