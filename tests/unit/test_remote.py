"""Data behind URLs: read by ranges, tried again, kept on a disk; and credentials that are in no message."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pytest
from PIL import Image

from saturate.contracts import Split
from saturate.dataset.open import are_files, open_splits
from saturate.dataset.stores import bucket, mirror, remote
from saturate.dataset.stores.disk_cache import Kept
from saturate.loaders._read_retry import read
from saturate.run import pack
from saturate.settings.config import build
from saturate.system.user_files import is_foreign
from saturate.tasks import kind_of
from saturate.tasks.kind import Opening
from tests.conformance import scenes
from tests.conformance.sources import all_read, write_shards
from tests.unit import superres_files
from tests.unit.folders import fill, refused
from tests.unit.ranges import Server, serving
from tests.unit.test_splits import Console
from tests.unit.test_superres_loader import check, passed

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
                "name": (below + name).rstrip("/"),
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
    assert remote.children(server.url) == []
    shards(server.root)
    found = [f"{server.url}/train/", f"{server.url}/val/"]
    assert remote.children(server.url) == found
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


def packed(server: Server, tmp_path: Path, files: dict[str, bytes] = FILES) -> str:
    """Serve a set that scripts.pack wrote, and return its URL."""
    for place in ("train", "val"):
        fill(tmp_path / "origin" / place, files)
    target = str(server.root / "set")
    origin = str(tmp_path / "origin")
    assert pack.main([target, "--from", origin, "--format", "tar"]) == 0
    return f"{server.url}/set"


def mend(shard: Path) -> list[bytes]:
    """Make class a of all images of a packed shard, in place; its size and date stay. Return what it then says."""
    before = shard.stat()
    with tarfile.open(shard) as tar:
        places = [member.offset_data for member in tar if member.name.endswith("cls")]
    with open(shard, "r+b") as file:
        for place in places:
            file.seek(place)
            file.write(b"0")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with tarfile.open(shard) as tar:
        found: list[Any] = [tar.extractfile(m) for m in tar if m.name.endswith("cls")]
        return [each.read() for each in found]


def test_a_packed_shard_with_another_etag_has_its_own_labels(
    server: Server, tmp_path: Path
) -> None:
    url = packed(server, tmp_path)
    before = opened(url, tmp_path)["train"].columns
    assert before.label.tolist() == [0] * 4 + [1] * 4
    assert mend(server.root / "set/train/000000.tar") == [b"0"] * 8
    server.etags["set/train/000000.tar"] = '"mended"'
    found = opened(url, tmp_path)["train"]
    assert found.columns.label.tolist() == [0] * 8
    assert sorted(all_read(found.source)) == sorted(FILES.values())


def test_a_date_tells_too_little(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without ETags: its shards are walked at each start, and nothing of them is kept."""
    head = remote.head

    def dated(url: str) -> remote.Head:
        return remote.Head(size=head(url).size, tag="Mon, 5 May 2025", is_date=True)

    monkeypatch.setattr(remote, "head", dated)
    url = packed(server, tmp_path)
    how: dict[str, Any] = {"cache_dir": tmp_path / "kept"}
    first = opened(url, tmp_path, **how)["train"]
    assert first.columns.label.tolist() == [0] * 4 + [1] * 4
    all_read(first.source)
    mend(server.root / "set/train/000000.tar")
    for split in ("train", "val"):
        fill(server.root / "set" / split, {"classes.txt": b"a\nc\n"})
    found = opened(url, tmp_path, **how)["train"]
    assert found.columns.label.tolist() == [0] * 8
    assert found.columns.classes == ("a", "c")
    assert not [*(tmp_path / "kept").glob("??/*")]


def test_headers_that_lie_near_by_come_with_one_request(
    server: Server, tmp_path: Path
) -> None:
    """Of 64 images there are fewer requests than images; each has the size that Pillow says."""
    files = scenes.of_two_classes(64)
    url = packed(server, tmp_path, files)
    server.asked.clear()
    split = opened(url, tmp_path)["train"]
    assert server.asked["set/train/000000.tar"] < 16
    sizes = [Image.open(io.BytesIO(files[name])).size for name in sorted(files)]
    columns = split.columns
    assert [*zip(columns.width, columns.height, strict=True)] == sizes


OUTSIDE = """file:///etc/passwd http://169.254.169.254/latest/meta-data/0.tar ../../other/0.tar
    %2e%2e/%2e%2e/other/0.tar /etc/0.tar a//0.tar {url}/train/../../other/0.tar {url}-other/train/0.tar"""


def test_a_servers_list_names_what_lies_below_it(
    server: Server, tmp_path: Path
) -> None:
    shards(server.root / "set")
    url = f"{server.url}/set"
    lines = f"0.tar\n{url}/train/1.tar\n"
    fill(server.root / "set", {"train/shards.txt": lines.encode()})
    assert len(opened(url, tmp_path)["train"].columns) == 8
    paths = len(server.paths)
    for line in OUTSIDE.format(url=url).split():
        listed = f"{lines}{line}".encode()
        fill(server.root / "set", {"train/shards.txt": listed})
        said = refused(lambda: opened(url, tmp_path))
        assert "train/shards.txt line 3: " in said and "is not below" in said, line
    assert not [path for path in server.paths[paths:] if "other" in path]


