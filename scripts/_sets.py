"""Folders that programs draw: made whole or not at all, by many processes, with a stamp that knows them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.progress import track

from saturate.run.folders import whole
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program
from saturate.system.processes import results

Key = tuple[int, int, int]
"""Split, label and index of a drawn file: with the seed, all that its bytes depend on."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def rng_of(seed: int, *key: int) -> np.random.Generator:
    """Return the random numbers of one file."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


@dataclass(frozen=True, kw_only=True)
class DrawnSet:
    """A program that draws DEST/<split>/<class>/*, each file from its Key and the seed alone."""

    name: str
    about: str | None
    classes: tuple[str, ...]  # "" for files that lie in the split's own folder
    # (folder, seed, key) -> what `finish` gets; writes one file
    draw: Callable[[Path, int, Key], Any]
    # files a class, of training and of validation, where the user names none
    counts: tuple[int, int]
    splits: tuple[str, str] = ("train", "val")
    # (folder, what was drawn): writes what tells of all files, into the folder `annotations`
    finish: Callable[[Path, list[Any]], None] | None = None

    def path(self, folder: Path, key: Key, ending: str) -> Path:
        """Return the path of a drawn file."""
        split, label, index = key
        name = self.classes[label]
        return folder / self.splits[split] / name / f"{name}_{index:05d}.{ending}"

    def write(
        self,
        dest: Path,
        train: int | None = None,
        val: int | None = None,
        seed: int = 0,
        *,
        progress: bool = True,
        processes: int | None = None,
    ) -> bool:
        """Draw the set; False when it is there already. A larger set begins with a smaller one.

        The bytes never depend on `processes` (None: one a core). ValueError for counts below one,
        UserError for a folder with anything else in it.
        """
        asked = zip((train, val), self.counts, strict=True)
        counts = [count if own is None else own for own, count in asked]
        if min(counts) < 1 or seed < 0:
            raise ValueError(
                f"needs at least one file a class and a seed >= 0: {counts}"
            )
        stamp = {"seed": seed, "train": counts[0], "val": counts[1]}
        with unless_there(dest, f"{self.name}.json", stamp) as fresh:
            if fresh is None:
                return False
            for split in self.splits:
                for name in self.classes:
                    (fresh / split / name).mkdir(parents=True, exist_ok=True)
            keys = [
                (split, label, index)
                for split, count in enumerate(counts)
                for label in range(len(self.classes))
                for index in range(count)
            ]
            draw = partial(self.draw, fresh, seed)
            label = f"drawing {Path(dest).name}"
            drawn = in_processes(
                draw, keys, label, progress=progress, processes=processes
            )
            if self.finish:
                (fresh / "annotations").mkdir()
                self.finish(fresh, drawn)
        return True

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the program; return its exit code."""
        parser = Parser(self.name, self.about)
        parser.add_argument("dest", type=Path, help="folder to make")
        per_class = "" if self.classes == ("",) else "-per-class"
        for split, count in zip(("train", "val"), self.counts, strict=True):
            parser.add_argument(
                f"--{split}{per_class}",
                dest=split,
                metavar="N",
                type=int,
                default=count,
                help="files, of each class where there are some (%(default)s)",
            )
        parser.add_argument("--seed", type=int, default=0, help="another, other files")
        asked = parser.parse_args(arguments)
        write = partial(self.write, asked.dest, asked.train, asked.val, asked.seed)
        return make(self.name, asked.dest, write)


def in_processes(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    label: str,
    *,
    progress: bool = True,
    processes: int | None = None,
) -> list[Result]:
    """Return work(item) for each item, in their order, computed in processes (None: one a core)."""
    count = min(processes or len(os.sched_getaffinity(0)), len(items))
    made = results(work, items, count)
    return list(track(made, label, total=len(items), disable=not progress))


@contextmanager
def unless_there(
    dest: Path, stamp_name: str, stamp: dict[str, Any]
) -> Iterator[Path | None]:
    """Yield the folder to write a set into, see whole(); None when the set of this stamp is there already.

    A set of another stamp is a user's as any other file is. Raises UserError as whole() does.
    """
    written = Path(dest) / stamp_name
    if written.is_file() and json.loads(written.read_text()) == stamp:
        yield None
        return
    with whole(dest) as fresh:
        yield fresh
        (fresh / stamp_name).write_text(json.dumps(stamp) + "\n")


def make(name: str, dest: Path, write: Callable[[], bool]) -> int:
    """Call write(), which returns False where the set at `dest` is there already; return the exit code."""

    def work() -> int:
        print(f"{dest}: {'made' if write() else 'already there'}")
        return 0

    return of_program(name, work, ValueError)
