"""scripts.pack: any source to an LMDB or to shards, the same data to a run, whole or not there."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Split, UserError
from saturate.dataset.open import open_split, open_splits
from saturate.run import _stores, pack
from saturate.settings.config import build
from tests.conformance import scenes, sources
from tests.conformance.sources import LAYOUTS, all_read
from tests.unit.folders import fill
from tests.unit.test_splits import Console

FILES = scenes.of_two_classes(7)
FORMATS = pytest.mark.parametrize("form", [*filter(sources.here, _stores.FORMATS)])


def data_of(tmp_path: Path, source: str = "folder") -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val"):
        LAYOUTS[source].write(data, split, FILES)
    return data


def opened(data: Path, **how: Any) -> dict[str, Split]:
    cache = data.parent / f"cache-{data.name}"
    settings = build({"data": data, "manifest_dir": cache, **how}).data
    return open_splits(settings, loader="torchvision", console=Console())


def command(data: Path, form: str) -> list[str]:
    cache = str(data.parent / "cache-data")
    target = str(data.parent / form)
    return [target, "--from", str(data), "--format", form, "--manifest-dir", cache]


def packed(data: Path, form: str) -> Path:
    assert pack.main(command(data, form)) == 0
    return data.parent / form


def stored(data: Path, split: str, form: str) -> list[tuple[str, str, bytes]]:
    """Name, class and bytes of each image, in the order of the store, as the packages of the format read it."""
    folder = data / split
    if form == "folder":
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [
            (str(path.relative_to(folder)), path.parent.name, path.read_bytes())
            for path in files
        ]
    if form == "tar":
        classes = (folder / "classes.txt").read_text().splitlines()
        members: dict[str, bytes] = {}
        for shard in sorted(folder.glob("*.tar")):
            with tarfile.open(shard) as file:
                for member in file:
                    found: Any = file.extractfile(member)
                    members[member.name] = found.read()
        return [
            (name, classes[int(members[f"{name.rpartition('.')[0]}.cls"])], content)
            for name, content in members.items()
            if not name.endswith(".cls")
        ]
    if form == "arrow":
        arrow = importlib.import_module("pyarrow")
        content = (folder / "data-00000.arrow").read_bytes()
        rows = arrow.ipc.open_stream(content).read_all().to_pylist()
        about = json.loads((folder / "dataset_info.json").read_text())
        classes = about["features"]["label"]["names"]
        return [
            (row["image"]["path"], classes[row["label"]], row["image"]["bytes"])
            for row in rows
        ]
    lmdb = importlib.import_module("lmdb")
    with (
        lmdb.open(f"{folder}.lmdb", subdir=False, readonly=True, lock=False) as store,
        store.begin() as transaction,
    ):
        held = [
            transaction.get(f"__{name}__".encode())
            for name in ("classes", "names", "ends", "labels")
        ]
        ends = np.frombuffer(held[2], "<i8").tolist()
        keys = [held[1][begin:end] for begin, end in pairwise(ends)]
        classes = [json.loads(held[0])[n] for n in np.frombuffer(held[3], "<i4")]
        return [
            (key.decode(), name, transaction.get(key))
            for key, name in zip(keys, classes, strict=True)
        ]


def trained(split: Split) -> list[tuple[str, str, bytes]]:
    """Name, class and bytes of each sample, in its order, as training gets it."""
    columns = split.columns
    return [
        (
            os.fsdecode(columns.entry(i)),
            columns.classes[columns.label[i]],
            split.source.read(i),
        )
        for i in range(len(columns))
    ]


WANTED = sorted((name, name[0], content) for name, content in FILES.items())


@pytest.mark.parametrize(
    ("form", "source"),
    [
        *((form, "folder") for form in _stores.FORMATS if sources.here(form)),
        ("folder", "list"),
        ("folder", "tar"),
    ],
)
def test_a_pack_is_the_same_data(form: str, source: str, tmp_path: Path) -> None:
    """In its order, also where it was copied to, and as other programs read it."""
    data = data_of(tmp_path, source)
    target = packed(data, form)
    copy = Path(shutil.copytree(target, tmp_path / "copy", copy_function=shutil.copy))
    assert not [*target.glob("*.columns")]
    origin = opened(data)
    rows = {split: stored(copy, split, form) for split in origin}
    for split, found in opened(copy).items():
        assert found.columns.fingerprint == origin[split].columns.fingerprint
        assert found.columns.classes == ("a", "b")
        assert trained(found) == rows[split] == WANTED


def listed(tmp_path: Path) -> Path:
    """A list in no order, one line of it twice, whose labels are not the folders of its paths."""
    data = tmp_path / "data"
    names = [*sorted(FILES)[::-1], min(FILES)]
    lines = "".join(
        f"{name},{'yes' if place % 2 else 'no'}\n" for place, name in enumerate(names)
    ).encode()
    lists = {"train.csv": lines, "val.csv": lines, "classes.txt": b"yes\nno\nx"}
    return fill(data, {**FILES, **lists})


def test_a_share_goes_to_val(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", FILES)
    assert pack.main([*command(data, "tar"), "--val-share", "0.6"]) == 0

    def names_of(split: Split) -> list[tuple[str, int]]:
        names = [os.fsdecode(split.columns.entry(i)) for i in range(len(split.columns))]
        return sorted(zip(names, split.columns.label.tolist(), strict=True))

    wanted = opened(data, val_share=0.6)
    found = opened(data.parent / "tar")
    for name, split in wanted.items():
        assert sorted(all_read(found[name].source)) == sorted(all_read(split.source))
        assert names_of(found[name]) == names_of(split)


@FORMATS
def test_a_line_that_comes_twice(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two samples, with labels and the order of the list; what cannot hold them is refused before it is written."""
    data = listed(tmp_path)
    if form in ("folder", "tar"):
        assert pack.main(command(data, form)) == 2
        wanted = "names begin with" if form == "folder" else "names end as images"
        assert wanted in capsys.readouterr().err
        return
    target = packed(data, form)
    found, origin = (opened(each)["train"] for each in (target, data))
    assert found.columns.fingerprint == origin.columns.fingerprint
    assert found.columns.classes == ("yes", "no", "x")
    rows = stored(target, "train", form)
    assert trained(found) == rows
    assert [(name, label) for name, label, _ in rows] == [
        tuple(line.split(",")) for line in (data / "train.csv").read_text().split()
    ]


