"""Probes of what the data lies on: the kind of file system, how fast files come from the disk and from the
page cache, room for the manifest."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.probes import Row
from system.resources import memory_bytes

NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|fuse\..+|lustre|ceph|glusterfs|beegfs|gpfs|wekafs|afs|ocfs2|gfs2|9p|virtiofs|pvfs2"
    r"|orangefs"
)
"""File systems whose reads leave this machine, or may: FUSE stands for sshfs, s3fs, gcsfuse and others."""
MOUNTINFO = Path("/proc/self/mountinfo")
FILES = 200
FOLDERS = 40
MOST_BYTES = 8 << 20
"""Bytes read of one file at most: a video is not read to its end."""
LIMIT_S = 3.0
"""Seconds for each of the two passes, and for looking for files."""
SLOW_MS = 3.0
"""A read from the disk, one reader. A local NVMe disk needs some tenths of it."""
REMOTE_BYTES = 128 << 10
"""Bytes of a read over the network: an image of ImageNet's."""
REMOTE_READS = 4
"""Reads over the network, of which the first connects."""
LOW_ROOM_MIB = 1024
"""ImageNet's manifest is some 100 MB."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    point: str
    kind: str
    source: str


def mount_of(folder: str, mountinfo: str) -> Mount | None:
    """Return the mount that holds `folder` (absolute, without links), from the text of /proc/self/mountinfo:
    see proc(5)."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left = before.split()
        right = after.split()
        if len(left) < 5 or len(right) < 2:
            continue
        point = _unescaped(left[4])
        source = _unescaped(right[1])
        holds = folder == point or folder.startswith(point.rstrip("/") + "/")
        # of two at one point, the later hides the earlier
        if holds and (best is None or len(point) >= len(best.point)):
            best = Mount(point=point, kind=right[0], source=source)
    return best


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def file_system(data: Path) -> Row:
    """Return the row of the file system that holds the files, where symbolic links lead: a network's if any
    file lies on one."""
    mountinfo = MOUNTINFO.read_text(errors="replace")
    folders = dict.fromkeys(os.path.dirname(os.path.realpath(path)) for path in some_files(data)) or [
        str(data.resolve())
    ]
    rows = [judge_mount(mount_of(folder, mountinfo)) for folder in folders]
    return max(rows, key=lambda row: row.state == "warn")


