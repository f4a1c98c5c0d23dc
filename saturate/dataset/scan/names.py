"""What the name of a file or folder in a data folder says: one table of words, and one reader of names.

    train2017, Training, imgs_train    a split          HR, GTmod12, DIV2K_train_HR   large images
    masks_train, old_train             of a split, with other words: it may be another thing
    images, labels, annotations        no class         LR_bicubic, LRbicx4, X2       small images
    __MACOSX, @eaDir, lost+found       of the storage   train-000.tar.gz, a.zip       compressed

Names are compared as `key` gives them: a Mac writes the letters of a name otherwise than Linux. Must not open a
file.
"""

from __future__ import annotations

import mimetypes
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from saturate.contracts import UserError
from saturate.system import storage

OF_THE_STORAGE = frozenset(
    {
        "lost+found",
        "$recycle.bin",
        "recycler",
        "system volume information",
        "__macosx",
        "network trash folder",
        "@eadir",
        "@recycle",
        "@recently-snapshot",
        "@tmp",
        "#recycle",
        "#snapshot",
        "~snapshot",
        "thumbs.db",
        "desktop.ini",
        "icon\r",
    }
)
"""What file systems, network storage and archives put beside the data, where it is not hidden; in small letters."""


def _of_words(table: dict[str, str]) -> dict[str, str]:
    return {word: what for what, words in table.items() for word in words.split()}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


SPLIT_OF = _of_words(
    {
        "train": "train training trn",
        "val": "val valid validation dev devel eval evaluation holdout",
        "test": "test testing tst pred predict unlabeled unlabelled",
    }
)
"""Word -> the split that it names."""
SIDE_OF = _of_words(
    {
        "high": "hr gt hq high highres hires large target targets groundtruth",
        "low": "lr lq low lowres lores small input inputs",
    }
)
"""Word -> the side of a pair of images, for super-resolution: "high", the large one, or "low"."""
FILLERS = _set(
    "data dataset datasets set sets split splits image images img imgs jpegimages photo photos picture pictures pic "
    "pics file files folder video videos clip clips jpg jpeg png coco instances annotation annotations label labels "
    "person keypoints default"
)
"""Words that do not make a split another thing: train_images, person_keypoints_train."""
NO_PHOTOS = _set(
    "mask masks depth segmentation semantic panoptic stuff edges flow label labels annotation annotations old backup "
    "bak copy thumbs thumbnails"
)
"""Words in the names of folders whose images are not those to train on."""
NO_CLASS = _set(
    "images imgs img jpegimages labels annotations annotation mask masks xml xmls data dataset datasets"
)
"""Names of folders that hold what a list or annotations speak of, or all of a set, and are hardly a class."""
NOT_DATA = _set(
    "models samples examples checkpoints weights runs outputs results logs docs scripts notebooks"
)
"""Names of folders that lie beside data, and are hardly a class."""
PACKED = re.compile(
    r"\.(tar\.(gz|bz2|xz|zst|lz4|lzma|br|z)|tgz|tbz2?|txz|tzst|zip|7z|rar)\Z"
)
"""The end of the name of a compressed file."""
ARCHIVES = (".zip", ".7z", ".rar")
ABOUT_SHARDS = (
    ".json",
    ".jsonl",
    ".parquet",
    ".idx",
    ".index",
    ".txt",
    ".csv",
    ".tsv",
    ".md5",
    ".sha256",
    ".log",
)
"""The ends of names of files that lie beside shards and tell of them."""
_PLAIN, _FILLER = (
    "|".join(sorted(words, key=len, reverse=True)) for words in (SPLIT_OF, FILLERS)
)
_GLUED = re.compile(f"(?:{_FILLER})?({_PLAIN})(?:{_FILLER})?")
# LRbicx4 and GTmod12 are one word
_SIDE = re.compile(r"(lr|lq|hr|hq|gt)(?=bic|mod|x\d|x?\Z)")
_NUMBER = re.compile(r"\d+")
_SCALE = re.compile(r"(?:x|srf_?)([2-9])(?!\d)|(?<!\d)([2-9])x", re.IGNORECASE)