def test_the_order_of_a_list_is_kept_in_tars(tmp_path: Path) -> None:
    """Beside the shards; where it is taken away the order is that of the names."""
    data = listed(tmp_path)
    for split in ("train", "val"):
        lines = (data / f"{split}.csv").read_text().splitlines()
        (data / f"{split}.csv").write_text("\n".join(lines[:-1]))
    target = packed(data, "tar")
    rows = stored(target, "train", "tar")
    found = opened(target)["train"]
    assert trained(found) == rows and [name for name, *_ in rows] == sorted(FILES)[::-1]
    assert found.columns.fingerprint == opened(data)["train"].columns.fingerprint
    (target / "train" / "order.txt").unlink()
    assert trained(opened(target)["train"]) == sorted(rows)


def test_an_lmdb_has_its_labels_in_itself(tmp_path: Path) -> None:
    """What others add, or take away, is named."""
    lmdb = pytest.importorskip("lmdb")
    target = packed(listed(tmp_path), "lmdb")

    def change(entries: dict[bytes, bytes | None]) -> None:
        with (
            lmdb.open(str(target / "train.lmdb"), subdir=False) as store,
            store.begin(write=True) as transaction,
        ):
            for key, value in entries.items():
                transaction.delete(key)
                if value is not None:
                    transaction.put(key, value)

    change({b"b/new": min(FILES.values()), b"b/small-001.jpg": None})
    columns = opened(target)["train"].columns
    said = (columns.folder / "rejected.txt").read_text()
    assert len(columns) == 7 and "b/small-001.jpg\tno such key" in said
    assert "train.lmdb:b/new\tthe store's own list has no label" in said
    assert opened(target, lmdb_label="prefix")["train"].columns.classes == ("a", "b")
    change({b"__labels__": b"12"})
    with pytest.raises(UserError, match="its own list of samples is damaged"):
        opened(target)


LONG = f"a/{'x' * 250}/{'y' * 250}/z.jpg" + "z" * 20


