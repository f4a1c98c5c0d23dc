"""`python -m benchmarks lists`: the host memory of a list of many lines that a DataLoader's workers go through.

The list has --lines lines of path and label. In one loop it is two Python lists, as a Dataset by hand has them, and in
the other one the list of saturate.dataset, a file that all processes map. The loop is the same: a DataLoader whose
Dataset returns the label and the length of the path, and opens no image. Each rank is a process that goes through its
share. The memory is the PSS of all processes, in which pages that they share count once: the most of a look a second.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from saturate.contracts import UserError
from saturate.dataset.stores import list as image_lists
from saturate.report.hardware import host_gib
from saturate.settings.cli import Settings, flags

BATCH = 1024
CLASSES = 1000
FILES = 1000
"""Images that the lines name, again and again."""
LOOK_S = 1.0


class Lists(Settings):
    """Lists, and who goes through them."""

    output: Path | None = None
    """File of the rows, a JSON a line."""
    lines: int = 10_000_000
    """Lines of the list."""
    workers: tuple[int, ...] = (1, 4, 16)
    """Worker processes of a rank."""
    ranks: tuple[int, ...] = (1,)
    """Processes that go through the list together."""
    orders: tuple[Literal["shuffled", "sequential"], ...] = ("shuffled", "sequential")
    """Whether an epoch is shuffled."""
    lists: tuple[Literal["python", "mapped"], ...] = ("python", "mapped")
    """Python's list of strings, or the file that all map."""


class ByHand(Dataset[tuple[int, int]]):
    """Two Python lists, of paths and of labels."""

    def __init__(self, file: Path) -> None:
        self.paths: list[str] = []
        self.labels: list[int] = []
        with file.open() as lines:
            for line in lines:
                path, label = line.rstrip("\n").split("\t")
                self.paths.append(path)
                self.labels.append(int(label))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.labels[index], len(self.paths[index])


class Mapped(Dataset[tuple[int, int]]):
    """The columns of a list that was scanned."""

    def __init__(self, file: Path) -> None:
        cache = file.parents[1] / "cache"
        split = image_lists.open(file.parent, file.stem, cache=cache, unread=True)
        self.columns = split.columns

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return int(self.columns.label[index]), len(self.columns.path(index))


KINDS: dict[str, Any] = {"python": ByHand, "mapped": Mapped}


def write(folder: Path, count: int) -> Path:
    """Write a list of so many lines, and the images that it names."""
    names = []
    for number in range(FILES):
        name = f"images/class-{number % CLASSES:04}/photograph-{number:08}.jpg"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
        names.append(f"{name}\t{number % CLASSES}\n")
    file = folder / "train.tsv"
    with file.open("w") as lines:
        lines.writelines(itertools.islice(itertools.cycle(names), count))
    return file


def measured(
    file: Path, kind: str, workers: int, ranks: int, order: str
) -> dict[str, Any]:
    """Return the most memory of all ranks and their workers, and the seconds."""
    code = "from benchmarks.lists import go_through; go_through()"
    words = [str(file), kind, str(workers), order, str(ranks)]
    began = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, "-c", code, *words, str(rank)])
        for rank in range(ranks)
    ]
    most = 0.0
    while any(process.poll() is None for process in processes):
        most = max(most, sum(host_gib(process.pid) for process in processes))
        time.sleep(LOOK_S)
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a rank of {' '.join(words)} has failed")
    return {"host_gib": most, "seconds": time.perf_counter() - began}


def go_through() -> None:
    """Go through a rank's share of the list once; the words are those of `measured`."""
    file, kind, workers, order, ranks, rank = sys.argv[1:]
    torch.set_num_threads(1)
    dataset = KINDS[kind](Path(file))
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, int(ranks), int(rank), shuffle=order == "shuffled"
    )
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=int(workers))
    for _ in loader:
        pass


def rows(settings: Lists, file: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each combination."""
    for kind, ranks, workers, order in itertools.product(
        settings.lists, settings.ranks, settings.workers, settings.orders
    ):
        point = {"list": kind, "ranks": ranks, "workers": workers, "order": order}
        yield point | measured(file, kind, workers, ranks, order)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 2 for a user's mistake."""
    try:
        given = list(sys.argv[1:] if argv is None else argv)
        settings = flags(Lists, given, prog="benchmarks.lists")
    except UserError as error:
        print(f"lists: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder, "data"), settings.lines)
        # scanned once, as a data set is
        Mapped(file)
        for row in rows(settings, file):
            line = json.dumps(row)
            print(line, flush=True)
            if settings.output:
                with settings.output.open("a") as out:
                    print(line, file=out)
    return 0
