"""Images in Arrow files, as Hugging Face's datasets leaves them: which files, columns, labels, and places.

An image is one range of its file, found once through pyarrow and read by its place afterwards, so that no
reader maps a file or needs pyarrow. Must not know formats of images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saturate.contracts import Array, UserError
from saturate.dataset.scan.file_tree import names_below
from saturate.dataset.scan.lists import require_once
from saturate.dataset.scan.manifest import printable
from saturate.dataset.stores.shards import Entry, Shard, ShardKind, ShardList
from saturate.system import storage
from saturate.system.programs import program
from saturate.system.user_files import read_text

if TYPE_CHECKING:
    import pyarrow

ENDING = ".arrow"
ALIASES = {"val": ("validation", "val", "test")}
"""Our name of a split -> the names that datasets may give it; the first one that is there is taken."""
ABOUT = ("state.json", "dataset_info.json")
"""Files beside the shards that say which these are, and the names of classes."""
OF_THE_CACHE = re.compile(
    r"(?P<name>.+?)-(?P<split>[A-Za-z_0-9.]+?)(-\d{5}-of-\d{5})?\.arrow"
)
OF_HOW_MANY = re.compile(r"-(\d{5})-of-(\d{5})\.arrow$")
END = b"\xff\xff\xff\xff" + bytes(4)
"""What an IPC stream ends with, since Arrow 0.15."""
FILE = b"ARROW1"
"""What an IPC file begins with."""
STRINGS = ("string", "large_string", "string_view")
IMAGES = ("image", "img")
LABELS = ("label", "labels")
"""Names of columns that are taken where several could be."""


# --- which files --------------------------------------------------------------------------------------------


def find(data: Path, split: str) -> ShardList | None:
    """Return the shards of a split: data/<split>/*.arrow, or data/<name>-<split>*.arrow as in a cache.

    None where there are none. Raises UserError where some are missing, or no one can say which these are.
    """
    for name in ALIASES.get(split, (split,)):
        folder = data / name
        names = [
            file
            for file in _listed(folder)
            if file.endswith(ENDING) and not file.startswith((".", "cache-"))
        ]
        if names:
            return _whole(folder, _named_by_state(folder) or names)
        matches = [OF_THE_CACHE.fullmatch(file) for file in _listed(data)]
        of_split = [match for match in matches if match and match["split"] == name]
        if len({match["name"] for match in of_split}) > 1:
            first, *_, last = (match.string for match in of_split)
            raise UserError(
                f"--data {data}: {first} and {last} are of two data sets; move each into a folder of its own"
            )
        if of_split:
            return _whole(data, [match.string for match in of_split])
    return None


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none where there is no such folder. Raises StorageFault."""
    with suppress(OSError):
        return names_below(folder)
    return []


def _named_by_state(folder: Path) -> list[str]:
    """Return the shards that state.json lists; none where there is no such file."""
    state = read_json(folder / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise UserError(
            f"--data: {folder} has a selection of rows; save it again after Dataset.flatten_indices()"
        )
    try:
        return [str(file["filename"]) for file in state.get("_data_files", ())]
    except (LookupError, TypeError):
        raise UserError(
            f"--data: {folder / 'state.json'} is damaged; copy it again"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} where there is no file. Raises UserError and OSError."""
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"--data: {path} is damaged: {error}") from None
    return content if isinstance(content, dict) else {}


def _whole(folder: Path, names: Sequence[str]) -> ShardList | None:
    """Return the shards of these names, and the files of ABOUT beside them.

    Raises UserError where one of them is missing, or one that the number in a name (-00000-of-00004) counts.
    """
    numbered = [match for name in names if (match := OF_HOW_MANY.search(name))]
    wanted = {
        f"{match.string[: match.start()]}-{number:05d}-of-{match[2]}.arrow"
        for match in numbered
        for number in range(int(match[2]))
    }
    missing = sorted(name for name in wanted | {*names} if not (folder / name).exists())
    if missing:
        raise UserError(
            f"--data: {folder} has no {missing[0]}, which state.json or another shard's name counts "
            f"({len(missing)} missing); copy it there"
        )
    about = [path for name in ABOUT if (path := folder / name).exists()]
    return ShardList.of_files(folder, names, *about)


# --- columns ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which columns are taken, and the names of the classes, where the labels have some."""

    image: str
    label: str
    classes: tuple[str, ...] | None


def prepare(shards: ShardList, label_key: str | None) -> Schema:
    """Return what the schema of the first shard says. Raises UserError and OSError."""
    path = shards.folder / shards.names[0]
    with _opened(path) as (schema, *_):
        return schema_of(schema, path, label_key)


def _lacks(what: str, schema: pyarrow.Schema, path: Path) -> UserError:
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    return UserError(
        f"--data: {path} has no column of {what} that is known by its type or name; it has "
        f"{printable(columns)[:300]}"
    )


def schema_of(schema: pyarrow.Schema, path: Path, label_key: str | None) -> Schema:
    """Return the columns of images, binary or structs of bytes and path, and of labels. Raises UserError."""
    names = [*schema.names]
    require_once(names, f"the schema of {path}")
    features = _features(schema, path)
    kinds = {name: schema.field(name).type for name in names}
    image = _one_of(
        [name for name in names if _kind(features, name) == "Image"]
        or [name for name in names if _is_struct(kinds[name])]
        or [name for name in names if _is_binary(kinds[name])],
        IMAGES,
    )
    if not image or not (_is_binary(kinds[image]) or _is_struct(kinds[image])):
        raise _lacks("images, binary or a struct of bytes and path,", schema, path)
    others = [name for name in names if name != image]
    label = label_key or _one_of(
        [name for name in others if _kind(features, name) == "ClassLabel"]
        or [name for name in others if name in LABELS],
        LABELS,
    )
    if label not in others:
        wanted = label or "which --label-key names"
        raise _lacks(f"labels, {wanted},", schema, path)
    feature = features.get(label)
    classes = feature.get("names") if isinstance(feature, dict) else None
    classes = tuple(map(str, classes or ()))
    require_once(classes, f"{label} of {path}")
    return Schema(image=image, label=label, classes=classes or None)


def _features(schema: pyarrow.Schema, path: Path) -> dict[str, Any]:
    """Return what datasets says of the columns, in the schema or beside the shard; {} for nothing."""
    metadata = (schema.metadata or {}).get(b"huggingface", b"")
    features: object = None
    with suppress(ValueError, LookupError, TypeError):
        features = json.loads(metadata)["info"]["features"]
    features = features or read_json(path.parent / "dataset_info.json").get("features")
    return features if isinstance(features, dict) else {}


def _kind(features: dict[str, Any], name: str) -> object:
    feature = features.get(name)
    return feature.get("_type") if isinstance(feature, dict) else None


def _one_of(names: Sequence[str], preferred: Sequence[str]) -> str:
    """Return the only name, or the one that is preferred; "" where that says nothing."""
    if len(names) == 1:
        return names[0]
    return next((name for name in preferred if name in names), "")


def _is_binary(kind: pyarrow.DataType) -> bool:
    return str(kind) in ("binary", "large_binary")


def _is_struct(kind: pyarrow.DataType) -> bool:
    """Whether a column is of structs with a field `bytes`, which is binary."""
    if not str(kind).startswith("struct<"):
        return False
    place = kind.get_field_index("bytes")
    return place >= 0 and _is_binary(kind.field(place).type)


def labels_of(
    batch: pyarrow.RecordBatch, schema: Schema, path: Path
) -> list[str | None]:
    """Return the label of each row; None where it has none. Raises UserError."""
    column = batch.column(schema.label)
    if str(column.type).startswith("dictionary<"):
        column = column.dictionary_decode()
    kind = str(column.type)
    if kind in STRINGS:
        return [(value or "").strip() or None for value in column.to_pylist()]
    if kind == "bool" or kind.lstrip("u").startswith("int"):
        return [
            None if value is None or value < 0 else str(int(value))
            for value in column.to_pylist()
        ]
    raise UserError(
        f"--data: {path}: labels in {schema.label} are of type {kind[:100]}; they must be integers or "
        "strings"
    )


# --- rows ---------------------------------------------------------------------------------------------------


@contextmanager
def damaged(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Raise what a library says of a file as one UserError that names it; what the storage says stays."""
    try:
        yield
    except errors as error:
        if storage.failed(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"--data: {path} is damaged, cut short, or still being written: {reason[:200]}; copy or write it "
            "again"
        ) from None


@contextmanager
def _opened(
    path: Path,
) -> Iterator[tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch], pyarrow.Buffer]]:
    """Map an Arrow file, a stream or not: its schema, its batches, and all its bytes. Raises UserError."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            "--source arrow needs the package pyarrow: pip install pyarrow"
        ) from None
    with (
        damaged(path, pyarrow.ArrowException, OSError, ValueError),
        pyarrow.memory_map(str(path)) as mapped,
    ):
        buffer = mapped.read_buffer()
        source = pyarrow.BufferReader(buffer)
        content = memoryview(buffer).cast("B")
        if content[: len(FILE)] == FILE:
            reader = pyarrow.ipc.open_file(source)
            numbers = range(reader.num_record_batches)
            yield reader.schema, map(reader.get_batch, numbers), buffer
        elif content[-len(END) :] == END:
            reader = pyarrow.ipc.open_stream(source)
            yield reader.schema, _stream(reader, source), buffer
        else:
            raise ValueError("no end mark of an Arrow stream")


def _stream(
    reader: pyarrow.RecordBatchReader, source: pyarrow.BufferReader
) -> Iterator[pyarrow.RecordBatch]:
    yield from reader
    if source.tell() != source.size():
        raise ValueError(f"it goes on at byte {source.tell():,}, behind its end mark")


def walk(shard: Shard) -> Iterator[Entry]:
    """Yield the image of each row with its label, by its path. Raises UserError and OSError."""
    path = Path(shard.path)
    with _opened(path) as (columns, batches, buffer):
        schema = schema_of(columns, path, shard.label_key)
        # its numbers would mean other classes, or lie elsewhere
        if schema != shard.about:
            shown = printable(f"{schema} and {shard.about}")[:500]
            raise UserError(
                f"--data: {path} has other columns or classes than the first shard: {shown}"
            )
        row = 0
        for batch in batches:
            batch.validate()
            yield from _entries(batch, shard, buffer, schema, row)
            row += batch.num_rows


def _entries(
    batch: pyarrow.RecordBatch,
    shard: Shard,
    buffer: pyarrow.Buffer,
    schema: Schema,
    first: int,
) -> Iterator[Entry]:
    """Yield the images of a batch, whose rows are numbered from `first`."""
    path = Path(shard.path)
    column = batch.column(schema.image)
    binary = _is_binary(column.type)
    content = column if binary else column.field("bytes")
    valid = content.is_valid().to_numpy(zero_copy_only=False)
    if not binary:
        valid &= column.is_valid().to_numpy(zero_copy_only=False)
    begins, sizes = _ranges(content, buffer, path)
    rows = zip(
        valid.tolist(),
        begins.tolist(),
        sizes.tolist(),
        _names(column, binary),
        labels_of(batch, schema, path),
        strict=True,
    )
    for row, (is_there, begin, size, name, label) in enumerate(rows, first):
        if not is_there and name:
            raise UserError(
                f"--data: {path}:row {row} has a path, {printable(name)}, and no bytes: "
                f"{program('pack')} TO --from FOLDER packs the files themselves"
            )
        if not is_there or label is None:
            why = f"no label in the column {schema.label}" if is_there else "no image"
            shard.reject(b"row %d" % row, why)
        else:
            yield Entry(name, begin, size, label, row)


def _ranges(
    content: pyarrow.Array, buffer: pyarrow.Buffer, path: Path
) -> tuple[Array, Array]:
    """Return int64 [n], [n]: the byte of the file at which each value begins, and its size.

    `content`: a column of n binary values, which lies in `buffer`, the file. Raises UserError.
    """
    count = len(content)
    # bytes of `values` at which each value begins, and last where they end
    _, borders, values = content.buffers()
    offsets = np.zeros(count + 1, np.int64)
    if count:
        dtype = np.int64 if str(content.type) == "large_binary" else np.int32
        offsets[:] = np.frombuffer(borders, dtype)[content.offset :][: count + 1]
    length = values.size if values is not None else 0
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > length:
        raise ValueError("offsets that do not ascend")
    begin = values.address - buffer.address if length else 0
    # what was compressed lies in memory of its own, outside of the file
    if length and not 0 < begin <= buffer.size - length:
        raise UserError(
            f"--data: {path} is compressed, so that nothing of it can be read by its place; write it again "
            f"without compression, or {program('pack')} TO --from the files"
        )
    return begin + offsets[:-1], np.diff(offsets)


def _names(column: pyarrow.Array, binary: bool) -> list[bytes]:
    """Return the path of each row; b"" where it has none, or one that is no name."""
    place = -1 if binary else column.type.get_field_index("path")
    if place < 0 or str(column.type.field(place).type) not in STRINGS:
        return [b""] * len(column)
    paths = column.field(place).cast("large_binary").to_pylist()
    return [path if path and b"\0" not in path else b"" for path in paths]


KIND = ShardKind(
    ending=ENDING,
    walk=walk,
    holds="a folder that datasets.save_to_disk wrote, one with train/*.arrow, or one of datasets' cache",
    mapped=True,
    find=find,
    prepare=prepare,
)