@pytest.mark.parametrize(
    ("names", "classes", "form", "said"),
    [
        (["a/x.jpg", "a/x.jpg"], "", "folder", "'a/x.jpg': names begin"),
        (["a/x.jpg", "c/x.jpg"], "c\nb\na", "folder", "classes that have an image"),
        (["a/x.1.jpg", "a/x.2.jpg"], "", "tar", "'a/x.2.jpg': names end"),
        ([LONG], "", "lmdb", "zzz': keys have 511 bytes"),
    ],
    ids=["twice", "classes", "key", "long"],
)
def test_what_a_form_cannot_hold_is_refused_at_the_start(
    names: list[str],
    classes: str,
    form: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data"
    content = FILES["a/small-000.jpg"]
    for split in ("train", "val"):
        if form == "folder":
            lines = "".join(f"{name},{name[0]}\n" for name in names)
            fill(
                data, {f"{split}.csv": lines.encode(), **dict.fromkeys(names, content)}
            )
        else:
            fill(data / split, dict.fromkeys(names, content))
    if classes:
        (data / "classes.txt").write_text(classes)
    assert pack.main(command(data, form)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / form).exists()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@FORMATS
def test_what_is_interrupted_leaves_nothing(
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a full disk, or in the second split."""
    data = data_of(tmp_path)
    opened(data)  # so that the scan is written already
    before = sorted(os.listdir(tmp_path))
    with files_of_at_most(300):
        assert pack.main(command(data, form)) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"pack: {tmp_path}" in line and "start again" in line
    monkeypatch.setattr(pack, "BATCH", 1)
    monkeypatch.setattr(_stores, "FIRST_MAP", 1 << 15)
    monkeypatch.setattr(_stores.Tar, "SHARD", 6000)
    write = _stores.FORMATS[form].write
    batches: list[Any] = []

    def torn(writer: Any, batch: list[_stores.Packed]) -> Any:
        batches.append(batch)
        if len(batches) == 10:
            raise KeyboardInterrupt
        return write(writer, batch)

    monkeypatch.setattr(_stores.FORMATS[form], "write", torn)
    assert pack.main(command(data, form)) == 130
    assert sorted(os.listdir(tmp_path)) == before
    target = packed(data, form)
    if form == "tar":
        assert len([*(target / "val").glob("*.tar")]) > 1
    for split, found in opened(target).items():
        assert all_read(found.source) == all_read(opened(data)[split].source)


@pytest.mark.parametrize("form", ["tar", "folder"])
def test_what_is_not_read_back_as_written_is_refused(
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = data_of(tmp_path)
    write = _stores.FORMATS[form].write

    def faulty(writer: Any, batch: list[_stores.Packed]) -> Any:
        changed = [
            each._replace(content=each.content[:-9] + bytes(9)) for each in batch
        ]
        return write(writer, changed)

    monkeypatch.setattr(_stores.FORMATS[form], "write", faulty)
    assert pack.main(command(data, form)) == 2
    assert "was not read back as it was written" in capsys.readouterr().err
    assert not (tmp_path / form).exists()


def in_place(path: Path, old: bytes, new: bytes) -> None:
    """Write over some bytes of a file, whose size and date stay."""
    before = path.stat()
    content = path.read_bytes()
    assert old in content and len(old) == len(new)
    with open(path, "r+b") as file:
        file.write(content.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def mend_tar(target: Path) -> None:
    """Change the class of one image in its .cls."""
    with tarfile.open(target / "train" / "000000.tar") as tar:
        place = tar.getmember("b/small-005.cls").offset_data
    before = (target / "train" / "000000.tar").stat()
    with open(target / "train" / "000000.tar", "r+b") as file:
        file.seek(place)
        file.write(b"0")
    os.utime(
        target / "train" / "000000.tar", ns=(before.st_atime_ns, before.st_mtime_ns)
    )


def mend_arrow(target: Path) -> None:
    """Write the shard again with other labels."""
    arrow = importlib.import_module("pyarrow")
    path = target / "train" / "data-00000.arrow"
    before = path.stat()
    table = arrow.ipc.open_stream(path.read_bytes()).read_all()
    table = table.set_column(1, "label", arrow.array([1] * len(table), arrow.int64()))
    with open(path, "r+b") as file, arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rename_class(target: Path) -> None:
    in_place(target / "train" / "classes.txt", b"a\nb", b"c\nb")


def rename_feature(target: Path) -> None:
    in_place(target / "train" / "dataset_info.json", b'"a"', b'"c"')


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tar": ("tar", mend_tar),
    "arrow": ("arrow", mend_arrow),
    "lmdb in place": (
        "lmdb",
        lambda target: in_place(
            target / "train.lmdb",
            np.array([0, 0, 0, 0, 1, 1, 1], "<i4").tobytes(),
            np.array([1, 0, 1, 0, 1, 0, 1], "<i4").tobytes(),
        ),
    ),
    "classes.txt": ("tar", rename_class),
    "dataset_info.json": ("arrow", rename_feature),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_mended_in_a_store_is_what_training_gets(
    change: str, tmp_path: Path
) -> None:
    """Where it was opened before, and where it was not; its size and its date are as they were."""
    form, apply = CHANGES[change]
    if not sources.here(form):
        pytest.skip(f"no package for {form}")
    target = packed(data_of(tmp_path), form)

    def found(data: Path) -> list[tuple[str, str, bytes]]:
        return trained(open_split(data / "train", cache=tmp_path / "cache"))

    before = found(target)
    assert before == stored(target, "train", form)
    apply(target)
    copy = Path(shutil.copytree(target, tmp_path / "copy"))
    for place in (target, copy):
        assert found(place) == stored(place, "train", form) != before


@FORMATS
@pytest.mark.parametrize("fault", ["label", "name", "last"])
def test_a_store_with_other_names_or_labels_is_refused(
    form: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The store is read, and not what the writer has in mind."""
    data = data_of(tmp_path)
    write = _stores.FORMATS[form].write
    samples_of = _stores.samples_of
    if fault == "label":
        # an LMDB has them from here, and not from `write`
        monkeypatch.setattr(
            _stores, "samples_of", lambda n, labels, c: samples_of(n, labels[::-1], c)
        )

    def faulty(writer: Any, batch: list[_stores.Packed]) -> Any:
        first = batch[0]
        if fault == "label":
            other = first.name.replace(b"a/", b"b/")
            name = other if form == "folder" else first.name
            batch = [first._replace(name=name, label=1 - first.label), *batch[1:]]
        elif fault == "name":
            batch = [first._replace(name=first.name[:-5] + b"7.jpg"), *batch[1:]]
        else:
            batch = batch[:-1]
        return write(writer, batch)

    monkeypatch.setattr(_stores.FORMATS[form], "write", faulty)
    assert pack.main(command(data, form)) == 2
    said = capsys.readouterr().err
    assert "names and labels that were written" in said
    assert not (tmp_path / form).exists()


OUTSIDE = {
    "absolute": ("", "{home}/planted.jpg"),
    "above in the middle": ("a", "a/../../../home/planted.jpg"),
    "hidden below": ("a", "a/.ssh/planted.jpg"),
    "backslashes": ("a", "a/..\\..\\planted.jpg"),
    "a drive": ("C:", "C:/planted.jpg"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_name_never_leads_out_of_a_folder(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger's set of Arrow files names its images so."""
    pytest.importorskip("pyarrow")
    label, name = OUTSIDE[kind]
    home = tmp_path / "home"
    home.mkdir()
    content = FILES["a/small-000.jpg"]
    for split in ("train", "val"):
        sources.write_arrow(
            tmp_path / "data" / split / "data-00000-of-00001.arrow",
            [(content, name.format(home=home), 0)],
            (label,),
        )
    before = sorted(tmp_path.rglob("*"))
    assert pack.main(command(tmp_path / "data", "folder")) == 2
    assert "or leads elsewhere" in capsys.readouterr().err
    cached = tmp_path / "cache-data"
    left = [path for path in tmp_path.rglob("*") if not path.is_relative_to(cached)]
    assert sorted(left) == before


def test_a_store_that_others_add_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_of(tmp_path)
    target = packed(data, "tar")
    with pytest.raises(UserError, match="more than --max-pixels 1"):
        opened(target, max_pixels=1)
    content = FILES["a/small-000.jpg"]
    new = {"a/new.jpg": content, "a/new.cls": b"0"}
    sources.write_tar(target / "train" / "000001.tar", new)
    splits = opened(target)
    assert (len(splits["train"].columns), len(splits["val"].columns)) == (8, 7)
    assert pack.main(command(data, "tar")) == 2
    assert "is there and not empty" in capsys.readouterr().err
    assert pack.main([str(data / "to"), "--from", str(data)]) == 2
    assert "which is never written to" in capsys.readouterr().err
