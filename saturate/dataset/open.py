"""Opens both splits of a data set with the source that fits, and warns of likely mistakes."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

import numpy as np

from saturate.contracts import (
    MAX_PIXELS,
    Array,
    Columns,
    LabelColumns,
    Split,
    UserError,
)
from saturate.dataset import copies, val_split
from saturate.dataset.coco import layouts
from saturate.dataset.coco.columns import Instances
from saturate.dataset.coco.scan import open_coco
from saturate.dataset.images.columns import Images, as_shown, exif_note
from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.scan import leave_out, lists, names
from saturate.dataset.scan.cache import Options, Progress
from saturate.dataset.scan.file_tree import is_folder
from saturate.dataset.stores import choose_source, source_named, what_holds
from saturate.dataset.stores.bucket import local
from saturate.dataset.stores.folder import Folder
from saturate.dataset.stores.read_ahead import latency_note, read_ahead, size_note
from saturate.dataset.synthetic import synthetic
from saturate.system.resources import memory_bytes

if TYPE_CHECKING:
    # a loop of one's own has settings of its own
    from saturate.settings.data import Data

Content = Literal["images", "videos", "instances", "keypoints"]
"""Images with a label, videos with a label, images with boxes and masks, images with boxes and keypoints."""
SPLITS = ("train", "val")
_COCO = "a folder in COCO's layout: train2017/, val2017/ and annotations/"
_HOLDS: dict[Content, str] = {
    "videos": "a folder with train/<class>/* and val/<class>/*, or the lists train.csv and val.csv",
    "instances": _COCO,
    "keypoints": _COCO,
}
Open = Callable[..., Split[Any]]


def holds(content: Content, source: str) -> str:
    """Return what --data must be, in words."""
    return _HOLDS.get(content) or what_holds(source)


def cache_folder(chosen: Path | None) -> Path:
    """Return the folder in which manifests are kept."""
    return (
        chosen
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saturate"
    )


def are_files(settings: Data, content: Content) -> bool:
    """Whether each sample of both splits will be a file of its own: what --loader auto depends on.

    Looks at names alone, of what would be opened: anything else below --data does not matter. What cannot be
    opened counts as files, and `open_splits` says what is wrong with it.
    """
    if settings.data is None or content != "images":
        return True
    for split in SPLITS:
        with suppress(UserError):
            name = choose_source(settings.source, _root(settings), split)
            if not source_named(name).FILES:
                return False
    return True


def open_split(
    root: Path,
    *,
    source: str = "auto",
    labels: str | None = None,
    classes: Sequence[str] | None = None,
    cache: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Split[Images]:
    """Open one split of images with a label, scanned once and found again in milliseconds.

    For a loader in one's own loop. `Path("DATA/train")` is the split `train` of DATA, as `source`, a name of
    SOURCES or auto, finds it there: in folders DATA/train/<class>/, or in another form. `labels` is what
    --lmdb-label or --label-key says. `classes` are those of training, by which a validation is numbered. Raises
    UserError.
    """
    data, name = os.path.split(os.path.abspath(root))
    module = source_named(choose_source(source, Path(data), name))
    options = {} if labels is None else {"labels": labels}
    split: Split[Images] = module.open(
        Path(data),
        name,
        classes=classes,
        cache=cache_folder(cache),
        max_pixels=max_pixels,
        **options,
    )
    return split


class Console(Protocol):
    """What opening data asks of a console. Implemented by report/console.py."""

    def info(self, *lines: str) -> None:
        """Say what is good to know."""

    def warn(self, line: str) -> None:
        """Say what may be a mistake."""

    def counting(self, what: str) -> AbstractContextManager[Progress]:
        """Show the progress of a scan of `what` while the body runs."""


def open_splits(
    settings: Data,
    *,
    content: Content = "images",
    loader: str,
    read_delay_s: float = 0.0,
    read_threads: int | None = None,
    evaluate: bool = False,
    split: str = "val",
    validates: bool = True,
    may_be_whole: bool = False,
    model: ModelClasses | None = None,
    trained: val_split.Trained | None = None,
    console: Console,
) -> dict[str, Split[Any]]:
    """Open {"train": ..., "val": ...}, the data that the settings name; only the synthetic loader needs none.

    Validation is the `split` of that name, and has training's classes. To `evaluate`, it is enough and stands for
    both; where a training never `validates`, train is; and a folder a class, without train/, where it `may_be_whole`.
    With a `model`, which was trained on classes of these names,
    val alone is opened, and has the model's classes; that may be a folder with a folder a class, without val/.
    `trained` says what a checkpoint was trained on, whose --val-share stays. Raises UserError.
    """
    if settings.data is None:
        if loader != "synthetic":
            raise UserError(
                f"--data is missing: --loader {loader} reads files; "
                f"{holds(content, settings.source)}, or --loader synthetic"
            )
        return synthetic(content)
    root = _root(settings)
    how: dict[str, Any] = {
        "cache": cache_folder(settings.manifest_dir),
        "rescan": settings.rescan,
        "max_pixels": settings.max_pixels,
        "read_delay_s": read_delay_s,
    }
    if settings.leave_out:
        how["leave_out"] = leave_out.listed(settings.leave_out, root, console.warn)
    whole = (split == "val" and model and _is_val(settings, root, content, model)) or (
        may_be_whole and _is_whole(settings, root, content)
    )
    if beside := _beside(settings, root, content, split, whole=bool(whole)):
        console.info(f"--data: beside what is read, left out: {', '.join(beside)}")
    if settings.val_share is not None:
        if split == "test":
            raise UserError(
                "--split test: --val-share makes train and val of one folder; name the --data that has test/"
            )
        splits = _shared(settings, root, content, console, how, trained)
    elif whole:
        splits = {"val": _whole(root, settings, console, how)}
        _tell_of_whole(splits["val"], settings, content, console)
    else:
        splits = {}
        classes: tuple[str, ...] | None = None
        needed = (split,) if evaluate else SPLITS if validates else ("train",)
        openers, absent = _openers(settings, root, content, needed, split)
        if model is not None:
            openers = {split: openers[split]}
        elif absent and evaluate:
            reason = f"train: not read, the classes are those of {split}"
            console.warn(f"{reason}; {absent}")
        elif absent:
            console.info(f"val: not read, and nothing is validated; {absent}")
        for name, open_it in openers.items():
            with console.counting(name) as progress:
                opened = open_it(classes=classes, progress=progress, **how)
            _set_reads(name, opened, settings, read_threads, content, console)
            _tell(name, opened, settings, content, console, classes)
            classes = opened.columns.classes
            splits[name] = opened
        tell_of_copies(splits, console)
    if settings.exif == "shown":
        splits = {
            name: replace(one, columns=as_shown(one.columns))
            for name, one in splits.items()
        }
    if model is not None:
        splits = {split: _under(model, splits[split], console)}
    splits = {name: replace(one, beside=beside) for name, one in splits.items()}
    (only, *_) = splits.values()
    return {"train": splits.get("train", only), "val": splits.get(split, only)}


def _root(settings: Data) -> Path:
    """Return the folder of the data, or the one that stands for its URL. Raises UserError."""
    return local(settings.data or "", cache_folder(settings.manifest_dir))


def _shared(
    settings: Data,
    root: Path,
    content: Content,
    console: Console,
    how: Mapping[str, Any],
    trained: val_split.Trained | None,
) -> dict[str, Split[Any]]:
    """Open the class folders of `root` as two splits, of which --val-share validates. Raises UserError."""
    _require_shared(settings, root, content)
    whole = _whole(root, settings, console, how)
    splits, counts, mistakes = val_split.parted(
        whole,
        settings.val_share or 0.0,
        settings.val_seed,
        settings.val_group,
        trained,
        settings.val_fold,
    )
    # not before it is known that these are a checkpoint's own data: others are opened again
    _tell_of_whole(whole, settings, content, console)
    console.info(*counts)
    for line in mistakes:
        console.warn(line)
    return splits


def _whole(
    root: Path, settings: Data, console: Console, how: Mapping[str, Any]
) -> Split[Any]:
    """Open the class folders of `root`. Raises UserError."""
    with console.counting("images") as progress:
        whole: Split[Images] = source_named("folder").open(
            root.parent,
            root.name,
            unwanted=names.unwanted(root, settings.classes, at_top=True),
            chosen=settings.classes is not None,
            progress=progress,
            **how,
        )
    return whole


def _tell_of_whole(
    whole: Split[Images], settings: Data, content: Content, console: Console
) -> None:
    """Say what a scan of class folders warns of, and which images are copies of one another."""
    _tell("images", whole, settings, content, console)
    tell_of_copies({"images": whole}, console)


def _is_val(settings: Data, root: Path, content: Content, model: ModelClasses) -> bool:
    """Whether `root` has no val/, and folders of classes of the model, all of which are then evaluated."""
    if content != "images" or settings.multi_label or not root.is_dir():
        return False
    if settings.source not in ("auto", "folder") or (root / "val").exists():
        return False
    folders = names.folders(root)
    return bool({*folders} & {*model.names}) and not names.splits_among(folders)


def _is_whole(settings: Data, root: Path, content: Content) -> bool:
    """Whether `root` has no split, and folders of classes. Raises UserError where these may be another thing."""
    try:
        require_splits(settings, content, validates=False)
    except UserError:
        _require_shared(settings, root, content)
        return True
    return False


def tell_of_copies(splits: Mapping[str, Split[Any]], console: Console) -> None:
    """Warn of samples with the same bytes in training and validation, or in two classes; or say why not."""
    if why := next(filter(None, map(copies.why_not, splits.values())), ""):
        console.info(f"copies of samples were not looked for: {why}")
        return
    for line in copies.warnings(splits):
        console.warn(line)


def _beside(
    settings: Data, root: Path, content: Content, val: str, *, whole: bool
) -> list[str]:
    """Return what lies at the top of the data and is not read; nothing where a list may name what lies anywhere."""
    if settings.val_share is not None or whole:
        unwanted = names.unwanted(root, settings.classes, at_top=True)
        return names.beside(root, {*names.folders(root)} - unwanted.keys())
    read: set[str] = set()
    sources: set[str] = set()
    for split in ("train", val):
        # the other one may do
        with suppress(UserError):
            if content in ("instances", "keypoints"):
                points = content == "keypoints"
                layout = layouts.find(root, split, keypoints=points)
                # images beside the annotations lie in no folder
                sources |= set() if layout.folder else {"list"}
                file = layout.file.relative_to(os.path.realpath(root))
                read |= {layout.folder.partition("/")[0], file.parts[0]}
            elif content == "videos":
                sources.add("list" if list_of(root, split) else "folder")
            else:
                sources.add(choose_source(settings.source, root, split))
        read |= {split, f"{split}.lmdb"}
    return [] if sources & {"list", "arrow"} else names.beside(root, read)


def _set_reads(
    name: str,
    split: Split[Any],
    settings: Data,
    threads: int | None,
    content: Content,
    console: Console,
) -> None:
    """Say how a split is read, and what that costs."""
    far = read_ahead(split.source, threads, settings.cache_dir, settings.cache_gib)
    if name != "train":
        return
    if far:
        console.info(latency_note(split.source))
    size = 0 if content == "videos" else int(split.columns.size.sum())
    again = far and not settings.cache_dir
    if line := size_note(size, len(split.columns), memory_bytes(), far=again):
        console.info(f"train: {line}")


def _tell(
    name: str,
    split: Split[Any],
    settings: Data,
    content: Content,
    console: Console,
    expected: tuple[str, ...] | None = None,
) -> None:
    """Say what a scan warns of, and what of the split may be a mistake; `expected` are training's classes."""
    columns = split.columns
    # the run's folder gets a copy
    lines = [columns.left_out.replace(f"{columns.folder}/", "the run's ")]
    if content == "images":
        lines.append(exif_note(columns) if settings.exif == "stored" else "")
    elif content != "videos":
        lines += columns.warnings
        if columns.numbers is not None:
            lines.append(
                f"it has {len(columns.category_ids)} of training's categories, and is scored by these"
            )
    for line in filter(None, lines):
        console.warn(f"{name}: {line}")
    if isinstance(columns, Images) and columns.separator:
        console.info(
            f"{name}: labels are taken apart at {columns.separator}; --label-separator names another"
        )
    if content in ("images", "videos") and not settings.multi_label:
        noun = content.removesuffix("s")
        tell_of_classes(name, split, console, expected=expected, noun=noun)
        if name != "val" and settings.order == "sequential":
            warn_of_sorted(columns, console)


