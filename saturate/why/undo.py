"""Undoes what a program saves once its step was given batches again.

Such a step has trained on them, so that a checkpoint of it is worth nothing, and none that was there may be lost for
it. Programs save on Ctrl-C, keep the newest few, and copy what they have saved: all of that happens as it does without
us, and `back` leaves checkpoints as they were, by a journal of each process. Files with other endings, such as logs,
are left as the program has written them, and so is what another process writes. A checkpoint that is changed in place
is named: it may be a large file of data that is mapped, which nobody wants to have copied.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (
    *(".bin", ".ckpt", ".distcp", ".h5", ".npy", ".npz", ".onnx"),
    *(".pkl", ".pt", ".pth", ".safetensors", ".tar"),
)
"""Files with these endings are checkpoints."""
NAMES = ("latest", "last_checkpoint", "latest_checkpointed_iteration.txt")
"""Files that say which one is the newest: of DeepSpeed, Detectron2 and MMEngine, and Megatron."""
MOST_NAMES = 10_000
"""Names that are looked at for a checkpoint's, which takes 50 ms: a folder with more before one holds data. To look at
all of 200,000 took 8 s, at each link that was made to them.
"""
WRITTEN = "saturate.why.written"
"""Event of what writes a file without Python's knowledge, with its path."""
IN_PLACE = "changed in place after its step was given batches again: "


class Journal:
    """What is to be undone, told by Python as it happens. `file` has a line for each file or folder, before it is
    touched for the first time.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.is_over = False
        self._seen: set[str] = set()
        self._in_place: set[str] = set()
        self._began = time.time()
        self._acting = threading.local()
        self._process = os.getpid()  # a worker that is forked has this journal, too
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or self.is_over or hasattr(self._acting, "here"):
            return
        if os.getpid() == self._process:
            self._acting.here = True
            try:
                with suppress(OSError):  # theirs will say so
                    EVENTS[event](self, *arguments)
            finally:
                del self._acting.here

    def opened(self, path: Any, _: str | None, flags: int) -> None:
        """Note a checkpoint that is made, or emptied."""
        if isinstance(path, int) or not _is_checkpoint(os.fsdecode(path)):
            return
        if flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.lexists(path)):
            self.written(path)
        elif flags & (os.O_WRONLY | os.O_RDWR):
            path = os.path.realpath(os.fsdecode(path))
            if path not in self._in_place:
                self._in_place.add(path)
                self._note(path=path, was=_state(path))

    def written(self, path: Any) -> None:
        """Note a file of any name that is written anew."""
        path = os.path.realpath(os.fsdecode(path))
        self._touch(path)
        # what is kept is the same file by another name
        if os.path.isfile(path) and os.stat(path).st_nlink > 1:
            os.unlink(path)

    def made(self, path: Any, *_: int) -> None:
        """Note a new folder."""
        if not os.path.lexists(path):
            self._touch(_whole(path), is_folder=True)

    def changed(self, path: Any, of_folder: int | None = -1) -> None:
        """Note a checkpoint, or a folder with some, that is made or removed by its name."""
        path = _whole(path)
        # within a folder that is removed whole, paths are relative to that
        if of_folder in (-1, None) and _holds_checkpoint(path):
            self._touch(path)

    def linked(self, source: Any, to: Any, of_folder: int) -> None:
        """Note a link by the name of a checkpoint, or to one, or to a folder with some."""
        to = _whole(to)
        target = os.path.join(os.path.dirname(to), os.fsdecode(source))
        if of_folder == -1 and any(map(_holds_checkpoint, (to, target))):
            self._touch(to)

    def renamed(self, source: Any, to: Any, *_: int) -> None:
        """Note a file or folder that gets another name, where one of the two is a checkpoint's, or was noted."""
        source, to = _whole(source), _whole(to)
        if any(one in self._seen or _holds_checkpoint(one) for one in (source, to)):
            # a name beside, which the program has just written, has no need to be back
            if _holds_checkpoint(source) or os.lstat(source).st_mtime < self._began:
                self._touch(source)
            self._touch(to)

    def _touch(self, path: str, is_folder: bool = False) -> None:
        """Keep what is at `path`, unless that was not there before."""
        if path in self._seen:
            return
        self._seen.add(path)
        aside = None
        if os.path.lexists(path):
            aside = f"{path}.before-why-{os.getpid()}"
            _keep(path, aside)
        self._note(path=path, aside=aside, is_folder=is_folder)

    def _note(self, **what: Any) -> None:
        with self.file.open("a") as file:
            print(json.dumps({**what, "at": time.time()}), file=file)


