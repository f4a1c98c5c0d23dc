"""Data behind URLs: read by ranges, tried again, kept on a disk; and credentials that are in no message."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts import Split
from dataset.open import are_files, open_splits
from dataset.stores import bucket, remote
from dataset.stores.disk_cache import Kept
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
FILES = scenes.of_two_classes(8)


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


class Bucket:
    """Stands in for s3fs: objects by key, and what a server answers whoever may not list, or read."""

    objects: ClassVar[dict[str, bytes]] = {}
    lists = True
    error: ClassVar[Exception | None] = None
    tries = 0

    def _found(self, url: str) -> bytes:
        type(self).tries += 1
        if self.error:
            raise self.error
        key = url.removeprefix("s3://")
        if key not in self.objects:
            raise FileNotFoundError(key) if self.lists else PermissionError(key)
        return self.objects[key]

    def info(self, url: str, **_: Any) -> dict[str, Any]:
        data = self._found(url)
        return {
            "name": url,
            "size": len(data),
            "type": "file",
            "ETag": str(zlib.crc32(data)),
        }

    def cat_file(
        self, url: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        return self._found(url)[start:end]

    def ls(self, url: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        if self.error:
            raise self.error
        if not self.lists:
            raise PermissionError(url)
        below = url.removeprefix("s3://")
        inside = {
            key.removeprefix(below) for key in self.objects if key.startswith(below)
        }
        names = {name[: name.find("/") + 1] or name for name in inside}
        return [
            {
                "name": below + name,
                "type": "directory" if name.endswith("/") else "file",
            }
            for name in names
        ]


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Bucket]:
    """The bucket pets, with shards whose keys have letters of URLs."""
    shards(tmp_path / "set")
    objects = {
        f"pets/set/{path.parent.name}/a?#b {path.name}": path.read_bytes()
        for path in (tmp_path / "set").rglob("*.tar")
    }
    monkeypatch.setattr(Bucket, "objects", objects)
    monkeypatch.setattr(Bucket, "lists", True)
    monkeypatch.setattr(Bucket, "error", None)
    monkeypatch.setattr(remote, "PACKAGES", {})
    monkeypatch.setattr(remote, "_systems", {})
    monkeypatch.setattr(fsspec, "filesystem", lambda protocol, **how: Bucket())
    return Bucket


def test_keys_of_a_bucket_have_any_letter(pets: type[Bucket], tmp_path: Path) -> None:
    split = opened("s3://pets/set", tmp_path)["train"]
    assert sorted(all_read(split.source)) == sorted(FILES.values())
    assert split.source.name(0).startswith("s3://pets/set/train/a?#b 0.tar:")


def test_a_bucket_that_may_not_be_listed(pets: type[Bucket], tmp_path: Path) -> None:
    """Its shards.txt say what there is; where there are none the line names the rights."""
    pets.lists = False
    said = refused(lambda: opened("s3://pets/set", tmp_path))
    assert "access is denied (PermissionError); give credentials with the" in said
    assert "train/shards.txt says what there is" in said
    for place, key in enumerate([*pets.objects]):
        folder = key.rpartition("/a?#b")[0]
        pets.objects[f"{folder}/{place}.tar"] = pets.objects.pop(key)
    for split in ("train", "val"):
        names = [key for key in pets.objects if f"/{split}/" in key]
        lines = "".join(f"{name.rpartition('/')[2]}\n" for name in names)
        pets.objects[f"pets/set/{split}/shards.txt"] = lines.encode()
    source = opened("s3://pets/set", tmp_path)["train"].source
    assert sorted(all_read(source)) == sorted(FILES.values())


class Answered(Exception):
    """What botocore raises: code and status are in its answer."""

    def __init__(self, code: str = "", status: int | None = None) -> None:
        super().__init__("An error occurred")
        about = {"HTTPStatusCode": status}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": about}


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("status", "asked", "said"),
    [(404, 1, "no such object"), (503, 4, "HTTP 503")],
    ids=["gone", "not-now"],
)
def test_an_object_that_is_gone_is_named_at_once(
    status: int, asked: int, said: str, pets: type[Bucket]
) -> None:
    """By file systems that raise FileNotFoundError from their library's error, as s3fs does."""
    pets.error = caused(FileNotFoundError("x"), Answered("", status))
    pets.tries = 0
    with pytest.raises(OSError, match=said) as caught:
        remote.read("s3://pets/train/0.tar", 0, 9)
    assert pets.tries == asked
    assert isinstance(caught.value, FileNotFoundError) == (status == 404)


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
    assert server.asked.total() - before == 3, "whose latency is told, and nothing else"
    assert "so 16 at once give at most" in console.said[0]
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
