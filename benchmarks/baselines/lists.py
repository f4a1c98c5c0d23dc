"""Datasets over a list of paths and labels as one writes them by hand: what the suite `lists` compares with.

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


class PythonList(Dataset[int]):
    """A list of (path, label), as torchvision's ImageFolder keeps it."""

    def __init__(self, path: Path) -> None:
        self.samples: list[tuple[str, int]] = []
        with path.open() as file:
            for line in file:
                name, _, label = line.rpartition(",")
                self.samples.append((name, int(label)))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        name, label = self.samples[index]
        return len(name) + label


class NumPyStrings(Dataset[int]):
    """Two arrays, one of them of strings: the remedy that pytorch#13246 recommends."""

    def __init__(self, path: Path) -> None:
        listed = PythonList(path)
        self.names = np.array([name for name, _ in listed.samples])
        self.labels = np.array([label for _, label in listed.samples])

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
                    name, _, label = line.rpartition(",")
                    yield len(name) + int(label)


class Nothing(Dataset[int]):
    """So many samples, and nothing behind them: an empty worker."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


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
        collate_fn=_array,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(0),
    )


def _array(samples: list[int]) -> Any:
    return np.array(
        samples, np.int64
    )  # through a pipe: less of /dev/shm, which is not what is measured