def _require_shared(settings: Data, root: Path, content: Content) -> None:
    """Raise UserError unless --val-share can part what the settings name, and they name no other source."""
    val_split.require(
        root,
        content == "images",
        source=settings.source,
        classes=settings.classes,
    )
    _options(settings, root, "train", "folder")
    if settings.source not in ("auto", "folder"):
        raise UserError(
            f"--val-share parts a folder with a folder a class; leave it or --source {settings.source} out"
        )


def _under(model: ModelClasses, split: Split[Any], console: Console) -> Split[Any]:
    """Return the split with the class numbers of a model. Raises UserError for a class that it has not."""
    numbers, note, doubtful = model.numbers(split.columns.class_names)
    if note:
        (console.warn if doubtful else console.info)(note)
    return replace(split, columns=split.columns.numbered(numbers, model.names))


def require_splits(settings: Data, content: Content, *, validates: bool = True) -> None:
    """Raise UserError unless there is what trains, and `validates`, as far as names of files tell.

    Nothing is scanned.
    """
    if settings.data is not None and settings.val_share is not None:
        _require_shared(settings, _root(settings), content)
    elif settings.data is not None:
        _openers(
            settings, _root(settings), content, SPLITS if validates else ("train",)
        )


def _openers(
    settings: Data,
    root: Path,
    content: Content,
    needed: Collection[str],
    val: str = "val",
) -> tuple[dict[str, Open], str]:
    """Return what opens train and `val`, and why there is none for one; no split is scanned yet.

    A split that is not `needed` may be missing. Raises UserError.
    """
    openers: dict[str, Open] = {}
    absent = ""
    for split in ("train", val):
        try:
            openers[split] = _opener(settings, root, split, content)
        except UserError as mistake:
            if split in needed:
                raise
            absent = str(mistake)
    return openers, absent


