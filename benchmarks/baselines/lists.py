"""Datasets over a list of paths and labels as one writes them by hand: what `loader --lines` compares with.

Uses nothing of ours on purpose. A sample is the length of its path plus its label: a number that needs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def parsed(line: str) -> tuple[str, int]:
    """Return path and label of a line."""
    name, _, label = line.rpartition(",")
    return name, int(label)


class PythonList(Dataset[int]):
    """A list of (path, label), as torchvision's ImageFolder keeps it."""

    def __init__(self, path: Path) -> None:
        with path.open() as file:
            self.samples = [parsed(line) for line in file]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        name, label = self.samples[index]
        return len(name) + label


class NumPyStrings(Dataset[int]):
    """Two arrays, one of them of strings: the remedy that pytorch#13246 recommends."""

    def __init__(self, path: Path) -> None:
        names, labels = zip(*PythonList(path).samples, strict=True)
        self.names = np.array(names)
        self.labels = np.array(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> int:
        return len(str(self.names[index])) + int(self.labels[index])


class Pandas(Dataset[int]):
    """A data frame, as tutorials of custom datasets read it."""

    def __init__(self, path: Path) -> None:
        pandas = import_module("pandas")  # which nothing else here needs
        self.frame = pandas.read_csv(path, header=None, names=["name", "label"])

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> int:
        return len(self.frame.iloc[index, 0]) + int(self.frame.iloc[index, 1])


class Walk(IterableDataset[int]):
    """No list in memory: each worker reads the whole file and takes its share of the lines, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        with self.path.open() as file:
            for at, line in enumerate(file):
                if at % workers == number:
                    name, label = parsed(line)
                    yield len(name) + label


DATASETS: dict[str, Any] = {
    "python-list": PythonList,
    "numpy": NumPyStrings,
    "pandas": Pandas,
    "walk": Walk,
}
"""name -> what reads a list into a dataset."""


def loader(dataset: Any, *, batch_size: int, workers: int) -> DataLoader[Any]:
    """Return PyTorch's loader of a dataset, shuffled where it has a length, int64 [B] a batch."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=not isinstance(dataset, IterableDataset),
        num_workers=workers,
        # through a pipe: less of /dev/shm, which is not what is measured
        collate_fn=np.array,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(0),
    )
