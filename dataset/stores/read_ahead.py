"""How samples that lie far away are read: several at once, and kept on a disk; must not know formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dataset.stores.disk_cache import Kept

REMOTE_READS = 16
"""Reads that a worker has under way together where samples lie behind URLs."""
LOCAL_READS = 8
"""Reads that a worker has under way together in a store of this machine, while they wait for the disk."""


def read_ahead(
    source: Any, threads: int | None, cache_dir: Path | None, cache_gib: float
) -> None:
    """Tell a source how many reads a worker has under way, and where it keeps what came from far away.

    Raises UserError where the folder cannot be written.
    """
    if not hasattr(source, "reads_at_once"):
        return
    far: bool = source.remote
    source.reads_at_once = threads or (REMOTE_READS if far else LOCAL_READS)
    source.alone_while_fast = not far and threads is None
    if source.alone_while_fast and source.read_delay_s:
        source.reads_at_once = 1  # what a delay costs is to be seen
    if far and cache_dir is not None:
        source.kept = Kept(cache_dir, int(cache_gib * 2**30))
