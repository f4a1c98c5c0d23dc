"""scripts.pack: any source to an LMDB or to shards, the same data to a run, whole or not there."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import Source, Split, UserError
from dataset.images import scan
from dataset.open import open_splits
from scripts import _stores, pack
from settings.config import build
from tests.conformance import pictures, scenes, sources
from tests.conformance.sources import LAYOUTS, all_read
from tests.unit.folders import fill
from tests.unit.test_splits import Console

FILES = {
    f"{'ab'[place % 2]}/{name}.jpg": content
    for place, (name, content) in enumerate(scenes.small(7).items())
}
FORMATS = pytest.mark.parametrize(
    "form",
    [
        "tar",
        "folder",
        *(
            pytest.param(
                form,
                marks=pytest.mark.skipif(
                    not sources.here(form), reason=f"without {form}"
                ),
            )
            for form in ("lmdb", "arrow")
        ),
    ],
)


def data_of(tmp_path: Path, source: str = "folder") -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val"):
        LAYOUTS[source].write(data, split, FILES)
    return data


def opened(data: Path, **how: Any) -> dict[str, Split]:
    settings = build(
        {"data": data, "manifest_dir": data.parent / f"cache-{data.name}", **how}
    ).data
    return open_splits(settings, loader="torchvision", console=Console())


def packed(data: Path, form: str, *more: str) -> Path:
    target = data.parent / form
    cache = str(data.parent / "cache-data")
    command = [
        str(target),
        "--from",
        str(data),
        "--format",
        form,
        "--manifest-dir",
        cache,
        *more,
    ]
    assert pack.main(command) == 0
    return target


@FORMATS
@pytest.mark.parametrize("source", ["folder", "list", "tar"])
def test_a_pack_is_the_same_data(
    form: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order, and it opens without a header being read, also where it was copied to."""
    data = data_of(tmp_path, source)
    target = packed(data, form)
    assert sorted(os.listdir(target)) == sorted(
        f"{split}{ending}"
        for split in ("train", "val")
        for ending in (_stores.FORMATS[form].place(""), ".columns")
    )
    elsewhere = shutil.move(
        shutil.copytree(target, tmp_path / "copy", copy_function=shutil.copy),
        tmp_path / "it",
    )
    origin = opened(data)
    scanned = opened(target, rescan=True)
    if form != "folder":
        monkeypatch.setattr(scan, "read_headers", None)
    monkeypatch.setattr("dataset.stores.tar.walk", None)
    splits = opened(Path(elsewhere))
    monkeypatch.setattr(
        "system.processes.results", None
    )  # a loader's worker may start no process to read
    for split, found in splits.items():
        assert found.columns.fingerprint == origin[split].columns.fingerprint
        assert found.columns.fingerprint == scanned[split].columns.fingerprint
        assert found.columns.classes == ("a", "b")
        assert all_read(found.source) == all_read(origin[split].source)


def listed(tmp_path: Path) -> Path:
    """A list in no order, one line of it twice, whose labels are not the folders of its paths."""
    data = tmp_path / "data"
    names = [*sorted(FILES)[::-1], min(FILES)]
    lines = "".join(
        f"{name},{'yes' if place % 2 else 'no'}\n" for place, name in enumerate(names)
    )
    fill(
        data,
        {
            **FILES,
            "train.csv": lines.encode(),
            "val.csv": lines.encode(),
            "classes.txt": b"yes\nno\nx",
        },
    )
    return data


def change(target: Path, entries: dict[bytes, bytes | None]) -> None:
    """Put entries into train.lmdb, or delete them."""
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(target / "train.lmdb"), subdir=False) as store,
        store.begin(write=True) as transaction,
    ):
        for key, value in entries.items():
            transaction.delete(key) if value is None else transaction.put(key, value)


@pytest.mark.skipif(not sources.here("lmdb"), reason="without lmdb")
def test_an_lmdb_has_its_labels_in_itself(tmp_path: Path) -> None:
    """Where it is copied without its columns, or by mdb_copy; what others add is named."""
    data = listed(tmp_path)
    target = packed(data, "lmdb")
    shutil.rmtree(target / "train.columns")
    found = opened(target)["train"].columns
    assert found.fingerprint == opened(data)["train"].columns.fingerprint
    change(target, {b"b/new": next(iter(FILES.values())), b"b/small-001.jpg": None})
    found = opened(target)["train"].columns
    said = (found.folder / "rejected.txt").read_text()
    assert (
        len(found) == 7
        and "train.lmdb:b/new\tthe store's own list has no label" in said
    )
    assert "b/small-001.jpg\tno such key" in said
    assert opened(target, lmdb_label="prefix")["train"].columns.classes == ("a", "b")
    change(target, {b"__labels__": b"12"})
    with pytest.raises(UserError, match="its own list of samples is damaged"):
        opened(target)