def judge_mount(mount: Mount | None) -> Row:
    if mount is None:
        return Row(
            found="not in /proc/self/mountinfo", state="warn", consequence="its speed is in the next row"
        )
    found = f"{mount.kind} ({mount.source} at {mount.point})"
    if NETWORK.fullmatch(mount.kind):
        said = (
            "a network file system: reads have latency, --loader dali-fed hides it with many --workers; a "
            "copy on a local disk is faster"
        )
        return Row(found=found, state="warn", consequence=said)
    if mount.kind in ("tmpfs", "ramfs"):
        return Row(
            found=found,
            state="ok",
            consequence="it is memory, and counts towards this machine's or container's",
        )
    return Row(found=found, state="ok", consequence="on this machine; how fast is in the next row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One reading of files, one after the other, by one reader."""

    files: int
    bytes: int
    seconds: float
    # files whose start was in the page cache already; None when the file system does not say
    cached: int | None = None

    def __str__(self) -> str:
        return f"{self.files / self.seconds:,.0f} files/s, {self.bytes / MIB / self.seconds:,.0f} MiB/s"


@cache
def some_files(data: Path) -> list[str]:
    """List at most FILES regular files below `data`, of FOLDERS folders or more where there are so many,
    spread evenly over what was found.

    Links to one file are one: read twice, it comes from the page cache. Two rows ask, and it may take as long
    as a row's reading.
    """
    found: dict[tuple[int, int], str] = {}
    draw = random.Random(0)  # links to one file follow each other in their folder
    end = time.monotonic() + LIMIT_S
    seen = 0
    been: set[tuple[int, int]] = set()
    for folder, inside, names in os.walk(data, followlinks=True):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in been:  # links may form a circle
            inside.clear()
            continue
        been.add((here.st_dev, here.st_ino))
        for name in draw.sample(names, min(FILES, len(names))):
            path = os.path.join(folder, name)
            if not name.startswith(".") and (file := _identity(path)):
                found.setdefault(file, path)
        seen += bool(names)
        if (seen >= FOLDERS and len(found) >= FILES) or time.monotonic() > end:
            break
    paths = list(found.values())
    return [paths[i * len(paths) // FILES] for i in range(FILES)] if len(paths) > FILES else paths


def _identity(path: str) -> tuple[int, int] | None:
    """Return (device, inode) of a regular file, which all links to it share; None for anything else."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def forget(paths: list[str]) -> None:
    """Ask the kernel to drop the files from the page cache; it keeps what is dirty, mapped by others, or
    lives there anyway."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def in_cache(file: int) -> bool | None:
    """Whether the start of an open file is in the page cache: a read that may not wait says so. None where
    there is no such read."""
    try:
        return bool(os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None


def read(paths: list[str], limit_s: float = LIMIT_S) -> Pass:
    """Read the files in order until the time is up, and at least one."""
    files = read_bytes = cached = 0
    asked = True
    buffer = bytearray(MIB)
    began = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            there = in_cache(file.fileno())
            asked = asked and there is not None
            cached += bool(there)
            got = 0
            while got < MOST_BYTES and (count := file.readinto(buffer)):
                got += count
        files = files + 1
        read_bytes = read_bytes + got
        if time.perf_counter() - began > limit_s:
            break
    return Pass(
        files=files,
        bytes=read_bytes,
        seconds=max(time.perf_counter() - began, 1e-9),
        cached=cached if asked else None,
    )


def size(data: Path) -> Row:
    """Return the row of what lies below `data` beside the memory: what fits is read from the disk once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    whole = True
    end = time.monotonic() + LIMIT_S
    for folder, _, names in os.walk(data):
        for name in names:
            with suppress(OSError):
                found = os.stat(os.path.join(folder, name))
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_size
        if time.monotonic() > end:
            whole = False
            break
    return judge_size(total, len(seen), memory_bytes(), whole=whole)


def judge_size(total: int, files: int, memory: int, *, whole: bool) -> Row:
    """Judge the bytes of so many files, of all or of those that were seen in time, beside the memory."""
    gib, of_memory = (f"{number / 2**30:,.1f} GiB" for number in (total, memory))
    found = f"{'' if whole else 'at least '}{gib} in {files:,} files, memory {of_memory}"
    if total <= memory:
        said = "it fits the page cache" if whole else "not all was looked at in time: the run's start says it"
        return Row(found=found, state="ok", consequence=said)
    said = (
        f"every epoch reads the disk: 1,000 files of the mean size a second need "
        f"{1000 * total / files / MIB:,.0f} MiB/s; the row above says what it gives one reader"
    )
    return Row(found=found, state="ok", consequence=said)


def reading(data: Path) -> Row:
    from dataset.stores import choose_source, source_named

    for place in ("train", "train2017"):
        source = choose_source("auto", data, place)
        if not source_named(source).FILES:
            said = "this row times samples that are files: watch the first epoch's rate"
            return Row(found=f"{place} is read as {source}: not timed", state="ok", consequence=said)
    paths = some_files(data)
    if not paths:
        said = "a run finds nothing to train on: --data FOLDER, one with train/<class>/* and val/<class>/*"
        return Row(found="no file found", state="bad", consequence=said)
    try:
        forget(paths)
        cold = read(paths)
        # the same files again, which are in the page cache now: what remains is not the disk
        return judge_reading(cold, read(paths[: cold.files]))
    except OSError as error:
        said = (
            "too many files are open"
            if error.errno == errno.EMFILE
            else "a run fails on such a file: see its permissions, or the disk"
        )
        return Row(found=f"{type(error).__name__}: {error}", state="bad", consequence=said)


def judge_reading(cold: Pass, warm: Pass) -> Row:
    """Judge the speed of reading. `cold`: right after the files were dropped from the page cache, as far as
    that could be done."""
    size_kib = cold.bytes / cold.files / 1024
    found = f"{cold.files} files of {size_kib:,.0f} KiB, one reader; page cache: {warm}; "
    if cold.cached is None or cold.cached > cold.files / 2:
        why = (
            "the file system does not say what is cached"
            if cold.cached is None
            else "files stay in the cache"
        )
        said = "the disk's speed is unknown: watch the first epoch's rate"
        return Row(
            found=f"{found}disk: cannot be told apart from the cache, {why} ({cold})",
            state="ok",
            consequence=said,
        )
    found += f"disk: {cold}" + (f" ({cold.cached} were cached still)" if cold.cached else "")
    read_ms = 1000 * cold.seconds / cold.files
    if read_ms > SLOW_MS and cold.bytes / cold.seconds < 500 * MIB:
        said = (
            f"{read_ms:.1f} ms a file: --loader dali-fed with many --workers, each waits for one; or data "
            "that fits the page cache"
        )
        return Row(found=found, state="warn", consequence=said)
    return Row(found=found, state="ok", consequence="n workers read n files at once")


def behind_url(url: str) -> Row:
    """Return the row of reads over the network: of a shard, or of the list, one at a time."""
    from contracts import UserError
    from dataset.open import cache_folder
    from dataset.stores import remote
    from dataset.stores.bucket import first_object

    try:
        found = first_object(url, cache_folder(None))
        length = min(remote.head(found).size, REMOTE_BYTES)
        times = []
        for _ in range(REMOTE_READS):
            began = time.perf_counter()
            remote.read(found, 0, length)
            times.append(time.perf_counter() - began)
    except (UserError, OSError) as error:
        return Row(found=str(error), state="bad", consequence="a run ends with that line: mend it first")
    return judge_latency(min(times), length)


def judge_latency(seconds: float, length: int) -> Row:
    """Judge the time of a read of so many bytes over the network."""
    said = (
        f"{1 / seconds:,.0f} images/s for each read under way: --read-threads and --workers raise it, "
        "--cache-dir keeps what was read on a disk"
    )
    return Row(
        found=f"a read of {length / 1024:,.0f} KiB takes {1000 * seconds:.0f} ms, one reader",
        state="ok",
        consequence=said,
    )


def manifest_cache() -> Row:
    from dataset.open import cache_folder

    folder = cache_folder(None)
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_mib = shutil.disk_usage(there).free / MIB
    return judge_cache(folder, free_mib, writable=os.access(there, os.W_OK | os.X_OK))


def judge_cache(folder: Path, free_mib: float, *, writable: bool) -> Row:
    found = f"{folder}, {free_mib:,.0f} MiB free"
    if not writable:
        return Row(
            found=f"{found}, not writable",
            state="bad",
            consequence="no manifest can be kept: XDG_CACHE_HOME or --manifest-dir",
        )
    if free_mib < LOW_ROOM_MIB:
        said = "little room for manifests (about 100 MB for ImageNet): XDG_CACHE_HOME or --manifest-dir"
        return Row(found=found, state="warn", consequence=said)
    return Row(
        found=found, state="ok", consequence="data is scanned once; later runs open it in milliseconds"
    )
