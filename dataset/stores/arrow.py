"""Images in Arrow files, as Hugging Face's datasets leaves them: which files, columns, labels, and bytes.

An image is one range of its file, found once through pyarrow and read by its place afterwards, so that no
reader maps a file or needs pyarrow. Must not know formats of images.
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
from typing import Any, BinaryIO

import numpy as np

from contracts import Array, UserError
from dataset.scan.file_tree import names_below
from dataset.scan.lists import require_once
from dataset.scan.manifest import printable
from dataset.stores.shards import Entry, Shard, Shelf
from system import storage
from system.user_files import open_bytes, read_text

ENDING = ".arrow"
HOLDS = "a folder that datasets.save_to_disk wrote: train/*.arrow and validation/*.arrow; or one of its cache"
MAPPED = True
ALIASES = {"val": ("validation", "val", "test")}
"""What a split of ours is called there: the first of these that is there."""
ABOUT = ("state.json", "dataset_info.json")
"""Files beside the shards that say which these are, and the names of classes."""
OF_THE_CACHE = re.compile(
    r"(?P<name>.+?)-(?P<split>[A-Za-z_0-9.]+?)(-\d{5}-of-\d{5})?\.arrow"
)
OF_HOW_MANY = re.compile(r"-(\d{5})-of-(\d{5})\.arrow$")
STREAM = b"\xff\xff\xff\xff"
"""What an IPC stream begins with, since Arrow 0.15."""
END = STREAM + bytes(4)
"""What it ends with."""
FILE = b"ARROW1"
"""What an IPC file begins and ends with."""
AGAIN = "copy it again, or write it again with datasets.Dataset.save_to_disk"


def find(data: Path, split: str) -> Shelf | None:
    """Return the shards of a split: data/<split>/*.arrow, or data/<name>-<split>*.arrow as in a cache.

    None where there are none. Raises UserError where some are missing, or no one can say which these are.
    """
    for name in ALIASES.get(split, (split,)):
        folder = data / name
        names = [
            own
            for own in _listed(folder)
            if own.endswith(".arrow") and not own.startswith((".", "cache-"))
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


def _whole(folder: Path, names: Sequence[str]) -> Shelf:
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
    about = [path for name in ABOUT if (path := folder / name).exists()]
    return Shelf(
        folder=folder,
        names=names,
        paths=[folder, *about, *(folder / name for name in names)],
    )


class Opened:
    """A mapped Arrow file, stream or not, while it is walked. Raises UserError, or OSError."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        try:
            import pyarrow
        except ImportError:
            raise UserError(
                "--source arrow needs the package pyarrow: pip install pyarrow"
            ) from None
        self._arrow: Any = pyarrow
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        file.seek(max(self.size - 8, 0))
        self._require_whole(head, file.read())
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._buffer: Any = pyarrow.py_buffer(mapped)
        self.base = int(self._buffer.address)
        self._file = pyarrow.BufferReader(self._buffer)
        with self.damaged():
            of_file = head.startswith(FILE)
            self._reader: Any = (
                pyarrow.ipc.open_file if of_file else pyarrow.ipc.open_stream
            )(self._file)
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
            what = (
                "is of Feather's first version"
                if head.startswith(b"FEA1")
                else "is no Arrow file"
            )
            raise UserError(
                f"--data: {self.path} {what}, or of Arrow before 0.15; {AGAIN}"
            )
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
            raise UserError(
                f"--data: {self.path} is damaged: {said[:200]}; copy or write it again"
            ) from None


IMAGES = ("image", "img")
LABEL_NAMES = ("label", "labels")
"""Names of columns that are taken where several could be."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which columns are taken, and the names of the classes, where the labels have some."""

    image: str
    label: str  # "" = none is known
    classes: tuple[str, ...] | None


def prepare(path: Path, label_key: str | None) -> Schema:
    """Return what the schema of the first shard says. Raises UserError and OSError."""
    with open_bytes(path) as file, Opened(path, file) as opened:
        return schema_of(opened.schema, path, label_key)


def without(label_key: str | None, schema: Schema) -> str:
    """Return why an image has no label."""
    return f"no label in the column {schema.label}"


def schema_of(schema: Any, path: Path, label_key: str | None) -> Schema:
    """Return the columns of images and labels of a shard. Raises UserError."""
    features = _features(schema, path)
    names = [*schema.names]
    require_once(names, f"the schema of {path}")
    image = _one_of(
        [name for name in names if _kind(features, name) == "Image"]
        or [name for name in names if _is_struct(schema.field(name).type)]
        or [name for name in names if _is_binary(schema.field(name).type)],
        IMAGES,
    )
    if not image or not (
        _is_binary(type_of := schema.field(image).type) or _is_struct(type_of)
    ):
        raise UserError(
            f"--data: {path} has no column of images, binary or a struct of bytes and path; it has "
            f"{_columns(schema)}"
        )
    others = [name for name in names if name != image]
    if label_key is not None and label_key not in others:
        raise UserError(
            f"--label-key {label_key}: {path} has no such column; it has {_columns(schema)}"
        )
    label = label_key or _one_of(
        [name for name in others if _kind(features, name) == "ClassLabel"]
        or [name for name in others if name in LABEL_NAMES],
        LABEL_NAMES,
    )
    told = features.get(label)
    classes = told.get("names") if isinstance(told, dict) else None
    if not classes:
        return Schema(image=image, label=label, classes=None)
    classes = [*map(str, classes)]
    require_once(classes, f"{label} of {path}")
    return Schema(image=image, label=label, classes=tuple(classes))


def require_same(found: Schema, expected: Schema, path: Path) -> None:
    """Raise UserError where a shard's numbers mean other classes than the first one's, or lie elsewhere."""
    if found != expected:
        shown = printable(os.fsencode(f"{found} and {expected}"))[:500]
        raise UserError(
            f"--data: {path} has other columns or classes than the first shard: {shown}"
        )


def _features(schema: Any, path: Path) -> dict[str, Any]:
    """Return what datasets says of the columns, in the schema or beside the shard; {} for nothing."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    beside = path.parent / "dataset_info.json"
    found: Any = None
    if metadata is not None:
        with suppress(ValueError, LookupError, TypeError):
            found = json.loads(metadata)["info"]["features"]
    if not found and beside.exists():
        found = read_json(beside).get("features")
    return found if isinstance(found, dict) else {}


def _kind(features: dict[str, Any], name: str) -> str:
    told = features.get(name)
    return str(told.get("_type", "")) if isinstance(told, dict) else ""


def _one_of(names: Sequence[str], preferred: Sequence[str]) -> str:
    """Return the only name, or the one that is preferred; "" where that says nothing."""
    if len(names) == 1:
        return names[0]
    return next((name for name in preferred if name in names), "")


def _columns(schema: Any) -> str:
    return printable(
        os.fsencode(", ".join(f"{each.name} ({each.type})" for each in schema))
    )[:300]


def _types() -> Any:
    """Return what tells pyarrow's types apart; who has one of them has pyarrow."""
    import pyarrow.types

    return pyarrow.types


def _is_binary(kind: Any) -> bool:
    return bool(_types().is_binary(kind) or _types().is_large_binary(kind))


def _is_string(kind: Any) -> bool:
    types = _types()
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


def _is_struct(kind: Any) -> bool:
    if not _types().is_struct(kind):
        return False
    place = kind.get_field_index("bytes")
    return place >= 0 and _is_binary(kind.field(place).type)


def walk(shard: Shard) -> Iterator[Entry]:
    """Yield the image of each row with its label, by its path; without samples those that have a path.

    Raises UserError and OSError.
    """
    path = Path(shard.path)
    with Opened(path, shard.file) as opened:
        schema = schema_of(opened.schema, path, shard.label_key)
        require_same(schema, shard.about, path)
        row = 0
        for batch in opened.batches():
            for entry in _entries(batch, opened, schema, row, samples=shard.samples):
                if not entry.offset:
                    shard.reject(b"row %d" % entry.row, "no image")
                elif not shard.samples and not entry.name:
                    shard.reject(
                        b"row %d" % entry.row,
                        "no path, which annotations would name it by",
                    )
                else:
                    yield entry
            row += batch.num_rows


def _entries(
    batch: Any, shard: Opened, schema: Schema, row: int, *, samples: bool
) -> Iterator[Entry]:
    """Yield the rows of a batch whose first is `row`; where there is no image the offset is 0."""
    with shard.damaged():
        batch.validate()
        column = batch.column(schema.image)
        binary = _is_binary(column.type)
        content = column if binary else column.field("bytes")
        there = content.is_valid().to_numpy(zero_copy_only=False)
        if not binary:
            there &= column.is_valid().to_numpy(zero_copy_only=False)
        begins, sizes = _ranges(content, shard)
        paths = _paths(column, binary)
        labels = (
            labels_of(batch, schema, shard.path) if samples else [None] * len(column)
        )
    folder = os.fsencode(shard.path.parent.name) + b"/"
    for place, (begin, size, path, label) in enumerate(
        zip(begins.tolist(), sizes.tolist(), paths, labels, strict=True)
    ):
        if not there[place] and path:
            raise UserError(
                f"--data: {shard.path}:row {row + place} has a path, {printable(path)}, and no bytes: "
                "python -m scripts.pack TO --from FOLDER packs the files themselves"
            )
        name = path if samples else path.removeprefix(folder)
        yield Entry(name, begin if there[place] else 0, size, label, row + place)


def _ranges(content: Any, shard: Opened) -> tuple[Array, Array]:
    """Return int64 [n], [n]: where values begin in the file, and their sizes. Raises UserError."""
    count = len(content)
    _, ends, values = content.buffers()
    wide = _types().is_large_binary(content.type)
    offsets = np.zeros(count + 1, np.int64)
    if count:
        offsets[:] = np.frombuffer(ends, np.int64 if wide else np.int32)[
            content.offset :
        ][: count + 1]
    length = values.size if values is not None else 0
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > length:
        raise ValueError("offsets that do not ascend")
    begin = values.address - shard.base if length else 0
    if length and not 0 < begin <= shard.size - length:
        raise UserError(
            f"--data: {shard.path} is compressed, so that nothing of it can be read by its place; write it "
            "again without compression, or python -m scripts.pack TO --from the files"
        )
    return begin + offsets[:-1], np.diff(offsets)


def _paths(column: Any, binary: bool) -> list[bytes]:
    """Return the path of each row; b"" where it has none, or one that is no name."""
    place = -1 if binary else column.type.get_field_index("path")
    if place < 0 or not _is_string(column.type.field(place).type):
        return [b""] * len(column)
    paths = column.field(place).cast("large_binary").to_pylist()
    return [path if path and b"\0" not in path else b"" for path in paths]


def labels_of(batch: Any, schema: Schema, path: Path) -> list[str | None]:
    """Return the label of each row; None where it has none. Raises UserError."""
    if not schema.label:
        raise UserError(
            f"--data: {path} has no column of labels that is known by its type or name; it has "
            f"{_columns(batch.schema)}: --label-key names one"
        )
    column = batch.column(schema.label)
    if _types().is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_string(column.type):
        return [(value or "").strip() or None for value in column.to_pylist()]
    if _types().is_integer(column.type) or _types().is_boolean(column.type):
        return [
            None if value is None or value < 0 else str(int(value))
            for value in column.to_pylist()
        ]
    kind = printable(str(column.type).encode())[:100]
    raise UserError(
        f"--data: {path}: labels in {schema.label} are of type {kind}; they must be integers or strings"
    )
