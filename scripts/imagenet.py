"""`python -m scripts.imagenet TO --from FOLDER`: ImageNet as it is published, to a form that train.py reads.

FOLDER holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, and what says the classes of the latter:
ILSVRC2012_devkit_t12.tar.gz, imagenet_2012_validation_synset_labels.txt or Kaggle's LOC_val_solution.csv. Or
it holds Kaggle's ILSVRC/Data/CLS-LOC/ and LOC_val_solution.csv. Images are read where they lie, from the tars
in the tar too, and nothing is unpacked on the way. Counts and names are checked.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from contracts import Split, UserError
from dataset.open import cache_folder
from dataset.scan.cache import Progress
from dataset.scan.manifest import printable
from dataset.stores import source_named
from dataset.stores.shards import Entry, Shard, ShardList, ShardStore
from dataset.stores.tar import Member, members
from models.classification import WNIDS
from report.console import Console
from scripts import Parser, exit_code
from scripts._stores import FORMATS
from scripts.pack import pack_splits
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
TRUTH = (DEVKIT, SYNSETS, SOLUTION)
ClassOf = Callable[[str], str]
"""Name of an image of val -> its class, such as n01440764. Raises UserError."""


# --- the classes of val -------------------------------------------------------------------------------------


def class_of_val(folder: Path) -> ClassOf:
    """Return what knows the classes of val, from the first of TRUTH that is there. Raises UserError."""
    file = next((name for name in TRUTH if (folder / name).exists()), None)
    if file is None:
        raise UserError(
            f"{folder} has none of {', '.join(TRUTH)}, which say the classes of val; put one there"
        )
    if file == SOLUTION:
        rows = csv.reader(io.StringIO(read_text(folder / file)))
        known = [
            (row[0], row[1].split()[0])
            for row in rows
            if len(row) == 2 and row[1].strip()
        ]
    else:
        ordered = (
            _of_devkit(folder / file)
            if file == DEVKIT
            else read_text(folder / file).split()
        )
        known = [
            (f"ILSVRC2012_val_{number:08d}", wnid)
            for number, wnid in enumerate(ordered, 1)
        ]
    classes = dict(known)

    def class_of(name: str) -> str:
        image = os.path.basename(name).removesuffix(".JPEG")
        if image not in classes:
            raise UserError(
                f"{file} does not say the class of {name}; copy it again, or take the image away"
            )
        return classes[image]

    return class_of


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
    for member in members(shard.file, shard.path, shard.size):
        if member.unfit:
            shard.reject(member.name, member.unfit)
        elif class_of is None:
            wnid = Path(os.fsdecode(member.name)).stem
            shard.file.seek(member.offset)
            end = member.offset + member.size
            for image in members(shard.file, f"{shard.path}:{wnid}.tar", end):
                yield from _entry(shard, image, wnid)
        else:
            yield from _entry(shard, member, class_of(os.fsdecode(member.name)))


def _entry(shard: Shard, image: Member, wnid: str) -> Iterator[Entry]:
    name = os.fsencode(wnid) + b"/" + image.name.rpartition(b"/")[2]
    if image.unfit:
        shard.reject(name, image.unfit)
    else:
        yield Entry(name, image.offset, image.size, wnid)


def _in_class_folders(folder: Path, class_of: ClassOf, cache: Path) -> Path:
    """Return a folder below `cache` with a link to each of Kaggle's images of val, in class folders."""
    digest = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    made = cache / f"imagenet-val-{digest}"
    wanted = {made / "val" / class_of(name) / name for name in os.listdir(folder)}
    # a corrected list of classes moves images: a link from before would be a second sample of one
    for link in set(made.glob("val/*/*")) - wanted:
        link.unlink()
    for link in wanted:
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder / link.name)
    return made


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
    store = source_named("folder")
    if (real / archive).exists():
        kind = SimpleNamespace(
            ENDING=".tar",
            find=lambda data, _: ShardList.of_files(data, [archive]),
            walk=partial(_walk, class_of),
        )
        store = ShardStore("imagenet", kind)
    elif not (real / KAGGLE / split).is_dir():
        raise UserError(
            f"{folder} has no {archive}, and no {KAGGLE}/{split}/; it must have one"
        )
    elif class_of is None:
        real = real / KAGGLE
    else:
        real = _in_class_folders(real / KAGGLE / split, class_of, cache)
    opened: Split = store.open(
        real, split, cache=cache, classes=classes, progress=progress
    )
    _require_whole(split, opened.columns, any_count=any_count)
    return opened


def _require_whole(split: str, columns: Any, *, any_count: bool) -> None:
    """Raise UserError unless these are the images of ILSVRC2012, all of them."""
    names = (columns.entry(sample) for sample in range(len(columns)))
    odd = next((name for name in names if not NAMES[split].fullmatch(name)), None)
    if odd is not None:
        raise UserError(
            f"{split} has '{printable(odd)}', which is no image of ILSVRC2012; take it away"
        )
    wnids = {*read_text(WNIDS).split()}
    whole = len(columns) == COUNTS[split] and {*columns.classes} == wnids
    if not any_count and (columns.rejected or not whole):
        raise UserError(
            f"{split} has {len(columns):,} images of {len(columns.classes):,} classes, and {columns.rejected} "
            f"that cannot be read ({columns.folder / 'rejected.txt'}); ILSVRC2012 has {COUNTS[split]:,} of "
            "1,000: copy it again, or --any-count true takes a part of it"
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
    options = parser.parse_args(arguments)
    return exit_code("imagenet", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    console = Console()
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
    pack_splits(splits, options.data, options.target, options.format, console)
    print(f"{options.target}: --data {options.target} --source {options.format}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
