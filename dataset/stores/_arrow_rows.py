"""Where the images of Arrow files lie: values of a column of binaries, or of structs of bytes and path.

Each is one range of its file, found once through pyarrow and read by its place afterwards, so that no reader
maps a file or needs pyarrow. Must not know plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array, UserError
from dataset.scan import file_tree
from dataset.scan.cache import Progress, reading
from dataset.scan.lists import require_once
from dataset.scan.manifest import printable
from dataset.stores import _shard_index
from dataset.stores._arrow_files import Opened, Place, read_json
from dataset.stores._shard_index import Entry, Index, Shard
from system import storage

IMAGES = ("image", "img")
LABELS = ("label", "labels")
"""Names of columns that are taken where several could be."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which columns are taken, and the names of the classes, where the labels have some."""

    image: str
    label: str  # "" = none is known
    classes: tuple[str, ...] | None


def read_schema(place: Place, label_key: str | None) -> Schema:
    """Return what the schema of the first shard says. Raises UserError."""
    path = place.folder / place.names[0]

    def read() -> Schema:
        with Opened(path) as shard:
            return schema_of(shard.schema, path, label_key)

    with reading(path):
        return storage.in_scan(read, lambda: str(path))


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
    if not image or not (_is_binary(type_of := schema.field(image).type) or _is_struct(type_of)):
        raise UserError(
            f"--data: {path} has no column of images, binary or a struct of bytes and path; it has "
            f"{_columns(schema)}"
        )
    others = [name for name in names if name != image]
    if label_key is not None and label_key not in others:
        raise UserError(f"--label-key {label_key}: {path} has no such column; it has {_columns(schema)}")
    label = label_key or _one_of(
        [name for name in others if _kind(features, name) == "ClassLabel"]
        or [name for name in others if name in LABELS],
        LABELS,
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
        raise UserError(f"--data: {path} has other columns or classes than the first shard: {shown}")


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
    return printable(os.fsencode(", ".join(f"{each.name} ({each.type})" for each in schema)))[:300]


def _types() -> Any:
    """Return what tells pyarrow's types apart; who has one of them has pyarrow."""
    import pyarrow.types

    return pyarrow.types


def _is_binary(kind: Any) -> bool:
    return bool(_types().is_binary(kind) or _types().is_large_binary(kind))


def _is_string(kind: Any) -> bool:
    types = _types()
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_struct(kind: Any) -> bool:
    if not _types().is_struct(kind):
        return False
    place = kind.get_field_index("bytes")
    return place >= 0 and _is_binary(kind.field(place).type)


def open_index(
    place: Place,
    *,
    samples: bool,
    schema: Schema | None = None,
    label_key: str | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Return the index of a split's shards, from `cache` when none has changed since.

    With `samples` an entry is the image of a row, with its label as the shards' first `schema` has it.
    Without, entries are all images that have a path, by that. Raises UserError.
    """
    folder = place.folder
    expected = schema or read_schema(place, label_key)

    def names(visits: list[file_tree.Visit]) -> list[str]:
        file_tree.remember_paths(visits, folder, place.paths)
        return [*place.names]

    return _shard_index.open_index(
        folder,
        names,
        lambda name: _walk(folder / name, expected, label_key, samples=samples),
        key=["arrow 2", *place.names[:1], samples, label_key],
        samples=samples,
        mapped=True,
        cache=cache,
        rescan=rescan,
        progress=progress,
    )


def _walk(path: Path, expected: Schema, label_key: str | None, *, samples: bool) -> Shard:
    """Return what a shard holds. Raises UserError and OSError."""
    entries: list[Entry] = []
    rejects: list[tuple[bytes, str]] = []
    with Opened(path) as shard:
        found = schema_of(shard.schema, path, label_key)
        require_same(found, expected, path)
        row = 0
        for batch in shard.batches():
            for entry in _entries(batch, shard, found, row, samples=samples):
                if not entry.offset:
                    rejects.append((b"row %d" % entry.row, "no image"))
                elif not samples and not entry.name:
                    rejects.append((b"row %d" % entry.row, "no path, which annotations would name it by"))
                else:
                    entries.append(entry)
            row += batch.num_rows
        return Shard(shard.size, shard.status.st_mtime_ns, entries, rejects)


def _entries(batch: Any, shard: Opened, schema: Schema, row: int, *, samples: bool) -> Iterator[Entry]:
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
        labels = labels_of(batch, schema, shard.path) if samples else [None] * len(column)
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
        offsets[:] = np.frombuffer(ends, np.int64 if wide else np.int32)[content.offset :][: count + 1]
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
        return [None if value is None or value < 0 else str(int(value)) for value in column.to_pylist()]
    kind = printable(str(column.type).encode())[:100]
    raise UserError(
        f"--data: {path}: labels in {schema.label} are of type {kind}; they must be integers or strings"
    )
