"""Columns that lie beside a packed store: taken in place of a scan while they are of the store as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataset.scan import file_tree
from dataset.scan.manifest import NoManifest, S

STORE = "store.json"
"""What the files of the store looked like when its columns were written."""

Look = tuple[str, int, int]
"""Name, size and checksum of the beginning of a file, see dataset.scan.file_tree.visit."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The sealed columns in `folder`, of a store that is these files, or those that look so behind URLs."""

    folder: Path
    files: Sequence[Path]
    remote: Sequence[Look] = ()

    def looks(self) -> list[Any]:
        """Return name, size and beginning of each file, as JSON has them; a copy's are the same."""
        here: list[Look] = [
            (path.name, path.stat().st_size, file_tree.visit(os.fsencode(path))[0][-1])
            for path in self.files
            if path.is_file()
        ]
        return [list(look) for look in (*here, *self.remote)]

    def keep(self, columns: S) -> None:
        """Copy columns into the folder. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("manifest.json", *(f"{name}.npy" for name in columns.COLUMNS)):
            shutil.copy2(columns.folder / name, self.folder / name)
        (self.folder / STORE).write_text(json.dumps(self.looks()), encoding="utf-8")

    def taken(self, table: type[S], made: Path, fits: Callable[[S], bool]) -> Sequence[str] | None:
        """Copy the columns into `made`, a scan under way, and return their classes.

        None where there are none, they are damaged or of another store, or do not fit.
        """
        with suppress(OSError, ValueError, NoManifest):
            if json.loads((self.folder / STORE).read_text(encoding="utf-8")) == self.looks():
                found = table.open(self.folder)
                if fits(found):
                    for name in table.COLUMNS:
                        shutil.copyfile(self.folder / f"{name}.npy", made / f"{name}.npy")
                    return found.classes
        return None


def beside(store: Path, split: str, what: str, files: Sequence[Path], remote: Sequence[Look] = ()) -> Beside:
    """Return the place of a split's columns, a table called `what`, in the folder of its store."""
    return Beside(folder=store / f"{split}.columns" / what, files=files, remote=remote)
