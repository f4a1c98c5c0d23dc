"""Pairs of a large and a small image that `scripts.pack` stores as one entry each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from contracts import Array, Split, UserError
from dataset.open import SPLITS, cache_folder
from dataset.pairs import entry
from dataset.pairs.scan import open_pairs
from dataset.scan.manifest import is_url, masked
from dataset.stores import choose_source, source_named
from loaders.images.decoders import pillow_rgb
from report.console import Console
from scripts._foreign import FOREIGN
from settings.data import Data
from settings.superres import Superres

CLASS = "pairs"
"""What names begin with; super-resolution reads no label."""


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What is stored in place of two files."""

    coding: str  # "raw": pixels
    scale: int

    def key(self) -> dict[str, Any]:
        """Return what a pack depends on, as JSON has it."""
        return {"pairs": self.coding, "scale": self.scale}

    def source(self, split: Split) -> Joined:
        """Return the entries of a split that `open_splits` has opened."""
        return Joined(split, self)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The columns of pairs as `scripts.pack` asks for them: one class, names in the order of their bytes."""

    pairs: Any  # dataset.pairs.columns.Pairs
    order: Array  # int64 [n], the pair of each name
    names: list[bytes]
    label: Array
    classes: tuple[str, ...] = (CLASS,)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", self.pairs.fingerprint)

    def __len__(self) -> int:
        return len(self.names)

    def entry(self, sample: int) -> bytes:
        """Return the name of a pair in the store."""
        return self.names[sample]


def asked(coding: str | None, scale: int | None) -> Joining | None:
    """Return what flags ask for; None where no pairs are joined. Raises UserError."""
    if coding is None:
        if scale is not None:
            raise UserError("--scale is of --pairs; give both, or neither")
        return None
    try:
        return Joining(
            coding=coding, scale=Superres(scale=2 if scale is None else scale).scale
        )
    except ValidationError as error:
        raise UserError(
            f"--scale got {scale}: {error.errors()[0]['msg'].lower()}"
        ) from None


class Joined:
    """A contracts.Source of pairs, each as one entry."""

    files = False

    def __init__(self, split: Split, joining: Joining) -> None:
        self._source: Any = split.source
        self._order: Array = split.columns.order
        self.read_delay_s: float = split.source.read_delay_s

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

    def told(self) -> str:
        """Return what the pack says of them at the end."""
        return "each a pair as raw pixels"


def open_splits(settings: Data, joining: Joining, console: Console) -> dict[str, Split]:
    """Open the pairs of both splits. Raises UserError where there are no small images."""
    data = settings.data or ""
    if is_url(str(data)):
        raise UserError(
            f"--pairs joins files of this machine; copy {masked(str(data))} here first"
        )
    if settings.source not in ("auto", "folder"):
        raise UserError(
            f"--source {settings.source} with --pairs, which joins files of two folders: leave --source out "
            "where --data has these, or --pairs out where it has one image an entry"
        )
    splits: dict[str, Split] = {}
    for name in SPLITS:
        chosen = choose_source(settings.source, Path(data), name)
        if chosen in FOREIGN or not source_named(chosen).FILES:
            raise UserError(
                f"--pairs joins files of folders, and {data} has {name} as {chosen}"
            )
        cache = cache_folder(settings.manifest_dir)
        with console.counting(name) as progress:
            split, said = open_pairs(
                Path(data),
                name,
                scale=joining.scale,
                least=1,
                source="folder",
                cache=cache,
                progress=progress,
            )
        for line in said:
            console.warn(f"{name}: {line}")
        pairs = split.columns
        if pairs.made:
            raise UserError(
                f"--pairs: {name} has no small images beside its large ones; leave --pairs out"
            )
        entries = [
            pairs.high.entry(int(image)).partition(b"/")[2] for image in pairs.images
        ]
        names = [
            b"%s/%s.pair" % (CLASS.encode(), own.rpartition(b".")[0]) for own in entries
        ]
        if len({*names}) < len(names):
            raise UserError(
                f"--pairs: {name} has two large images of one name with other endings"
            )
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        columns = Names(
            pairs=pairs,
            order=order,
            names=sorted(names),
            label=np.zeros(len(names), np.int32),
        )
        splits[name] = Split(columns=columns, source=split.source)
    return splits
