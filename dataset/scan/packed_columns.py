"""Columns saved next to a packed store: used in place of a scan while the store is as it was then."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataset.scan import file_tree
from dataset.scan.manifest import Manifest, NoManifest, S, seal

STORE = "store.json"
"""What the files of the store looked like when its columns were written."""

Look = tuple[str, int, int]
"""Name, size and checksum of the beginning of a file, see dataset.scan.file_tree.visit."""


@dataclass(frozen=True)
class Beside:
    """The columns beside data/<split>, a store.

    `files` are the store's on this machine; `remote` is what those of its files look like that lie behind URLs.
    """

    data: Path
    split: str
    files: Sequence[Path]
    remote: Sequence[Look] = ()

    @property
    def folder(self) -> Path:
        """Return the folder of the columns."""
        return self.data / f"{self.split}.columns" / "images"

    def looks(self) -> list[Any]:
        """Return the Look of each file of the store, as lists, which JSON has. A copy of the store has the same."""
        here: list[Look] = [
            (path.name, path.stat().st_size, file_tree.visit(os.fsencode(path))[0][-1])
            for path in self.files
            if path.is_file()
        ]
        return [list(look) for look in (*here, *self.remote)]

    def keep(
        self,
        table: type[Manifest],
        columns: Manifest,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write columns, and what the store looks like now; `extra` has columns of `table` that `columns` lacks.

        Raises OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, dtype in table.COLUMNS.items():
            values = (extra or {}).get(name)
            values = getattr(columns, name) if values is None else values
            np.save(self.folder / f"{name}.npy", np.asarray(values, dtype))
        seal(
            self.folder,
            table,
            root=columns.root,
            classes=columns.classes,
            rejected=columns.rejected,
        )
        (self.folder / STORE).write_text(json.dumps(self.looks()), encoding="utf-8")

    def taken(
        self, table: type[S], made: Path, fits: Callable[[S], bool]
    ) -> Sequence[str] | None:
        """Copy the columns into `made`, the folder of a scan under way, and return their classes.

        None where there are no columns, where they are damaged or of another store, and where `fits` refuses them.
        """
        with suppress(OSError, ValueError, NoManifest):
            looks = json.loads((self.folder / STORE).read_text(encoding="utf-8"))
            if looks == self.looks():
                columns = table.open(self.folder)
                if fits(columns):
                    for name in table.COLUMNS:
                        shutil.copy(self.folder / f"{name}.npy", made)
                    return columns.classes
        return None