def test_a_list_of_ones_own_names_no_files(server: Server, tmp_path: Path) -> None:
    shards(tmp_path / "set")
    data = names(server, tmp_path / "own")
    line = f"file://{tmp_path}/set/train/0.tar"
    fill(data, {"train/shards.txt": line.encode()})
    assert "is the URL of a shard on a server" in refused(
        lambda: opened(data, tmp_path)
    )


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
    asked = len(server.paths)
    content = all_read(first.source)
    assert len(server.paths) == asked + 8 + 2, "the heads of two shards, once each"
    before = server.asked.total()
    remote._heads.clear()
    assert all_read(first.source) == content and server.asked.total() == before
    for path in (tmp_path / "kept").rglob("??/*"):
        path.write_bytes(path.read_bytes()[:-9])  # a machine that went down
    assert all_read(first.source) == content and server.asked.total() == before + 8


def test_large_images_are_kept_and_read_together(
    server: Server, tmp_path: Path
) -> None:
    """A second epoch of patches asks the server for nothing; of the first one every image comes once."""
    pixels = [superres_files.picture(i, 60, 60) for i in range(8)]
    files = {
        f"all/{i}.png": superres_files.encoded(image, "png")
        for i, image in enumerate(pixels)
    }
    flat = {"data": packed(server, tmp_path, files), "cache_dir": tmp_path / "kept"}
    flat |= {"manifest_dir": tmp_path / "cache", "task": "superres"}
    of_patches = {"patch_size": 16, "patches_per_image": 3, "read_threads": 3}
    settings = build({**flat, **of_patches})
    console = Console()
    opening = Opening.from_config(settings, "paired", console)
    split = kind_of(settings).splits(opening)["train"]
    assert any("so 3 at once give at most" in line for line in console.said)
    server.latency_s = 0.02
    server.asked.clear()
    server.most_under_way = 0
    small = [superres_files.halved(image, 2) for image in pixels]
    for epoch in (0, 1):
        batches = passed(superres_files.feed_of(split), epoch)
        assert check(batches, pixels, small, 3) == 24
        assert server.asked.total() == 8 and server.most_under_way == 3


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
    assert size() == int((folder / "bytes").read_text()) == 208 + 7 + 4
    for path in folder.glob("??/*"):
        path.unlink()
    again = Kept(folder, 250)
    assert again.get(b"a", lambda: b"1" * 100) == b"1" * 100 and size() == 104
    (tmp_path / "file").write_bytes(b"")
    assert "--cache-dir" in refused(lambda: Kept(tmp_path / "file" / "x", 9))


def keeps(folder: Path, bound: int, number: int, all_keep: Any) -> None:
    kept = Kept(folder, bound)
    for at in range(60):
        content = b"%d" % at * 300
        assert kept.get(b"%d %d" % (number, at), partial(bytes, content)) == content
        if at == 0:
            all_keep.wait(60)


def test_eight_processes_keep_no_more_than_the_bound(tmp_path: Path) -> None:
    """Each has kept one sample when they go on together, and together they have twice what the bound allows."""
    folder = tmp_path / "kept"
    bound = 8 * 60 * 600 // 2
    forks = multiprocessing.get_context("fork")
    all_keep = forks.Barrier(8)
    running = [
        forks.Process(target=keeps, args=(folder, bound, number, all_keep))
        for number in range(8)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
        assert process.exitcode == 0
    size = sum(path.stat().st_size for path in folder.glob("??/*"))
    assert 0.97 * bound < size <= bound


def test_what_a_bucket_names_stays_in_the_runs_folder(tmp_path: Path) -> None:
    """Names that lead elsewhere are not fetched; links in the folder, and below temporary names, are not followed."""
    folder = tmp_path / "run"
    home = tmp_path / "home"
    home.mkdir()
    names = [
        "last.pt",
        "step/1.pt",
        f"/{home}/planted",
        "../home/planted",
        "step//1.pt",
        ".git/hooks/post-checkout",
        "a/.ssh/planted",
        "C:/planted",
        "..\\planted",
        "pictures/",
    ]
    assert [name for name in names if not is_foreign(name)] == names[:2]
    url = f"file://{tmp_path}/bucket"
    fill(tmp_path / "bucket", {"last.pt": b"l", "step/1.pt": b"1"})
    folder.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / ".fetched").symlink_to(elsewhere)
    (folder / "step").symlink_to(home)
    mirror.Mirror(url=url, folder=folder).begin(resuming=True, trains=False)
    assert (folder / "last.pt").read_bytes() == b"l"
    assert (folder / "step/1.pt").read_bytes() == b"1"
    assert not [*home.iterdir(), *elsewhere.iterdir()]
