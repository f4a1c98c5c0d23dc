"""The doctor on the data folder: its file system, and how fast files are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataset.stores.read_ahead import told_of_size
from scripts.link_set import link
from scripts.probes import storage
from scripts.probes.storage import Pass

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:40 / /data rw - nfs4 server:/export rw,vers=4.2
41 27 0:41 / /data\\040sets rw,nosuid shared:5 master:6 - fuse.gcsfuse bucket rw
42 27 0:42 / /scratch rw - ext4 /dev/vdb rw
43 27 0:43 / /scratch rw - lustre mds@tcp:/fs rw
44 27 0:44 / /ntfs rw - fuseblk /dev/sdb1 rw
45 27 0:45 / /dev/shm rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.mark.parametrize(
    ("folder", "kind", "point", "state"),
    [
        ("/srv/imagenet", "ext4", "/", "ok"),
        ("/data", "nfs4", "/data", "warn"),
        ("/data/train", "nfs4", "/data", "warn"),
        ("/database", "ext4", "/", "ok"),
        ("/data sets/train", "fuse.gcsfuse", "/data sets", "warn"),
        ("/scratch/x", "lustre", "/scratch", "warn"),  # mounted over the local one
        ("/ntfs/x", "fuseblk", "/ntfs", "ok"),
        ("/dev/shm/x", "tmpfs", "/dev/shm", "ok"),
    ],
)
def test_the_file_system_of_a_folder(folder: str, kind: str, point: str, state: str) -> None:
    mount = storage.mount_of(folder, MOUNTINFO)
    assert mount is not None
    assert (mount.kind, mount.point) == (kind, point)
    row = storage.judge_mount(mount)
    assert row.state == state
    assert ("dali-fed" in row.consequence) == (state == "warn")


def test_a_folder_without_a_mount() -> None:
    assert storage.mount_of("/x", "") is None
    assert storage.judge_mount(None).state == "warn"


WARM = Pass(files=200, bytes=200 * 110_000, seconds=0.02, cached=200)


@pytest.mark.parametrize(
    ("seconds", "cached", "state", "said"),
    [
        (0.1, 0, "ok", "disk: 2,000 files/s"),
        (2.0, 0, "warn", "disk: 100 files/s"),
        (0.02, 200, "ok", "cannot be told apart from the cache, files stay in the cache"),
        (0.02, None, "ok", "cannot be told apart from the cache, the file system does not say"),
    ],
)
def test_disk_and_page_cache_are_told_apart(
    seconds: float, cached: int | None, state: str, said: str
) -> None:
    row = storage.judge_reading(Pass(files=200, bytes=200 * 110_000, seconds=seconds, cached=cached), WARM)
    assert row.state == state
    assert said in row.found and "page cache: 10,000 files/s, 1,049 MiB/s" in row.found
    assert ("dali-fed" in row.consequence) == (state == "warn")


def test_files_are_taken_from_everywhere_and_read(tmp_path: Path) -> None:
    for folder in range(5):
        (tmp_path / str(folder)).mkdir()
        for file in range(80):
            (tmp_path / str(folder) / f"{file}.JPEG").write_bytes(bytes(1000))
        (tmp_path / str(folder) / ".hidden").write_bytes(b"x")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "0" / "broken").symlink_to(tmp_path / "gone")
    paths = storage.some_files(tmp_path)
    assert len(paths) == 200
    assert len({Path(path).parent.name for path in paths}) == 5
    taken = storage.read(paths)
    assert (taken.files, taken.bytes) == (200, 200_000)
    assert storage.read(paths, limit_s=0.0).files == 1
    row = storage.reading(tmp_path)
    assert row.state == "ok" and "200 files of 1 KiB" in row.found


@pytest.mark.parametrize("symbolic", [False, True])
def test_links_to_one_file_are_one(symbolic: bool, tmp_path: Path) -> None:
    real, links = tmp_path / "real" / "a", tmp_path / "links"
    real.mkdir(parents=True)
    for file in range(40):
        (real / f"{file}.JPEG").write_bytes(b"x")
    link(tmp_path / "real", links, 2000, symbolic=symbolic)
    paths = storage.some_files(links)
    files = {Path(path).resolve().stat().st_ino for path in paths}
    assert len(paths) == len(files) > 30, "of 200 links drawn in one folder"


def test_the_file_system_is_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "far"):
        (tmp_path / name).mkdir()
    for name in ("near", "far"):
        (tmp_path / ("far" if name == "far" else "data") / f"{name}.JPEG").write_bytes(b"x")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        f"40 27 0:40 / {tmp_path.resolve()}/far rw - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(storage, "MOUNTINFO", mounts)
    assert storage.file_system(tmp_path / "data").found.startswith("ext4 ")
    (tmp_path / "data" / "link.JPEG").symlink_to(tmp_path / "far" / "far.JPEG")
    assert storage.file_system(tmp_path / "data").found.startswith("ext4 "), "a folder is looked through once"
    storage.some_files.cache_clear()
    row = storage.file_system(tmp_path / "data")
    assert row.found.startswith("nfs4 ") and row.state == "warn"
    (tmp_path / "empty").mkdir()
    assert storage.file_system(tmp_path / "empty").found.startswith("ext4 ")


def test_a_folder_without_files_and_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.reading(tmp_path).state == "bad"
    monkeypatch.setattr(storage, "some_files", lambda _: [str(tmp_path / "gone")])
    row = storage.reading(tmp_path)
    assert row.state == "bad" and "gone" in row.found


@pytest.mark.parametrize(
    ("memory", "whole", "said"),
    [
        (1 << 20, True, "every epoch reads the disk: 1,000 files of the mean size a second need 1,000 MiB/s"),
        (1 << 30, True, "it fits the page cache"),
        (1 << 30, False, "not all was looked at in time"),
    ],
)
def test_a_set_beside_the_memory(memory: int, whole: bool, said: str) -> None:
    assert said in storage.judge_size(3 << 20, 3, memory, whole=whole).consequence


def test_the_size_of_a_set_counts_links_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 30 >> 10))
    (tmp_path / "b").symlink_to("a")
    assert "0.0 GiB in 1 files" in storage.size(tmp_path).found


def test_a_start_tells_of_a_set_that_is_larger_than_memory() -> None:
    said = told_of_size(138 << 30, 1_281_167, 78 << 30)
    assert said == (
        "the set is 138 GiB, memory 78: every epoch reads the disk, and 1,000 images/s need 110 MiB/s of it"
    )
    assert told_of_size(78 << 30, 1_281_167, 78 << 30) == ""
