"""Where a data set's bytes lie: one source a file, one line each in SOURCES.

docs/data.md says how to write one of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from saturate.contracts import Split, UserError

if TYPE_CHECKING:  # dataset.scan reads URLs by dataset.stores.remote
    from saturate.dataset.images.columns import Images
    from saturate.dataset.scan.cache import Options

SOURCES = {
    "folder": "saturate.dataset.stores.folder",
    "list": "saturate.dataset.stores.list",
    "lmdb": "saturate.dataset.stores.lmdb",
    "tar": "saturate.dataset.stores.tar",
    "arrow": "saturate.dataset.stores.arrow",
}
"""--source -> module: a SourceModule, or one whose `KIND` dataset.stores.shards.ShardStore makes one of.

Where --source auto finds nothing, the first one says what is missing.
"""


class SourceModule(Protocol):
    """What a module of SOURCES offers. Importing it imports no library that a user may do without."""

    FILES: bool  # each sample is a file of its own, so that decoders which open files themselves can be used
    HOLDS: str  # what --data must be, in words that follow "it must be"
    LABELS: (
        str  # field of config.Data whose value `open` is given as `labels`; "" = none
    )

    def missing(self, data: Path, split: str) -> str:
        """Return what `data` lacks to hold the split of that name in this form, or "" when it is there.

        The words follow "has no". Looks at names alone: --source auto asks every source.
        """

    def open(
        self,
        data: Path,
        split: str,
        *,
        classes: Sequence[str] | None = None,
        read_delay_s: float = 0.0,
        **how: Unpack[Options],
    ) -> Split[Images]:
        """Open a split of images with a label: its columns, a dataset.images.columns.Images, and their bytes.

        `classes` are those of training, where this is validation. Raises UserError.
        """


def source_named(name: str) -> Any:
    """Return the SourceModule of a name. Raises UserError for one that SOURCES does not have."""
    if name not in SOURCES:
        raise UserError(
            f"--source got '{name}', which is unknown; known: {', '.join(['auto', *SOURCES])}"
        )
    module = import_module(SOURCES[name])
    if not hasattr(module, "KIND"):
        return module
    # here, since it imports files of this folder
    from saturate.dataset.stores.shards import ShardStore

    return ShardStore(name, module.KIND)


def choose_source(name: str, data: Path, split: str) -> str:
    """Return the source that --source `name` is for a split: of auto, the one that holds it.

    Raises UserError where several do.
    """
    if name != "auto":
        return name
    holding = [each for each in SOURCES if not source_named(each).missing(data, split)]
    if len(holding) > 1:
        raise UserError(
            f"--data {data}: {split} can be read as {' and as '.join(holding)}; "
            f"choose one with --source {' or --source '.join(holding)}"
        )
    return holding[0] if holding else next(iter(SOURCES))


def what_holds(name: str) -> str:
    """Return what --data must be for --source `name`, in words."""
    names = [name] if name != "auto" else SOURCES
    return "; or ".join(source_named(each).HOLDS for each in names)