def _opener(settings: Data, root: Path, split: str, content: Content) -> Open:
    if content != "images" and (
        settings.trust_list or settings.lmdb_label or settings.label_key
    ):
        raise UserError(
            "--trust-list, --lmdb-label and --label-key are for images with a label; leave them out"
        )
    if settings.trust_list and settings.leave_out:
        raise UserError(
            "--leave-out is of a scan, and --trust-list has none; leave one of them out"
        )
    if settings.trust_list and settings.exif == "shown":
        raise UserError(
            "--exif shown takes the headers of all images before training, and --trust-list opens none; "
            "give --exif stored, or leave --trust-list out"
        )
    of_files = settings.source == "auto" or source_named(settings.source).FILES
    if content == "instances" or content == "keypoints":
        if not of_files:
            raise UserError(
                f"--source {settings.source} is for images with a label; images of annotations are files"
            )
        points = content == "keypoints"
        layouts.find(root, split, keypoints=points)
        return partial(
            _open_annotated, root, split, keypoints=points, exif=settings.exif
        )
    must_be = holds(content, settings.source)
    if not is_folder(root):
        raise UserError(
            f"--data {root}: {'is a file' if root.exists() else 'no such folder'}; it must be {must_be}"
        )
    if content == "videos":
        if not of_files:
            raise UserError(
                f"--source {settings.source} is for images; videos are files, in class folders or in lists: "
                "leave it out"
            )
        listing = list_of(root, split)
        if not listing and not (root / split).exists():
            raise UserError(
                f"--data {root}: has no {split}/ folder; it must be {must_be}; docs/video.md says how the "
                "lists of Kinetics, UCF101, HMDB51 and Something-Something become such"
            )
        return partial(_open_videos, listing or root / split)
    name = choose_source(settings.source, root, split)
    module = source_named(name)
    if lacking := module.missing(root, split):
        hint = ""
        if name == "folder" and split != "test" and not settings.multi_label:
            hint = val_split.hint(root)
        if not hint or hint.endswith(" "):
            hint += f"it must be {must_be}"
        raise UserError(f"--data {root}: has no {lacking}; {hint}")
    return partial(module.open, root, split, **_options(settings, root, split, name))


