"""Assertions that every source must pass, how its data is laid out, and sources with one fault each."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from saturate.contracts import FileSource, Source, Split, UserError
from saturate.dataset.stores import SourceModule, folder, lmdb
from saturate.dataset.stores import list as image_list
from saturate.dataset.stores.entries import EntrySource
from tests.unit.folders import fill

DELAY_S = 0.05
TYPED: tuple[SourceModule, ...] = (folder, image_list, lmdb)
"""What mypy holds against the protocol."""
Files = Mapping[str, bytes]
"""class/name -> bytes."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    write: Callable[[Path, str, Files], object]
    lose: Callable[[Any, int], object]
    whole: bool = False  # it is one file, and a change of it is one of all samples


def write_list(data: Path, split: str, files: Files) -> None:
    """Write the files into folders that no source looks for, and a list of them as CSV writers do."""
    fill(data, dict(files))
    with open(data / f"{split}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [name, name.partition("/")[0]] for name in sorted(files)
        )


def write_lmdb(data: Path, split: str, files: Mapping[str, bytes]) -> Path:
    """Write a store with the files under their names, and return its path."""
    module = import_module("lmdb")
    data.mkdir(exist_ok=True)
    path = data / f"{split}.lmdb"
    with (
        module.open(str(path), map_size=1 << 30) as store,
        store.begin(write=True) as transaction,
    ):
        for name, content in files.items():
            transaction.put(os.fsencode(name), content)
    return path


def lose_value(source: Any, sample: int) -> None:
    """Delete a value, by another process: this one may have the store open."""
    code = (
        "import lmdb, os, sys\nwith lmdb.open(sys.argv[1]).begin(write=True) as store:"
        "\n    store.delete(os.fsencode(sys.argv[2]))"
    )
    key = os.fsdecode(source.columns.entry(sample))
    command = [sys.executable, "-c", code, str(source.store.path), key]
    subprocess.run(command, check=True)


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write a tar of these members, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def write_shards(data: Path, split: str, files: Files) -> None:
    """Write two shards: the third sample, which may be taken away, has one of its own."""
    names = sorted(files)
    for shard, own in enumerate((names[:2] + names[3:], names[2:3])):
        members = {name: files[name] for name in own}
        for name in own:
            label = name.partition("/")[0].encode()
            members[f"{name.rpartition('.')[0]}.cls"] = label
        write_tar(data / split / f"{shard}.tar", members)


Row = tuple[bytes | None, str | None, int | None]
"""Bytes, path, label."""


def write_arrow(
    path: Path, rows: list[Row], classes: tuple[str, ...] = (), *, stream: bool = True
) -> Path:
    """Write what datasets writes: an image column of structs, a ClassLabel, its names in the metadata."""
    arrow = import_module("pyarrow")
    path.parent.mkdir(parents=True, exist_ok=True)
    struct = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    features = {
        "image": {"_type": "Image"},
        "label": {"names": [*classes], "_type": "ClassLabel"},
    }
    about = {
        "huggingface": json.dumps({"info": {"features": features if classes else {}}})
    }
    schema = arrow.schema([("image", struct), ("label", arrow.int64())], metadata=about)
    with (arrow.ipc.new_stream if stream else arrow.ipc.new_file)(
        str(path), schema
    ) as file:
        for first in range(0, len(rows), 2):
            images = [
                {"bytes": content, "path": name}
                for content, name, _ in rows[first : first + 2]
            ]
            labels = [label for *_, label in rows[first : first + 2]]
            file.write_batch(
                arrow.record_batch([arrow.array(images, struct), labels], schema=schema)
            )
    return path


def write_arrows(data: Path, split: str, files: Files) -> None:
    """Write two shards, one of either format, in no order: the third sample has one of its own."""
    names = sorted(files)
    classes = tuple(sorted({name.partition("/")[0] for name in names}))
    folder = data / {"val": "validation"}.get(split, split)
    for shard, own in enumerate((names[3:] + names[:2], names[2:3])):
        rows: list[Row] = [
            (files[name], name, classes.index(name.partition("/")[0])) for name in own
        ]
        write_arrow(
            folder / f"data-0000{shard}-of-00002.arrow", rows, classes, stream=not shard
        )


def lose_file(source: Any, sample: int) -> None:
    os.unlink(source.path(sample))


def lose_shard(source: Any, sample: int) -> None:
    """Delete the shard that a sample is in."""
    os.unlink(source.shards.path(int(source.columns.shard[sample])))


MAY_LACK = {"lmdb": "lmdb", "arrow": "pyarrow"}
"""--source -> the package that it needs, which a machine may do without."""


def here(kind: str) -> bool:
    """Whether a source can be used on this machine."""
    return kind not in MAY_LACK or find_spec(MAY_LACK[kind]) is not None


def required(kind: str) -> str:
    """Return the name of a source; skip the test where this machine lacks its package."""
    if kind in MAY_LACK:
        pytest.importorskip(MAY_LACK[kind])
    return kind


LAYOUTS = {
    "folder": Layout(
        write=lambda data, split, files: fill(data / split, dict(files)),
        lose=lose_file,
    ),
    "list": Layout(write=write_list, lose=lose_file),
    "lmdb": Layout(write=write_lmdb, lose=lose_value, whole=True),
    "tar": Layout(write=write_shards, lose=lose_shard),
    "arrow": Layout(write=write_arrows, lose=lose_shard),
}
"""--source -> how its data is written; a source of the table needs a line here."""


