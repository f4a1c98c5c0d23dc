"""`python -m scripts.pack TO --from DATA`: the images of any source in one LMDB a split, in tar shards
or folders.

Bytes, names, order and classes stay as they are, so that the fingerprint does, and --resume goes on over TO.
The scan's columns lie beside the store (train.columns), which opens with them without a scan. Each sample is
read back and compared by a digest. Until a split is whole it lies in TO/.packing, and does not open; what was
interrupted begins that split anew when it is called again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from contracts import Source, Split, UserError
from dataset.open import open_splits
from dataset.stores import source_named
from report.console import Console
from scripts import Parser, exit_code
from scripts._stores import FORMATS, Packed, Writer, place_of, require
from settings.config import build
from system import storage

Say = Callable[[int, int, str], None]
WORK = ".packing"
ORIGIN = "origin.json"
"""In a store's columns: what it was packed from."""
THREADS = 16
"""Reads at once: the storage is waited for, not the processor."""
BATCH = 64 << 20
"""Bytes of a commit."""
DIGEST = 16
"""Bytes of a sample's digest."""


def digest(content: bytes) -> bytes:
    """Return the digest by which a sample is compared."""
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def read_ahead(source: Source, samples: Iterable[int]) -> Iterator[bytes]:
    """Yield the bytes of samples in their order, a few more under way in threads than there are of these."""
    rest = iter(samples)

    def read(sample: int) -> bytes:
        return storage.patiently(
            partial(source.read, sample),
            partial(source.name, sample),
            "start again",
        )

    with ThreadPoolExecutor(THREADS) as pool:
        jobs = deque[Future[bytes]](
            pool.submit(read, sample) for sample in islice(rest, 2 * THREADS)
        )
        try:
            while jobs:
                yield jobs.popleft().result()
                jobs.extend(pool.submit(read, sample) for sample in islice(rest, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def write(split: Split, writer: Writer, say: Say) -> list[bytes]:
    """Write all samples, and return the digest of each."""
    columns = split.columns
    batch: list[Packed] = []
    digests: list[bytes] = []
    size = 0
    everything = range(len(columns))
    for sample, content in enumerate(read_ahead(split.source, everything)):
        batch.append(Packed(columns.entry(sample), int(columns.label[sample]), content))
        digests.append(digest(content))
        size += len(content)
        if size >= BATCH or sample == everything[-1]:
            writer.write(batch)
            say(sample + 1, len(columns), "writing")
            batch = []
            size = 0
    return digests


def verify(split: Split, digests: Sequence[bytes], say: Say) -> None:
    """Raise UserError where a sample of the store is not, bit for bit, what was read."""
    for sample, content in enumerate(
        read_ahead(split.source, range(len(split.source)))
    ):
        if digest(content) != digests[sample]:
            raise UserError(
                f"{split.source.name(sample)} was not read back as it was written; is the disk well?"
            )
        say(sample + 1, len(split.source), "verifying")


def pack_split(
    split: Split,
    name: str,
    form: str,
    target: Path,
    say: Say,
) -> bool:
    """Write one split into `target`; False where it is there already. Raises UserError and OSError."""
    columns = split.columns
    work = target / WORK
    make = FORMATS[form]
    place = target / place_of(form, name)
    beside = target / f"{name}.columns"
    origin = {"fingerprint": columns.fingerprint, "format": form}
    if place.exists():
        if _origin(beside) == origin:
            return False
        raise UserError(
            f"{place} is there already, of other data; remove it, or name another folder"
        )
    names = [columns.entry(sample) for sample in range(len(columns))]
    require(form, names, columns)
    used = sorted(columns.classes[label] for label in np.unique(columns.label))
    if form == "folder" and name == "train" and used != [*columns.classes]:
        raise UserError(
            "--format folder has the classes that have an image, sorted by name, and --data has others, or "
            "in another order; take --format tar"
        )
    # of a call that was interrupted
    _remove(work / place_of(form, name))
    with closing(make(work, name)) as writer:
        digests = write(split, writer, say)
        writer.finish(names, columns)
    fresh = work / f"{name}.columns"
    _remove(fresh)
    with tempfile.TemporaryDirectory() as scans:
        cache = Path(scans)
        store = source_named(form)
        classes = None if name == "train" else columns.classes
        fresh.mkdir()
        if form != "folder":
            store.keep(columns, work, name)
        packed = store.open(work, name, classes=classes, cache=cache)
        same = packed.columns.classes == columns.classes
        same = same and np.array_equal(packed.columns.label, columns.label)
        if not same or names != [
            packed.columns.entry(sample) for sample in range(len(packed.columns))
        ]:
            raise UserError(
                f"{writer.store} was not read back with the names that were written; try again"
            )
        verify(packed, digests, say)
    (fresh / ORIGIN).write_text(json.dumps(origin), encoding="utf-8")
    _remove(beside)
    os.rename(fresh, beside)
    os.rename(writer.store, place)  # last: with it the split opens
    return True


def _origin(folder: Path) -> Any:
    """Return what a store was packed from; None where it does not say."""
    try:
        return json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def pack_splits(
    splits: Mapping[str, Split],
    data: str | Path,
    target: Path,
    form: str,
    console: Console,
) -> None:
    """Write the splits, which lie in `data`, into TO. Raises UserError and OSError."""
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(data)):
        raise UserError(
            f"{target} lies inside {data}, which is never written to; choose another folder"
        )
    work = target / WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(work / "lock", timeout=0):
            for name, split in splits.items():
                with console.counting(name) as say:
                    written = pack_split(split, name, form, target, say)
                there = "" if written else " were there already"
                console.info(f"{name}: {len(split.columns):,} samples{there}")
    except filelock.Timeout:
        raise UserError(f"another process packs into {target}; wait for it") from None
    except OSError as error:
        if error.filename is not None:
            raise
        # what fails in the middle of a write names no file
        raise UserError(
            f"{target} cannot be written: {error.strerror}; make room there, and start again"
        ) from None
    shutil.rmtree(work)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("pack", __doc__)
    parser.add_argument(
        "target", metavar="TO", type=Path, help="folder of the stores, for --data"
    )
    parser.add_argument(
        "--from",
        "--data",
        dest="data",
        metavar="DATA",
        required=True,
        help="as --data of train.py",
    )
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="lmdb", help="default: lmdb"
    )
    parser.add_argument("--source", default="auto", help="as of training")
    parser.add_argument("--manifest-dir", type=Path)
    parser.add_argument("--lmdb-label")
    parser.add_argument("--label-key")
    options = parser.parse_args(arguments)
    return exit_code("pack", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    chosen = {
        name: value
        for name in ("data", "source", "manifest_dir", "lmdb_label", "label_key")
        if (value := getattr(options, name))
    }
    settings = build(chosen).data
    console = Console()
    splits = open_splits(settings, loader="torchvision", console=console)
    pack_splits(splits, options.data, options.target, options.format, console)
    print(f"{options.target}: --data {options.target} --source {options.format}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