def _options(settings: Data, root: Path, split: str, source: str) -> dict[str, Any]:
    """Return what a source is told beside the split. Raises UserError for a setting of another one."""
    labels = source_named(source).LABELS
    of_list = source == "list"
    of_folders = source == "folder"
    taken = {"multi_label": of_list, "trust_list": of_list, "classes": of_folders}
    # the names of others are no files'
    taken["leave_out"] = of_list or of_folders
    for name in ("lmdb_label", "label_key", *taken):
        if getattr(settings, name) and not taken.get(name, name == labels):
            raise UserError(
                f"--{name.replace('_', '-')} is for another source, and {split} of --data {root} is read by "
                f"--source {source}; leave it out"
            )
    if of_list:
        return {
            "sets": settings.multi_label,
            "separator": settings.label_separator,
            "unread": settings.trust_list,
        }
    if of_folders and settings.classes and settings.val_share is None:
        # validation may lack one
        unwanted = names.unwanted(
            root / split, settings.classes, all_there=split == "train"
        )
        return {"unwanted": unwanted, "chosen": True}
    value = getattr(settings, labels) if labels else None
    return {} if value is None else {"labels": value}


def _open_annotated(
    root: Path,
    split: str,
    *,
    keypoints: bool,
    exif: str,
    read_delay_s: float,
    classes: tuple[str, ...] | None = None,
    **how: Unpack[Options],
) -> Split[Any]:
    """Open images with boxes: the annotations are a file, and so is each image."""
    columns = open_coco(root, split, keypoints=keypoints, exif=exif, **how)
    # validation may have some of training's categories
    if classes is not None and columns.classes != classes:
        training = ModelClasses(names=classes, origin="the training set")
        numbers, _, _ = training.numbers(columns.class_names)
        columns = columns.numbered(numbers, classes)
    return Split(columns=columns, source=Folder(columns, read_delay_s))