def names_tell_samples_apart(split: Split, files: Files) -> None:
    names = [split.source.name(sample) for sample in range(len(files))]
    assert len(set(names)) == len(files)
    assert all(
        isinstance(name, str) and name and name.isprintable() for name in names
    ), "printable, and so on one line"


def bytes_are_those_written(split: Split, files: Files) -> None:
    columns, source = split.columns, split.source
    assert len(source) == len(columns) == len(files)
    read = Counter(
        (columns.classes[columns.label[i]], source.read(i)) for i in range(len(source))
    )
    assert read == Counter(
        (name.partition("/")[0], content) for name, content in files.items()
    )


def ranges_end_with_their_entry(split: Split, files: Files) -> None:
    """What asks for more than an entry has, as a scan of headers does, sees nothing of the entry behind it."""
    if not isinstance(split.source, EntrySource):
        return
    for sample in range(len(split.columns)):
        content = files[os.fsdecode(split.columns.entry(sample))]
        with split.source.open_entry(sample) as (size, read_at):
            assert size == len(content)
            for begin in (0, 1, size - 1, size, size + 7):
                for length in (0, 1, size, 2 * size):
                    wanted = content[begin : begin + length]
                    assert read_at(begin, length) == wanted


def parts_are_of_the_whole(split: Split, files: Files) -> None:
    """A sample is opened to read ranges of it, as of the bytes that were written."""
    for sample in range(len(split.columns)):
        content = files[os.fsdecode(split.columns.entry(sample))]
        with split.source.opened(sample) as (size, read_at):
            assert size == len(content)
            assert read_at(3, 40) == content[3:43] and read_at(0, size) == content


def names_ascend(split: Split, files: Files) -> None:
    """Samples are numbered by the bytes of their names, so that the order of an epoch is any source's."""
    names = [split.columns.entry(sample) for sample in range(len(files))]
    assert names == sorted(names)


def columns_and_bytes_agree(split: Split, files: Files) -> None:
    """Size and shape in the columns are of the bytes that the source reads."""
    for sample in range(len(files)):
        content = split.source.read(sample)
        with Image.open(io.BytesIO(content)) as image:
            found = (
                split.columns.size[sample],
                split.columns.height[sample],
                split.columns.width[sample],
            )
            assert found == (len(content), image.height, image.width)


def another_size_is_refused(split: Split, files: Files) -> None:
    size = int(split.columns.size[1])
    split.source.check(1, size)
    for other in (0, size - 1, size + 1):
        refused(partial(split.source.check, 1, other), split.source.name(1))


def refused(call: Callable[[], object], name: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    said = str(caught.value)
    assert name in said and "\n" not in said


def a_copy_opens_nothing(split: Split, files: Files, data: Path) -> None:
    """Before they read, neither the source nor its copy has a file of the data open or mapped."""
    nothing_is_open(data)
    copy: Source = pickle.loads(pickle.dumps(split.source))
    nothing_is_open(data)
    assert (
        len(copy) == len(files)
        and copy.files == split.source.files
        and copy.read_delay_s == split.source.read_delay_s
    )
    assert all_read(copy) == all_read(split.source)


def nothing_is_open(data: Path) -> None:
    links = [*filter(os.path.lexists, Path("/proc/self/fd").iterdir())]
    held = [*map(os.readlink, links), Path("/proc/self/maps").read_text()]
    assert not [path for path in held if f"{data.resolve()}/" in path]


def processes_and_threads_read_alike(split: Split, files: Files) -> None:
    """After a fork behind a first read, and many threads at once, each over all samples."""
    expected = all_read(split.source)
    work = partial(all_read, split.source)
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda _: work(), range(8))] == [expected] * 8
    _taken[:] = [split.source]  # inherited by the fork, not pickled
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as forked:
        assert [*forked.map(_read_taken, range(4), timeout=60)] == [expected] * 4


_taken: list[Source] = []


def _read_taken(_: int) -> list[bytes]:
    return all_read(_taken[0])


def all_read(source: Source) -> list[bytes]:
    return [source.read(sample) for sample in range(len(source))]


def what_is_gone_is_named(split: Split, files: Files, layout: Layout) -> None:
    others = all_read(split.source)
    layout.lose(split.source, 2)
    refused(partial(split.source.read, 2), split.source.name(2))
    if layout.whole:
        refused(partial(split.source.read, 1), split.source.name(1))
        return
    assert [
        split.source.read(sample) for sample in range(len(files)) if sample != 2
    ] == others[:2] + others[3:]


def samples_are_files_where_it_says_so(split: Split, files: Files) -> None:
    if not split.source.files:
        assert not hasattr(split.source, "path")
        return
    source = cast(FileSource, split.source)
    ids = np.arange(len(files))[::-1]
    for sample, row in zip(ids.tolist(), source.paths(ids), strict=True):
        path = bytes(row).rstrip(b"\0")
        assert path == source.path(sample) and os.path.isabs(path)
        assert Path(os.fsdecode(path)).read_bytes() == source.read(sample)


def reads_take_as_long_as_asked(open_: Callable[..., Split]) -> None:
    source = open_(read_delay_s=DELAY_S).source
    began = time.perf_counter()
    source.read(0)
    source.read(1)
    assert source.read_delay_s == DELAY_S and time.perf_counter() - began >= 2 * DELAY_S


def the_fingerprint_is_of_the_data(
    open_: Callable[..., Split], other: Callable[..., Split]
) -> None:
    """Data that is opened, or scanned, again has the same fingerprint; other bytes have another one."""
    found = open_().columns.fingerprint
    assert (
        open_().columns.fingerprint
        == open_(rescan=True).columns.fingerprint
        == found
        != other().columns.fingerprint
    )
