"""Arrow files: which are a split, as datasets.save_to_disk and the Hugging Face cache leave them; and one
that is mapped by pyarrow while it is walked.

Must not know columns or images.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts import UserError
from dataset.scan.file_tree import names_below
from system import storage
from system.user_files import open_bytes, read_text

ALIASES = {"val": ("validation", "val", "test")}
"""What a split of ours is called there: the first of these that is there."""
ABOUT = ("state.json", "dataset_info.json")
"""Files beside the shards that say which these are, and the names of classes."""
OF_THE_CACHE = re.compile(r"(?P<name>.+?)-(?P<split>[A-Za-z_0-9.]+?)(-\d{5}-of-\d{5})?\.arrow")
OF_HOW_MANY = re.compile(r"-(\d{5})-of-(\d{5})\.arrow$")
STREAM = b"\xff\xff\xff\xff"
"""What an IPC stream begins with, since Arrow 0.15."""
END = STREAM + bytes(4)
"""What it ends with."""
FILE = b"ARROW1"
"""What an IPC file begins and ends with."""
AGAIN = "copy it again, or write it again with datasets.Dataset.save_to_disk"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The shards of one split: a folder, and the names of their files in it."""

    folder: Path
    names: tuple[str, ...]

    @property
    def about(self) -> list[Path]:
        """Return the files that are there of those that tell of the shards."""
        return [path for name in ABOUT if (path := self.folder / name).exists()]

    @property
    def shards(self) -> list[Path]:
        """Return the files of the shards."""
        return [self.folder / name for name in self.names]

    @property
    def paths(self) -> list[Path]:
        """Return all that shows a change: the folder, what tells of the shards, and them."""
        return [self.folder, *self.about, *self.shards]


def find(data: Path, split: str) -> Place | None:
    """Return the shards of a split: data/<split>/*.arrow, or data/<name>-<split>*.arrow as in a cache.

    None where there are none. Raises UserError where some are missing, or no one can say which these are.
    """
    for name in ALIASES.get(split, (split,)):
        folder = data / name
        names = [
            own for own in _listed(folder) if own.endswith(".arrow") and not own.startswith((".", "cache-"))
        ]
        if names:
            return _whole(folder, _named_by_state(folder) or names)
        matches = [
            found
            for own in _listed(data)
            if (found := OF_THE_CACHE.fullmatch(own)) and found["split"] == name
        ]
        if len({found["name"] for found in matches}) > 1:
            first, *_, last = (found.string for found in matches)
            raise UserError(
                f"--data {data}: {first} and {last} are of two data sets; move each into a folder of its own"
            )
        if matches:
            return _whole(data, [found.string for found in matches])
    return None


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none where there is no such folder. Raises StorageFault."""
    with suppress(OSError):
        return names_below(folder)
    return []


def _named_by_state(folder: Path) -> list[str]:
    """Return the shards that state.json lists; none where there is no such file."""
    path = folder / "state.json"
    if not path.exists():
        return []
    state = read_json(path)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise UserError(
            f"--data: {path} is of a selection of rows; save it again after Dataset.flatten_indices()"
        )
    try:
        return [str(file["filename"]) for file in state["_data_files"]]
    except (LookupError, TypeError):
        raise UserError(f"--data: {path} lists no files; {AGAIN}") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path))
        if isinstance(found, dict):
            return found
    except OSError as error:
        raise UserError(f"--data: {path} cannot be read: {error.strerror}") from None
    except ValueError:
        pass
    raise UserError(f"--data: {path} is damaged, it holds no JSON object; {AGAIN}")


def _whole(folder: Path, names: Sequence[str]) -> Place:
    """Return the shards. Raises UserError where one of those that they count, or name, is missing."""
    numbers = [found for name in names if (found := OF_HOW_MANY.search(name))]
    wanted = {
        f"{found.string[: found.start()]}-{number:05d}-of-{found[2]}.arrow"
        for found in numbers
        for number in range(int(found[2]))
    }
    lost = sorted(name for name in wanted | {*names} if not (folder / name).exists())
    if lost:
        raise UserError(
            f"--data: {folder} has no {lost[0]}, which the others count ({len(lost)} such); copy it there"
        )
    return Place(folder=folder, names=tuple(names))


class Opened:
    """A mapped Arrow file, stream or not, while it is walked. It is opened with UserError, or OSError."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
        except ImportError:
            raise UserError("--source arrow needs the package pyarrow: pip install pyarrow") from None
        self._arrow: Any = pyarrow
        self.path = path
        with open_bytes(path) as file:
            self.status = os.fstat(file.fileno())
            self.size = self.status.st_size
            head = file.read(8)
            file.seek(max(self.size - 8, 0))
            tail = file.read()
            self._require_whole(head, tail)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._buffer: Any = pyarrow.py_buffer(mapped)
        self.base = int(self._buffer.address)
        self._file = pyarrow.BufferReader(self._buffer)
        with self.damaged():
            of_file = head.startswith(FILE)
            self._reader: Any = (pyarrow.ipc.open_file if of_file else pyarrow.ipc.open_stream)(self._file)
            self._batches = self._reader.num_record_batches if of_file else None
            self.schema: Any = self._reader.schema

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *exc: object) -> None:
        # the mapping goes with the last batch that shows some of it
        self._reader = self._file = self._buffer = None

    def _require_whole(self, head: bytes, tail: bytes) -> None:
        """Raise UserError, in one line, for what is no Arrow file that can be read to its end."""
        if head.startswith(FILE):
            whole = self.size > 16 and tail.endswith(FILE)
        elif head.startswith(STREAM) or not head:
            whole = self.size > 8 and tail == END
        else:
            what = "is of Feather's first version" if head.startswith(b"FEA1") else "is no Arrow file"
            raise UserError(f"--data: {self.path} {what}, or of Arrow before 0.15; {AGAIN}")
        if not whole:
            raise UserError(
                f"--data: {self.path} is cut short, or still being written: its end mark is missing, and it "
                f"has {self.size:,} bytes; start when it is complete, or {AGAIN}"
            )

    def damaged(self) -> Any:
        return Damaged(self.path, (self._arrow.ArrowException, OSError, ValueError))

    def batches(self) -> Iterator[Any]:
        """Yield the record batches. Raises UserError."""
        with self.damaged():
            if self._batches is not None:
                for number in range(self._batches):
                    yield self._reader.get_batch(number)
                return
            yield from self._reader
        if self._file.tell() != self.size:
            raise UserError(
                f"--data: {self.path} goes on at byte {self._file.tell():,}, behind its end mark; {AGAIN}"
            )


@dataclass(frozen=True)
class Damaged:
    """Raises what a library says of a file as one UserError that names it; what the storage says stays."""

    path: Path
    errors: tuple[type[Exception], ...]

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self.errors) and not storage.failed(error):
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--data: {self.path} is damaged: {said[:200]}; copy or write it again") from None
