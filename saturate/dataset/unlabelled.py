"""Files without classes, for predictions: a folder, a list or one file -> a split, and a place for each file.

Must not know models. A file that cannot be read is no sample, and keeps its place and the reason. The files
are written as a list below the cache, and that is scanned as any list is, at each prediction.
"""

from __future__ import annotations

import csv
import hashlib
import io
import mimetypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from saturate.contracts import Array, Split, UserError
from saturate.dataset.images.columns import as_shown
from saturate.dataset.open import cache_folder
from saturate.dataset.scan import file_tree, lists
from saturate.dataset.scan.cache import NothingFound, Progress
from saturate.dataset.scan.lists import BLANK, Grammar, List
from saturate.dataset.scan.manifest import printable
from saturate.dataset.stores import list as image_lists
from saturate.dataset.stores.bucket import write
from saturate.dataset.stores.folder import Folder
from saturate.system.user_files import open_text

if TYPE_CHECKING:
    # a loop of one's own has settings of its own
    from saturate.settings.data import Data

MUST_BE = "a folder of files, a list with a path a line, or one file"
GRAMMAR = Grammar(
    expected="a line is a path, which may have a TAB or a comma and more behind it"
)


@dataclass(frozen=True, kw_only=True)
class Unlabelled:
    """The files that --predict names, n of them, in their order: by name, or that of the list."""

    # of those that can be read; every label is 0, of the one class '0'
    split: Split[Any]
    names: tuple[str, ...]  # [n], as the user writes them
    samples: Array  # int64 [n], the sample of each file; -1 where it cannot be read
    errors: dict[int, str]  # place of a file that cannot be read -> why


def open_unlabelled(
    named: Path,
    settings: Data,
    *,
    content: Literal["images", "videos"],
    read_delay_s: float = 0.0,
    progress: Progress | None = None,
    flag: str = "--predict",
) -> Unlabelled:
    """Open the files that `named`, the value of `flag`, is: all below a folder, those of a list, or one.

    Raises UserError, also where none of them can be read.
    """
    names, paths, refused = _files(named, content, flag)
    cache = Path(os.path.realpath(cache_folder(settings.manifest_dir)))
    digest = hashlib.blake2b(os.fsencode(os.path.realpath(named)), digest_size=8)
    made = cache / "predicted" / digest.hexdigest()
    _write_list(made / "all.tsv", paths, flag)
    how: dict[str, Any] = {
        "cache": cache,
        "progress": progress,
        # a file may have been written over since the last one, and its folder does not show it
        "rescan": True,
        "max_pixels": settings.max_pixels,
    }
    what = content.removesuffix("s")
    try:
        if content == "images":
            split: Split[Any] = image_lists.open(
                made, "all", read_delay_s=read_delay_s, **how
            )
        else:
            # with PyAV, which images do without
            from saturate.dataset.videos.scan import open_videos

            videos = open_videos(made / "all.tsv", **how)
            split = Split(columns=videos, source=Folder(videos, read_delay_s))
    except NothingFound as error:
        raise UserError(
            f"{flag} {named}: no {what} that can be read{error.why}"
        ) from None
    columns = split.columns
    if content == "images" and settings.exif == "shown":
        split = replace(split, columns=as_shown(columns))
    # a file may be listed twice: its samples are taken in turn
    samples_of: dict[bytes, list[int]] = {}
    for sample in reversed(range(len(columns))):
        samples_of.setdefault(os.path.normpath(columns.path(sample)), []).append(sample)
    lines = (columns.folder / "rejected.txt").read_text(encoding="utf-8").splitlines()
    # a list of videos has them relative to its own folder
    told = (line.rsplit("\t", 1) for line in lines if "\t" in line)
    why = {os.path.normpath(path): reason for path, reason in told} | refused
    unread = f"cannot be read as {file_tree.ARTICLE[what]} {what}"
    samples = np.full(len(paths), -1, np.int64)
    errors = {}
    for place, path in enumerate(paths):
        if own := samples_of.get(os.path.normpath(path)):
            samples[place] = own.pop()
        else:
            errors[place] = why.get(os.path.normpath(printable(path)), unread)
    return Unlabelled(split=split, names=tuple(names), samples=samples, errors=errors)


def _files(
    named: Path, content: str, flag: str
) -> tuple[list[str], list[bytes], dict[str, str]]:
    """Return the files' names as the user writes them, and their absolute paths.

    Also return why what lies in a folder is no file: printable path -> reason. Raises UserError.
    """
    refused: dict[str, str] = {}
    media = (mimetypes.guess_type(named.name)[0] or "").partition("/")[0]
    if named.is_dir():
        root = os.fsencode(os.path.realpath(named))
        above, folder = os.path.split(root)
        parents = Path(os.fsdecode(root)).parents
        outside = [file_tree.visit(os.fsencode(parent))[1] for parent in parents]

        def reject(path: bytes, why: str) -> None:
            if why != file_tree.NO_DATA:
                refused[printable(path)] = why
                inside.append(path)

        inside: list[bytes] = []
        for part in file_tree.walk(above, folder, outside, [], reject):
            inside += [os.path.join(above, path) for path in part]
        files = sorted(os.path.relpath(path, root) for path in inside)
        names = [os.path.join(str(named), os.fsdecode(file)) for file in files]
        paths = [os.path.join(root, file) for file in files]
    else:
        single = media == content.removesuffix("s")
        names = [named.name] if single else list(_listed(named, flag))
        below = os.fsencode(named.absolute().parent)
        paths = [
            os.path.normpath(os.path.join(below, os.fsencode(name))) for name in names
        ]
        names = [str(named)] if single else names
    if not names:
        raise UserError(f"{flag} {named}: no file is there; name {MUST_BE}")
    return names, paths, refused


def _listed(path: Path, flag: str) -> Iterator[str]:
    """Yield the paths of a list. Raises UserError.

    Fields behind the first are left out where TABs or commas separate them, so that a list to train from
    will do, and behind a blank where the path without them is there. A line that is a path as a whole stays whole.
    """
    try:
        with open_text(path, "utf-8-sig", "surrogateescape", newline="") as file:
            lines = [*file]
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror}; name {MUST_BE}") from None
    parsed = List(path, GRAMMAR)
    parsed.place([path.parent])
    for number, fields in parsed.records():
        name = parsed.in_form(fields[0])
        if len(fields) > 1:
            # as it is written: the path may hold several blanks in a row
            whole = parsed.in_form(lines[number - 1].strip())
            if os.path.exists(path.parent / whole) or (
                parsed.separator == BLANK and not os.path.exists(path.parent / name)
            ):
                name = whole
        is_heading = number == 1 and lists.is_of(name, lists.OF_PATHS)
        if not is_heading or os.path.exists(path.parent / name):
            yield name


def _write_list(path: Path, paths: list[bytes], flag: str) -> None:
    """Write a list of these files, with one label; what is there already stays, with its date."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, delimiter="\t", quoting=csv.QUOTE_ALL)
    rows.writerows([os.fsdecode(one), 0] for one in paths)
    try:
        write(path, text.getvalue().encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UserError(
            f"{flag}: the list of files cannot be written to {path.parent}: {error.strerror}; choose another "
            "folder with --manifest-dir"
        ) from None
