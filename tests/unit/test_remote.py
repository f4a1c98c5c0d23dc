"""Data behind URLs: read by ranges, tried again, kept on a disk; and credentials that are in no message."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from contracts import Split, UserError
from dataset.open import are_files, open_splits
from dataset.stores import bucket, remote
from dataset.stores.disk_cache import Kept
from dataset.stores.mirror import mirrored
from loaders._read_retry import read
from scripts import pack
from settings.config import build
from tests.conformance import scenes
from tests.conformance.sources import all_read, write_shards
from tests.unit.folders import fill, refused
from tests.unit.ranges import Server, serving
from tests.unit.test_splits import Console

pytest.importorskip("aiohttp")
fsspec = pytest.importorskip("fsspec")
FILES = {
    f"{'ab'[place % 2]}/{name}.jpg": content
    for place, (name, content) in enumerate(scenes.small(8).items())
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSES_S", (0.01, 0.02, 0.04))
    bucket._stands_for.cache_clear()
    bucket.heads_of.cache_clear()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as found:
        yield found


def opened(
    data: object,
    tmp_path: Path,
    console: Any = None,
    read_threads: int | None = None,
    **how: Any,
) -> dict[str, Split]:
    bucket._stands_for.cache_clear()
    bucket.heads_of.cache_clear()
    settings = build({"data": data, "manifest_dir": tmp_path / "cache", **how}).data
    console = console or Console()
    return open_splits(
        settings, loader="torchvision", console=console, read_threads=read_threads
    )


def shards(root: Path) -> None:
    for split in ("train", "val"):
        write_shards(root, split, FILES)


def names(server: Server, folder: Path, query: str = "") -> Path:
    """A local folder whose shards.txt name the shards of the server."""
    for split in ("train", "val"):
        lines = [f"{server.url}/{split}/{shard}.tar{query}\n" for shard in (0, 1)]
        fill(folder, {f"{split}/shards.txt": "".join(lines).encode()})
    return folder


def test_in_a_bucket_a_query_is_a_part_of_the_key() -> None:
    assert remote.plain("s3://pets/a?#b 0.tar") == "s3://pets/a?#b 0.tar"
    assert remote.plain("https://host/0.tar?X-Amz=1") == "https://host/0.tar"


FAULTS = ("500", "503", "reset", "cut", "429")


def test_no_sample_is_lost_doubled_or_changed(server: Server, tmp_path: Path) -> None:
    """By a server that fails in every way, from the first head to the last sample; and the scan is kept."""
    server.fails_each = 3
    server.how = FAULTS
    shards(server.root)
    data = server.url
    split = opened(data, tmp_path)["train"]
    assert split.columns.rejected == 0 and not split.source.files
    assert sorted(all_read(split.source)) == sorted(FILES.values())
    server.fails_each = 0
    before = server.asked.total()
    console = Console()
    assert (
        opened(data, tmp_path, console)["train"].columns.folder == split.columns.folder
    )
    assert server.asked.total() == before, "nothing is read anew"
    source: Any = opened(data, tmp_path, read_threads=3)["train"].source
    assert source.reads_at_once == 3 and not source.alone_while_fast
    settings = build({"data": data, "manifest_dir": tmp_path / "cache"}).data
    assert not are_files(settings, "images")


def test_a_server_that_lists_nothing_is_asked_by_name(
    server: Server, tmp_path: Path
) -> None:
    shards(server.root)
    server.lists = False
    assert "nothing is there that can be read" in refused(
        lambda: opened(server.url, tmp_path)
    )
    (server.root / "train" / "1.tar").rename(server.root / "train" / "my shard.tar")
    names = b"\xef\xbb\xbf# made by me\r\n0.tar\r\n\r\n my shard.tar\r\n"
    fill(server.root, {"train/shards.txt": names, "val/shards.txt": b"0.tar\n1.tar"})
    fill(server.root, {"train/classes.txt": b"b\na\n"})
    splits = opened(server.url, tmp_path)
    assert [len(splits[split].columns) for split in ("train", "val")] == [8, 8]
    classes = splits["val"].columns.classes
    assert classes == ("b", "a"), "train/classes.txt is asked for too"


def test_a_shard_that_changes_is_walked_again(server: Server, tmp_path: Path) -> None:
    """Its ETag is another one: the next start walks it; who reads under the old index is told."""
    shards(server.root)
    before = opened(server.url, tmp_path)["train"]
    assert opened(server.url, tmp_path)["train"].columns.folder == before.columns.folder
    server.etags["train/1.tar"] = '"another"'
    said = refused(lambda: all_read(before.source))
    assert "/train/1.tar:" in said and "it has changed since it was scanned" in said
    assert opened(server.url, tmp_path)["train"].columns.folder != before.columns.folder


def test_a_packed_set_opens_without_a_walk(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("train", "val"):
        fill(tmp_path / "origin" / place, FILES)
    assert (
        pack.main(
            [
                str(server.root / "set"),
                "--from",
                str(tmp_path / "origin"),
                "--format",
                "tar",
            ]
        )
        == 0
    )
    monkeypatch.setattr("dataset.stores.tar.walk", None)
    monkeypatch.setattr("dataset.images.scan.read_headers", None)
    split = opened(f"{server.url}/set", tmp_path)["train"]
    assert sorted(all_read(split.source)) == sorted(FILES.values())


def test_a_signature_is_in_no_message(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shards(server.root)
    data = names(server, tmp_path / "own", "?X-Amz-Signature=secret")
    console = Console()
    split = opened(data, tmp_path, console)["train"]
    assert any(path.endswith("secret") for path in server.paths)
    server.forbids = True
    remote._heads.clear()
    said = [refused(lambda: read(split.source, 0)), split.source.name(0)]
    said += [*console.said, refused(lambda: opened(data, tmp_path, rescan=True))]
    said += capfd.readouterr()
    kept = filter(Path.is_file, (tmp_path / "cache").rglob("*"))
    said += [path.read_text(errors="replace") for path in kept]
    assert not any("secret" in each for each in said)
    assert "access is denied (HTTP 403)" in said[0]


def test_what_is_missing_or_cannot_be_read_ends_in_a_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(server.root)
    data = names(server, tmp_path / "own")
    server.ranges = False
    assert "samples are read by ranges" in refused(lambda: opened(data, tmp_path))
    server.ranges = True
    (server.root / "train" / "1.tar").unlink()
    assert f"there is no {server.url}/train/1.tar" in refused(
        lambda: opened(data, tmp_path)
    )
    server.forbids = True
    assert "access is denied (HTTP 403)" in refused(lambda: opened(data, tmp_path))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert "pip install fsspec aiohttp" in refused(lambda: opened(data, tmp_path))


def _read_of(source: Any) -> list[bytes]:
    return all_read(source)


def test_a_shard_that_is_gone_while_it_is_read_is_named(
    server: Server, tmp_path: Path
) -> None:
    shards(server.root)
    source = opened(server.url, tmp_path)["train"].source
    source.read(0)
    (server.root / "train" / "0.tar").unlink()
    before = server.asked.total()
    said = refused(lambda: read(source, 0))
    assert "/train/0.tar:" in said and ": no such object; put it back" in said
    assert server.asked.total() - before <= 1, "it is not asked for again"


def test_nothing_is_open_before_a_fork(server: Server, tmp_path: Path) -> None:
    """The scan reads in processes of its own: this one has no file system, and its children read well."""
    shards(server.root)
    remote._systems.clear()
    split = opened(server.url, tmp_path)["train"]
    assert not remote._systems
    with ProcessPoolExecutor(2, get_context("fork")) as forked:
        for found in [forked.submit(_read_of, split.source) for _ in range(4)]:
            assert sorted(found.result(60)) == sorted(FILES.values())
    all_read(split.source)  # now it has: children begin anew all the same
    with ProcessPoolExecutor(1, get_context("fork")) as forked:
        assert sorted(forked.submit(_read_of, split.source).result(60)) == sorted(
            FILES.values()
        )


def test_what_is_kept_is_read_once(server: Server, tmp_path: Path) -> None:
    shards(server.root)
    how: dict[str, Any] = {"cache_dir": tmp_path / "kept"}
    first = opened(server.url, tmp_path, **how)["train"]
    content = all_read(first.source)
    before = server.asked.total()
    remote._heads.clear()
    assert all_read(first.source) == content and server.asked.total() == before
    for path in (tmp_path / "kept").rglob("??/*"):
        path.write_bytes(path.read_bytes()[:-9])  # a machine that went down
    assert all_read(first.source) == content and server.asked.total() == before + 8


def test_nothing_is_evicted_and_the_bound_holds(tmp_path: Path) -> None:
    folder = tmp_path / "kept"

    def size() -> int:
        return sum(path.stat().st_size for path in folder.glob("??/*"))

    kept = Kept(folder, 250)
    for key in (b"a", b"b", b"c", b"a"):
        assert kept.get(key, partial(bytes.__mul__, key, 100)) == key * 100
    assert size() == 208
    other = Kept(folder, 250)
    held = [other.get(key, lambda: b"fetched")[:1] for key in (b"a", b"b", b"c")]
    assert held == [b"a", b"b", b"f"]
    for path in folder.glob("??/*"):
        path.unlink()
    again = Kept(folder, 250)
    assert again.get(b"a", lambda: b"1" * 100) == b"1" * 100 and size() == 104
    (tmp_path / "file").write_bytes(b"")
    assert "--cache-dir" in refused(lambda: Kept(tmp_path / "file" / "x", 9))


def test_the_folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is tried again; an upload that fails is made up for by the next."""
    there, here = tmp_path / "bucket/run", tmp_path / "here"
    for name in (".hidden", "a/.hidden"):  # none is a run's file
        fill(there, {name: b""})
    url = f"file://{there}"
    last = fill(here, {"last.pt": b"first"}) / "last.pt"
    system = type(remote._system(url))
    put = system.put_file
    faults: list[int] = []

    def faulty(*places: Any, **how: Any) -> Any:
        if faults:
            raise OSError(faults.pop(), "Input/output error")
        return put(*places, **how)

    monkeypatch.setattr(system, "put_file", faulty)
    monkeypatch.setattr(remote, "apart", lambda work, item: work(item))
    with mirrored(url, here, resuming=False) as upload:
        assert upload
        faults += [5, 5]
        upload()
        assert not faults and (there / "last.pt").read_bytes() == b"first"
        last.write_bytes(b"second")
        faults += [5] * 1000
        with pytest.raises(UserError, match=rf"^--output {url} cannot be written: "):
            upload()
        assert (there / "last.pt").read_bytes() == b"first"
        faults.clear()
    with mirrored(url, tmp_path / "other", resuming=True):
        assert (tmp_path / "other/last.pt").read_bytes() == b"second"
        assert [path.name for path in (tmp_path / "other").iterdir()] == ["last.pt"]
    # the upload of this one has failed, in an earlier part of the run
    last.write_bytes(b"newer")
    later = time.time() + 60
    os.utime(last, (later, later))
    with (
        pytest.warns(UserWarning, match="here has newer files"),
        mirrored(url, here, resuming=True),
    ):
        assert last.read_bytes() == b"newer"
    assert (there / "last.pt").read_bytes() == b"newer"
    os.utime(last, (0, 0))
    fill(there, {"last.pt": b"of another host"})
    with mirrored(url, here, resuming=True):
        assert last.read_bytes() == b"of another host"
    with (
        pytest.raises(UserError, match="holds a run; continue it with --resume auto"),
        mirrored(url, tmp_path / "third", resuming=False),
    ):
        pass