EVENTS: dict[str, Callable[..., None]] = {
    "open": Journal.opened,
    "os.link": lambda journal, _, to, *__: journal.changed(to),
    "os.mkdir": Journal.made,
    "os.remove": Journal.changed,
    "os.rename": Journal.renamed,
    "os.symlink": Journal.linked,
    "shutil.rmtree": Journal.changed,
    WRITTEN: Journal.written,
}
"""Event of Python's -> what is done, with its arguments."""


def _state(path: str) -> list[int]:
    """Return what is another list once a file was changed."""
    now = os.stat(path)
    return [now.st_mtime_ns, now.st_size, now.st_ino]


def _whole(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _is_checkpoint(path: str) -> bool:
    return path.endswith(SUFFIXES) or os.path.basename(path) in NAMES


def _holds_checkpoint(path: str) -> bool:
    """Return whether a file, or one in a folder, is a checkpoint; of a link what it leads to."""
    if os.path.isdir(path):
        return any(map(_is_checkpoint, itertools.islice(_names_in(path), MOST_NAMES)))
    return _is_checkpoint(path) or _is_checkpoint(os.path.realpath(path))


def _names_in(folder: str) -> Iterator[str]:
    """Yield the names of all files and folders below a folder, those of folders above first."""
    folders = [folder]
    for each in folders:
        # one may be closed to us, or gone
        with suppress(OSError), os.scandir(each) as entries:
            for entry in entries:
                yield entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _keep(path: str, aside: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.copytree(path, aside, symlinks=True, copy_function=_link)
    else:
        _link(path, aside)


def _link(path: str, aside: str) -> None:
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(path, aside, follow_symlinks=False)


class Undone(NamedTuple):
    """How many files are as they were, and which are not, since the program has changed them in place."""

    undone: int = 0
    in_place: Sequence[str] = ()


def back(folder: Path) -> Undone:
    """Undo what the journals in a folder tell, the last of it first."""
    lines, in_place = list[dict[str, Any]](), list[dict[str, Any]]()
    for journal in folder.glob("files-*"):
        for text in journal.read_text().splitlines():
            with suppress(ValueError):  # the process was killed as it wrote
                line = json.loads(text)
                (in_place if "was" in line else lines).append(line)
        journal.unlink()
    paths = {line["path"] for line in lines if not line["is_folder"]}
    for line in sorted(lines, key=lambda line: -line["at"]):
        path, aside = line["path"], line["aside"]
        # a folder that the program has made for something else is none of ours
        if line["is_folder"] and not any(
            one.startswith(path + os.sep) for one in paths
        ):
            continue
        is_saved = os.path.lexists(aside or "")
        if is_saved or aside is None:
            # the one does nothing to a file, the other nothing to a folder
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                os.unlink(path)
        if is_saved:
            os.rename(aside, path)
    # one that was kept before is as it was
    changed = {
        line["path"]
        for line in in_place
        if not os.path.exists(line["path"]) or _state(line["path"]) != line["was"]
    }
    kept = {
        line["path"]
        for line in lines
        if all(
            line["at"] < one["at"] for one in in_place if one["path"] == line["path"]
        )
    }
    return Undone(len(paths), sorted(changed - kept))
