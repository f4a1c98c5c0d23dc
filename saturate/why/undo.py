"""Undoes what a program saves once its step was given batches again.

Such a step has trained on them, so that a checkpoint of it is worth nothing, and none that was there may be lost for
it. Programs save on Ctrl-C, keep the newest few, and copy what they have saved: all of that happens as it does without
us, and in the end `back` leaves the files as they were. A journal says how, for a program that fails, too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

SUFFIXES = (".bin", ".ckpt", ".npz", ".pkl", ".pt", ".pth", ".safetensors", ".tar")
"""Of files that are checkpoints."""
WRITTEN = "saturate.why.written"
"""Event of what writes a file without Python's knowledge, with its path."""
ASIDE = ".before-why"
"""Suffix under which a file or folder of before waits beside its place."""


class Journal:
    """What is to be undone, told by Python as it happens; `file` has all of it at any time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.kept: dict[str, str] = {}  # path of before -> where it waits
        self.made: list[str] = []
        self.folders: list[
            str
        ] = []  # made since, of which those that hold something made are undone
        self.is_over = False
        self._acts = False
        events: dict[str, Callable[..., None]] = {
            "open": self._opened,
            "os.link": self._linked,
            "os.mkdir": self._folder,
            "os.remove": self._removed,
            "os.rename": self._renamed,
            "os.symlink": self._linked,
            "shutil.rmtree": self._removed,
            WRITTEN: self._written,
        }
        process = os.getpid()  # a worker that is forked has this journal, too

        def told(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in events or self._acts or self.is_over:
                return
            if os.getpid() == process:
                self._acts = True
                try:
                    with suppress(OSError):  # theirs will say so
                        events[event](*arguments)
                finally:
                    self._acts = False

        sys.addaudithook(told)

    def _written(self, path: Any) -> None:
        path = os.path.abspath(os.fsdecode(path))
        if path not in self.made:
            self._keep(path, os.rename)
            self.made.append(path)
            self._write()

    def _opened(self, path: Any, _: str | None, flags: int) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a file that is open already
        makes = flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.lexists(path))
        if makes and _is_checkpoint(os.fsdecode(path)):
            self._written(path)

    def _folder(self, path: Any, *_: int) -> None:
        if not os.path.lexists(path):
            self.folders.append(os.path.abspath(os.fsdecode(path)))

    def _removed(self, path: Any, of_folder: int = -1) -> None:
        path = os.path.abspath(os.fsdecode(path))
        # within a folder that is removed whole paths are relative to that
        if of_folder not in (-1, None) or path in self.made:
            return
        if os.path.isdir(path):
            files = [file for file in Path(path).rglob("*") if _is_checkpoint(file)]
            if any(str(file) not in self.made for file in files):
                self._keep(path, os.rename)
                os.mkdir(path)
                self._write()
        elif _is_checkpoint(path):
            self._keep(path, os.link)
            self._write()

    def _renamed(self, source: Any, to: Any, *_: int) -> None:
        source, to = (os.path.abspath(os.fsdecode(one)) for one in (source, to))
        is_made = source in self.made or source in self.folders
        if not is_made and not _is_checkpoint(to):
            return
        if not is_made and _is_checkpoint(source):
            self._keep(source, os.link)
        if to not in self.made:
            self._keep(to, os.link)
            self.made.append(to)
        self._write()

    def _linked(self, _: Any, to: Any, *__: int) -> None:
        if _is_checkpoint(os.fsdecode(to)) and not os.path.lexists(to):
            self._written(to)

    def _keep(self, path: str, how: Callable[[str, str], Any]) -> None:
        aside = path + ASIDE
        if os.path.lexists(path) and not os.path.lexists(aside):
            try:
                how(path, aside)
            except OSError:  # a file system without links, or a folder
                shutil.copy2(path, aside)
        if os.path.lexists(aside):
            self.kept[path] = aside

    def _write(self) -> None:
        found = {"kept": self.kept, "made": self.made, "folders": self.folders}
        self.file.write_text(json.dumps(found))


def _is_checkpoint(path: str | Path) -> bool:
    return str(path).endswith(SUFFIXES)


def back(file: Path) -> int:
    """Undo what a journal's file tells; return how many files and folders had been made."""
    found = json.loads(file.read_text())
    made = found["made"]
    of_made = [
        folder
        for folder in found["folders"]
        if any(path.startswith(folder + os.sep) for path in made)
    ]
    for path in [*made, *of_made]:
        _remove(path)
    for path, aside in found["kept"].items():
        if os.path.lexists(aside):
            _remove(path)
            os.rename(aside, path)
    file.unlink()
    return len(made)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        os.unlink(path)