class Name(NamedTuple):
    """What a name says."""

    splits: frozenset[str]  # of "train", "val" and "test"
    side: Literal["high", "low", ""]
    scale: int  # of small images; 0: not said
    rest: frozenset[str]  # other words, without fillers


def key(name: str) -> str:
    """Return a name as it is compared: composed letters and those of letter and accent are the same."""
    return unicodedata.normalize("NFC", name)


def words(name: str) -> list[str]:
    """Return the words of a name in small letters: trainImages and train_images2017 have the same two."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key(name))
    return re.findall(r"[^\W\d_]+", apart.casefold())


def read(name: str) -> Name:
    """Return what a name says, or a path below the data."""
    splits = set[str]()
    sides = set[str]()
    rest = set[str]()
    for word in words(name):
        if split := _GLUED.fullmatch(word):
            splits.add(SPLIT_OF[split[1]])
        elif word in SIDE_OF:
            sides.add(SIDE_OF[word])
        elif glued := _SIDE.match(word):
            sides.add(SIDE_OF[glued[1]])
            if word[glued.end() :].startswith("bic"):
                rest.add("bicubic")
        elif word not in FILLERS and word not in ("x", "srf"):
            rest.add(word)
    match = _SCALE.search(name)
    scale = int(match[1] or match[2]) if match else 0
    # X2/ beside HR/
    if scale and not sides and not rest:
        sides.add("low")
    side = sides.pop() if len(sides) == 1 else ""
    return Name(frozenset(splits), side, scale, frozenset(rest))  # type: ignore[arg-type]


def splits_among(names: Iterable[str]) -> dict[str, str]:
    """Return name -> split of the names that are splits.

    A name with other words is one where the same words come with another split, too: seg_train and seg_test are
    splits, freight_train is none.
    """
    parsed = {name: read(name) for name in names}
    alone = {name: one for name, one in parsed.items() if len(one.splits) == 1}
    families: dict[frozenset[str], set[str]] = {}
    for one in alone.values():
        families.setdefault(one.rest, set()).update(one.splits)
    return {
        name: next(iter(one.splits))
        for name, one in alone.items()
        if not one.rest or len(families[one.rest]) > 1
    }


def of_the_storage(name: str) -> bool:
    """Whether a name is that of what the storage puts beside the data."""
    return name.casefold() in OF_THE_STORAGE


def is_packed(name: str) -> bool:
    """Whether a name says that a file is compressed."""
    return PACKED.search(name.casefold()) is not None


def is_list(name: str) -> bool:
    """Whether a name is that of a list to train from: train.csv, train_labels.csv, labels.csv."""
    stem, ending = os.path.splitext(name)
    about = read(stem)
    of_labels = {"label", "labels", "annotations", "metadata"} & {*words(stem)}
    return (ending in (".csv", ".tsv") and (bool(of_labels) or bool(about.splits))) or (
        ending == ".txt" and bool(about.splits) and not about.rest
    )


def unwanted(
    root: Path, chosen: str | None, *, at_top: bool = False, all_there: bool = True
) -> dict[str, str]:
    """Return folder -> why it is no class, of those in `root`; `chosen` is what --classes says.

    Without that these are, `at_top` of the data, what has the name of another thing. Raises UserError for a
    name that is not there, where they are to be `all_there`.
    """
    subfolders = folders(root)
    if chosen is None:
        why = "has a name that is hardly a class's; --classes takes it for one"
        return {
            name: why for name in subfolders if at_top and name.casefold() in NOT_DATA
        }
    if chosen == "all":
        return {}
    wanted = {key(name.strip()) for name in chosen.split(",")}
    lacking = sorted(wanted - {*map(key, subfolders)})
    if lacking and all_there:
        raise UserError(
            f"--classes has {lacking[0]!r}, and {root} has no such folder; name folders of it, with commas "
            "between, or all"
        )
    why = "is none of --classes"
    return {name: why for name in subfolders if key(name) not in wanted}


def place_of(names: Sequence[str]) -> dict[str, int]:
    """Return name -> its place, by each name and by its `key`, where that is of one name alone."""
    keys = [*map(key, names)]
    times = Counter(keys)
    alone = {one: place for place, one in enumerate(keys) if times[one] == 1}
    return alone | {name: place for place, name in enumerate(names)}


def find(name: str, places: Mapping[str, int]) -> int | None:
    """Return the place of a name in what `place_of` gives: of that very name, else of its `key`."""
    return places.get(name, places.get(key(name)))


def folders(root: Path) -> list[str]:
    """Return the sorted names of the folders in `root` that are neither hidden nor of the storage."""
    try:
        with os.scandir(root) as entries:
            subfolders = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        if storage.failed(error):
            raise
        return []
    return [
        name
        for name in subfolders
        if not name.startswith(".") and not of_the_storage(name)
    ]


def beside(data: Path, read_names: Iterable[str]) -> list[str]:
    """Return what lies at the top of a data folder and is not read: folders, lists and compressed files.

    A name is told with a slash behind it where it is a folder's, and with the split that it says.
    """
    taken = {*read_names}
    inside = [f"{name}/" for name in folders(data) if not name.endswith(".columns")]
    with suppress(OSError):
        files = sorted(os.listdir(data))
        inside += [name for name in files if is_list(name) or is_packed(name)]
    splits = splits_among(inside)
    return [
        f"{name} ({splits[name]})" if name in splits else name
        for name in inside
        if name.rstrip("/") not in taken
    ]


def is_media(name: str, wanted: str) -> bool:
    """Whether a file's name says that it is an image, or a video."""
    guessed = mimetypes.guess_type(name, strict=False)[0] or ""
    other = wanted == "video" and name.lower().endswith((".mkv", ".ts"))
    return other or guessed.startswith(f"{wanted}/")