def _open_videos(
    data: Path,
    *,
    read_delay_s: float,
    classes: Sequence[str] | None = None,
    **how: Unpack[Options],
) -> Split[Any]:
    from saturate.dataset.videos.scan import (
        open_videos,  # with PyAV, which images do without
    )

    columns = open_videos(data, classes=classes, **how)
    return Split(columns=columns, source=Folder(columns, read_delay_s))


def list_of(root: Path, split: str) -> Path | None:
    """Return the list of a split of videos, which goes before its folder."""
    return next(iter(lists.find(root, split)), None)


def tell_of_classes(
    name: str,
    split: Split[Any],
    console: Console,
    *,
    expected: tuple[str, ...] | None,
    noun: str,
) -> None:
    """Warn of a single class where more are `expected`, or any, of names that look alike, and of classes without
    a sample."""
    columns = split.columns
    if expected is None:
        alike: dict[str, list[str]] = {}
        for one in columns.classes:
            looks = unicodedata.normalize("NFC", one).casefold().strip()
            # in ASCII a letter with an accent is not what a letter and an accent are
            alike.setdefault(looks, []).append(ascii(one))
        if lookalikes := [
            " and ".join(ones) for ones in alike.values() if len(ones) > 1
        ]:
            console.warn(
                f"{name}: classes of their own whose names look alike: {', '.join(lookalikes[:10])}; are they one each?"
            )
    counts = np.bincount(columns.label, minlength=len(columns.classes))
    present = np.flatnonzero(counts)
    if len(present) == 1 and (expected is None or len(expected) > 1):
        console.warn(
            f"{name}: one class alone, '{columns.classes[present[0]]}', so there is nothing to learn; "
            "is --data a folder too low or too high, or do all files lie in one folder?"
        )
    if expected is None and not counts.all():
        empty = np.flatnonzero(counts == 0)
        console.warn(
            f"{name}: no {noun} for {len(empty)} of {len(columns.classes)} classes, "
            f"first '{columns.classes[empty[0]]}'; do the labels of the list begin at 0, without gaps?"
        )


def fewest(columns: Columns) -> dict[str, Any]:
    """Return the `class` with the fewest samples to train on, or boxes, and how many `samples`; {} where samples have
    no class. A class without any has a warning of its own.
    """
    names: Sequence[str] = columns.classes
    labels: Array | None = getattr(columns, "label", None)
    if isinstance(columns, Instances):
        labels, names = columns.category[columns.usable], columns.class_names
    if labels is None:
        return {}
    counts = np.bincount(labels, minlength=len(names))
    if (several := getattr(columns, "several", None)) is not None:
        counts = np.bincount(labels, minlength=len(several)) @ several
    present = np.flatnonzero(counts)
    if not len(present):
        return {}
    least = present[counts[present].argmin()]
    return {"class": names[least], "samples": int(counts[least])}


def warn_of_sorted(columns: LabelColumns, console: Console) -> None:
    """Warn of an order in which classes come one after the other: a network then learns one at a time."""
    label = np.asarray(columns.label)
    runs = np.count_nonzero(label[1:] != label[:-1]) + 1
    if 1 < runs == len(np.unique(label)):
        console.warn(
            f"train: --order sequential, and the {len(label):,} samples are sorted by label, so that nearly "
            "every batch has one class alone: shuffle the lines of the list, or leave --order out"
        )