@FORMATS
def test_a_line_that_comes_twice(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two samples; what cannot hold them is refused before anything is written."""
    data = listed(tmp_path)
    command = [str(tmp_path / form), "--from", str(data), "--format", form]
    command += ["--manifest-dir", str(tmp_path / "cache-data")]
    if form == "folder":
        assert pack.main(command) == 2
        assert (
            "--format folder takes names that begin with their class"
            in capsys.readouterr().err
        )
        return
    assert pack.main(command) == 0
    found = opened(tmp_path / form)["train"]
    assert found.columns.fingerprint == opened(data)["train"].columns.fingerprint
    assert all_read(found.source) == all_read(opened(data)["train"].source)
    if form == "tar":
        capsys.readouterr()
        assert (
            pack.main([*command, "--max-side", "9"]) == 2
            and "of other data" in capsys.readouterr().err
        )
        command[0] = str(tmp_path / "small")
        assert pack.main([*command, "--max-side", "9"]) == 2
        assert "keeps samples in the order of their names" in capsys.readouterr().err
    if form == "arrow":
        shutil.rmtree(tmp_path / form / "train.columns")
        columns = opened(tmp_path / form)["train"].columns
        assert len(columns) == 8 and columns.classes == ("yes", "no", "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a/x.jpg,a\na/x.jpg,a\n", "each once, and 'a/x.jpg' comes behind 'a/x.jpg'"),
        ("b/x.jpg,b\na/x.jpg,a\n", "'a/x.jpg' comes behind 'b/x.jpg'"),
        (
            "a/x.jpg,a\nc/x.jpg,c\n",
            "has the classes that have an image, sorted by name",
        ),
    ],
    ids=["twice", "order", "classes"],
)
def test_what_folders_cannot_say_is_refused_at_the_start(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    fill(
        data,
        {f"{own}/x.jpg": FILES["a/small-000.jpg"] for own in "abc"}
        | {"classes.txt": b"c\nb\na"},
    )
    for split in ("train", "val"):
        (data / f"{split}.csv").write_text(text)
    if "classes" not in said:
        (data / "classes.txt").unlink()
    command = [str(tmp_path / "to"), "--from", str(data), "--format", "folder"]
    assert pack.main([*command, "--manifest-dir", str(tmp_path / "cache")]) == 2
    assert (
        said in capsys.readouterr().err
        and not (tmp_path / "to" / pack.WORK / "train").exists()
    )


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
def test_a_full_disk_is_one_line_and_what_is_there_goes_on(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_of(tmp_path)
    opened(data)  # so that the scan is written already
    target = tmp_path / form
    command = [str(target), "--from", str(data), "--format", form]
    command += ["--manifest-dir", str(tmp_path / "cache-data")]
    with files_of_at_most(300):
        assert pack.main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert (
        line.startswith(f"pack: {target}")
        and "cannot be written" in line
        and "goes on" in line
    )
    assert "Traceback" not in line and not (target / "train.columns").exists()
    assert packed(data, form) == target
    assert (
        opened(target)["val"].columns.fingerprint
        == opened(data)["val"].columns.fingerprint
    )


def test_a_set_larger_than_memory_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataset.open.memory_bytes", lambda: 1000)
    console = Console()
    settings = build(
        {"data": data_of(tmp_path), "manifest_dir": tmp_path / "cache"}
    ).data
    open_splits(settings, loader="torchvision", console=console)
    assert ["every epoch reads the disk" in line for line in console.said] == [True]


@FORMATS
def test_what_is_interrupted_goes_on(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits, a third that is torn, and no store that opens; then the rest alone is read."""
    data = data_of(tmp_path)
    target = tmp_path / form
    monkeypatch.setattr(pack, "BATCH", 1)
    monkeypatch.setattr(_stores, "FIRST_MAP", 1 << 15)
    monkeypatch.setattr(_stores.Tar, "SHARD", 6000)
    monkeypatch.setattr(_stores.Arrow, "SHARD", 6000)
    replace = os.replace
    commits: list[Path] = []

    def torn(made: Path, place: Path) -> None:
        if place.name == "train.json":
            commits.append(place)
            if len(commits) == 3:
                raise KeyboardInterrupt
        replace(made, place)

    monkeypatch.setattr(os, "replace", torn)
    command = [
        str(target),
        "--from",
        str(data),
        "--format",
        form,
        "--manifest-dir",
        str(tmp_path / "cache-data"),
    ]
    assert pack.main(command) == 130
    with pytest.raises(UserError, match="has no "):
        opened(target)
    read: list[int] = []
    ahead = pack.read_ahead

    def counted(source: Source, samples: range) -> Iterator[bytes]:
        read.append(len(samples))
        return ahead(source, samples)

    monkeypatch.setattr(pack, "read_ahead", counted)
    assert pack.main(command) == 0 and read == [5, 7, 7, 7]
    assert all_read(opened(target)["train"].source) == all_read(
        opened(data)["train"].source
    )
    assert pack.main(command) == 0 and len(read) == 4, "it is there already"


def test_progress_that_is_cut_short_begins_anew(tmp_path: Path) -> None:
    progress = pack.Progress(tmp_path, "train", {"format": "lmdb"})
    progress.commit([b"one"], {"end": 3})
    assert pack.Progress(tmp_path, "train", {"format": "lmdb"}).done == 1
    (tmp_path / "train.json").write_text('{"origin": {"fo')
    assert (
        pack.Progress(tmp_path, "train", {"format": "lmdb"}).done,
        progress.done,
    ) == (0, 1)


@FORMATS
def test_what_is_not_read_back_as_written_is_refused(
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = data_of(tmp_path)
    write = _stores.FORMATS[form].write

    def faulty(writer: Any, batch: list[_stores.Packed]) -> Any:
        return write(
            writer,
            [each._replace(content=each.content[:-9] + bytes(9)) for each in batch],
        )

    monkeypatch.setattr(_stores.FORMATS[form], "write", faulty)
    assert pack.main([str(tmp_path / "to"), "--from", str(data), "--format", form]) == 2
    assert "was not read back as it was written" in capsys.readouterr().err
    assert os.listdir(tmp_path / "to") == [pack.WORK]


def test_columns_of_another_store_are_not_taken(tmp_path: Path) -> None:
    target = packed(data_of(tmp_path), "tar")
    sources.write_tar(
        target / "train" / "000001.tar",
        {"a/new.jpg": FILES["a/small-000.jpg"], "a/new.cls": b"0"},
    )
    splits = opened(target)
    assert (len(splits["train"].columns), len(splits["val"].columns)) == (8, 7)


@pytest.mark.parametrize(
    ("files", "form", "said"),
    [
        (
            {"a/x.1.jpg": b"", "a/x.2.jpg": b""},
            "tar",
            "'a/x.1.jpg' and 'a/x.2.jpg' would be one sample",
        ),
        ({"a/x": b""}, "tar", "'a/x' is not such; take --format lmdb"),
        ({" a/x.jpg": b""}, "tar", "the class ' a' begins or ends with a blank"),
        (
            {"a\nb/x.jpg": b""},
            "tar",
            "the class 'a\\nb' begins or ends with a blank, or has an end of a line",
        ),
        (
            {f"a/{'x' * 250}/{'y' * 250}/z.jpg" + "z" * 20: b""},
            "lmdb",
            "takes names of 511 bytes at most",
        ),
    ],
    ids=["one-key", "no-ending", "blank", "line-end", "long"],
)
def test_names_that_a_format_cannot_have(
    files: dict[str, bytes],
    form: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = FILES["a/small-000.jpg"]
    for split in ("train", "val"):
        fill(tmp_path / "data" / split, dict.fromkeys(files, content))
    command = [str(tmp_path / "to"), "--from", str(tmp_path / "data"), "--format", form]
    assert pack.main([*command, "--manifest-dir", str(tmp_path / "cache")]) == 2
    assert said in capsys.readouterr().err


@FORMATS
def test_smaller_images(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second pack has nothing to do, and one of another size is other data."""
    data = data_of(tmp_path)
    wide = pictures.jpeg(pictures.photograph(1, 60, 90))
    fill(data / "train" / "a", {"wide.jpg": wide, "wide2.jpg": wide})
    more = ("--max-side", "30", "--share", "0.5")
    target = packed(data, form, *more)
    said = capsys.readouterr()
    assert (
        "of 9 images encoded anew: " in said.out + said.err
        and "PSNR" in said.out + said.err
    )
    found = opened(target)["train"]
    kinds = {bytes(found.source.read(sample)[:2]) for sample in range(9)}
    assert kinds == {b"\xff\xd8", b"P6"}
    assert max(found.columns.width.max(), found.columns.height.max()) == 30
    origin = opened(data)["train"].columns
    assert found.columns.path_bytes.tobytes() == origin.path_bytes.tobytes()
    assert found.columns.label.tolist() == origin.label.tolist()
    packed(data, form, *more)
    command = [str(target), "--from", str(data), "--format", form, "--max-side", "20"]
    assert pack.main(command) == 2 and "of other data" in capsys.readouterr().err


def test_an_encoding_that_is_wrong_is_told_before_a_scan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pack.main(["to", "--from", "nowhere", "--max-side", "0"]) == 2
    assert capsys.readouterr().err.startswith("pack: --max-side got 0")


def test_the_classes_of_a_tar_are_bytes_as_folders_have_them(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    _stores.Tar(tmp_path, "train", {}).finish([], np.zeros(0), ["caf\udce9"])
    assert (tmp_path / "train" / "classes.txt").read_bytes() == b"caf\xe9\n"