def shards(names: Iterable[str], ending: str, where: str) -> list[str]:
    """Return the names of shards, of what lies in a split's folder; those of folders end in a slash.

    Raises UserError where a shard is compressed, lies in a folder of its own, or has another ending than the
    others, as one of a download that was cut off: it would be passed over.
    """
    shown = sorted(
        name
        for name in names
        if not any(
            part.startswith(".") or of_the_storage(part) for part in name.split("/")
        )
    )
    # a zip beside class folders is none of shards
    packed = [name for name in shown if is_packed(name) and not name.endswith(ARCHIVES)]
    if packed:
        raise UserError(
            f"--data: {where}/{packed[0]} is compressed, so that no sample can be read without all before it; "
            "unpack it (gunzip -k, unxz -k, unzstd), and move it elsewhere"
        )
    matching = [name for name in shown if name.casefold().endswith(ending)]
    nested = [name for name in matching if "/" in name]
    if nested:
        listed = f", or name all shards in {where}/shards.txt" * ("://" in where)
        raise UserError(
            f"--data: {where}/{nested[0]} lies in a folder of its own, where no shard is looked for; move it to "
            f"{where}/{listed}"
        )
    stems = {_stem(name) for name in matching}
    patterns = {_NUMBER.sub("#", stem) for stem in stems}
    lost = [
        name
        for name in shown
        if _stem(name) not in stems
        and _NUMBER.sub("#", _stem(name)) in patterns
        and not name.casefold().endswith(ABOUT_SHARDS)
    ]
    if lost:
        raise UserError(
            f"--data: {where}/{lost[0]} is named like the shards beside it, and does not end in {ending}: "
            "complete its download or its name, or move it elsewhere"
        )
    return matching


def _stem(name: str) -> str:
    """Return the name of a shard up to the first dot."""
    return name.partition(".")[0].casefold()
