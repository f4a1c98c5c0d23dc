"""Pairs of a large and a small image that `scripts.pack` stores as one entry each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array, Split, UserError
from dataset.open import SPLITS, cache_folder
from dataset.pairs import entry
from dataset.pairs.scan import open_pairs
from dataset.scan.manifest import is_url, masked
from dataset.stores import choose_source, source_named
from loaders.images.decoders import pillow_rgb
from report.console import Console
from settings.data import Data

CLASS = "pairs"
"""What names begin with; super-resolution reads no label."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The columns of pairs as `scripts.pack` asks for them: one class, names in the order of their bytes."""

    names: list[bytes]
    order: Array  # int64 [n], the pair of each name
    label: Array
    fingerprint: str
    classes: tuple[str, ...] = (CLASS,)

    def __len__(self) -> int:
        return len(self.names)

    def entry(self, sample: int) -> bytes:
        """Return the name of a pair in the store."""
        return self.names[sample]


class Joined:
    """A contracts.Source of pairs, each as one entry."""

    files = False

    def __init__(self, source: Any, order: Array) -> None:
        self.read_delay_s: float = source.read_delay_s
        self._source = source
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def name(self, sample: int) -> str:
        """Return the name of the large image, on one line."""
        return str(self._source.name(int(self._order[sample])))

    def check(self, sample: int, size: int) -> None:
        """Do nothing: the sizes that the columns know are of the files as they were."""

    def read(self, sample: int) -> bytes:
        """Return the entry. Raises UserError where one of the two cannot be decoded."""
        pair = int(self._order[sample])
        images = []
        for source in (self._source, self._source.low):
            try:
                images.append(np.asarray(pillow_rgb(source.read(pair))))
            except (UserError, OSError, ValueError, SyntaxError) as error:
                raise UserError(
                    f"{source.name(pair)} cannot be decoded ({error}); take the pair away"
                ) from None
        return entry.encoded(images[0], images[1])


def open_splits(settings: Data, console: Console, *, scale: int) -> dict[str, Split]:
    """Open both splits as entries of pairs. Raises UserError without small images."""
    data = settings.data or ""
    if is_url(data):
        raise UserError(
            f"--pairs joins files of this machine; copy {masked(data)} here first"
        )
    splits: dict[str, Split] = {}
    for name in SPLITS:
        chosen = choose_source(settings.source, Path(data), name)
        if not source_named(chosen).FILES:
            raise UserError(
                f"--pairs joins files of folders, and {data} has {name} as {chosen}; leave one of them out"
            )
        with console.counting(name) as progress:
            split, lines = open_pairs(
                Path(data),
                name,
                scale=scale,
                least=1,
                source="folder",
                cache=cache_folder(settings.manifest_dir),
                progress=progress,
            )
        for line in lines:
            console.warn(f"{name}: {line}")
        columns = split.columns
        if columns.made:
            raise UserError(
                f"--pairs: {name} has no small images beside its large ones; leave --pairs out"
            )
        files = [columns.high.entry(int(image)) for image in columns.images]
        names = [
            b"%s/%s.pair"
            % (CLASS.encode(), file.partition(b"/")[2].rpartition(b".")[0])
            for file in files
        ]
        if len(set(names)) < len(names):
            raise UserError(
                f"--pairs: {name} has two large images of one name with other endings"
            )
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        joined = Names(
            names=sorted(names),
            order=order,
            label=np.zeros(len(names), np.int32),
            fingerprint=columns.fingerprint,
        )
        splits[name] = Split(columns=joined, source=Joined(split.source, order))
    return splits
