"""A local folder that stands for a --data behind a URL: lists, annotations, columns, and where shards are.

    s3://bucket/set/train/000.tar      ->  train/shards.txt: s3://bucket/set/train/000.tar ...
    s3://bucket/set/train/classes.txt  ->  train/classes.txt
    s3://bucket/set/train.csv          ->  train.csv
    s3://bucket/set/annotations/*.json ->  annotations/*.json
    s3://bucket/set/train.columns/**   ->  train.columns/**

So whatever reads a data folder reads this one. Must not know what a sample is.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import Any

import filelock

from contracts import UserError
from dataset.scan.file_tree import BEGINNING
from dataset.scan.manifest import is_url, masked
from dataset.stores import remote
from system import storage
from system.user_files import open_bytes, read_text

SHARDS = "shards.txt"
"""In a split's folder: the shards, a URL a line, or a name below the folder that this list lies in."""
COPIED = (".csv", ".tsv", ".txt")
"""Endings of files beside the splits, and in them, that are copied."""
LARGEST_LIST = 4 << 30
"""Bytes of a file that is copied, at most."""
UNLISTED = f"train/{SHARDS} or train.csv says what there is"
BASE = ".url"
"""Holds the URL that a local folder stands for."""
SPLITS = ("train", "val", "train2017", "val2017")
"""Folders that are asked for where a server lists none."""


def local(data: str | os.PathLike[str], cache: Path) -> Path:
    """Return the folder that --data names, or the one below `cache` that stands for its URL.

    A URL is asked once a process, by a process of its own. Raises UserError.
    """
    return _stands_for(str(data), cache) if is_url(os.fspath(data)) else Path(data)


@once
def _stands_for(url: str, cache: Path) -> Path:
    remote.load(url)
    url = url.rstrip("/")
    folder = cache / "remote" / _digest(remote.plain(url))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(
            folder.with_suffix(".lock")
        ):  # the ranks of a machine come one by one
            remote.apart(_copy, (url, folder))
    except OSError as error:
        if error.filename and is_url(os.fsdecode(error.filename)):
            then = "start again once it answers"
            if error.errno == errno.EKEYREJECTED:
                then = f"give credentials with the right to read it; without that to list, {UNLISTED}"
            raise storage.fault(error, f"--data {masked(url)}", then) from None
        raise UserError(
            f"{cache} cannot be written: {error.strerror}; choose another folder with --manifest-dir"
        ) from None
    return folder


def first_object(url: str, cache: Path) -> str:
    """Return the URL of one object of the --data behind a URL: a shard, or else a list. Raises UserError."""
    folder = local(url, cache)
    for split in SPLITS:
        with suppress(OSError):
            return next(filter(is_url, read_text(folder / split / SHARDS).splitlines()))
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(COPIED))
    return base_of(folder) + names[0]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def base_of(folder: Path) -> str:
    """Return the URL that a folder stands for, with a slash behind it; "" for one that is the data itself."""
    with suppress(OSError):
        return read_text(folder / BASE)
    return ""


def _copy(task: tuple[str, Path]) -> None:
    """Bring a folder to what lies behind its URL. Raises OSError and UserError."""
    url, folder = task
    wanted = dict(_wanted(url))
    if not wanted:
        if not url.startswith("http"):
            with suppress(FileNotFoundError):
                remote.children(url)  # whoever may not list it is told so
        raise UserError(
            f"--data {masked(url)}: nothing is there that can be read: tar shards below train/ and val/ (or "
            f"train/{SHARDS}, which names them, where a server lists no folders), or train.csv and val.csv"
        )
    told = folder / "copied.json"
    before: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        before = json.loads(read_text(told))
    urls = {name: source for name, source in wanted.items() if isinstance(source, str)}
    heads = dict(zip(urls, remote.heads([*urls.values()]), strict=True))
    now: dict[str, Any] = {}
    for name, source in wanted.items():
        if isinstance(source, bytes):
            write(folder / name, source)
            continue
        found = heads[name]
        if found is None:
            continue
        now[name] = [found.size, found.tag]
        if found.size > LARGEST_LIST:
            raise UserError(
                f"--data: {masked(source)} has {found.size:,} bytes; lists have {LARGEST_LIST:,} at most"
            )
        if before.get(name) != now[name] or not (folder / name).exists():
            content = remote.whole(source, found.size)
            write(
                folder / name,
                _absolute(content, source) if Path(name).name == SHARDS else content,
            )
    write(folder / BASE, f"{url}/".encode())
    for name in before.keys() - now.keys():
        (folder / name).unlink(missing_ok=True)
    write(told, json.dumps(now).encode())


def _absolute(content: bytes, source: str) -> bytes:
    """Return a list of shards with a URL in each line."""
    base = os.fsencode(remote.plain(source).rpartition("/")[0])
    return b"".join(
        (line if is_url(line) else base + b"/" + line) + b"\n"
        for _, line in shard_lines(content)
    )


def shard_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and name of each line of a list of shards that names one; '#' begins a comment."""
    for number, line in enumerate(
        content.removeprefix(codecs.BOM_UTF8).splitlines(), 1
    ):
        line = line.strip()
        if line and not line.startswith(b"#"):
            yield number, line


def _wanted(url: str) -> Iterator[tuple[str, str | bytes]]:
    """Yield (name below the folder, URL to copy or content to write)."""
    top = _children(url)
    if not top:
        names = [f"{split}{ending}" for split in SPLITS for ending in COPIED]
        top = [f"{url}/{name}" for name in ("classes.txt", *names)]
        known = remote.heads(top, unlisted=True)
        top = [
            each for each, found in zip(top, known, strict=True) if found is not None
        ]
        top += [f"{url}/{split}/" for split in SPLITS]
    for each in top:
        name = each.rstrip("/").rpartition("/")[2]
        if not each.endswith("/"):
            if name.endswith(COPIED):
                yield name, each
        elif name == "annotations":
            yield from (
                (f"{name}/{_last(own)}", own)
                for own in _children(each)
                if own.endswith(".json")
            )
        elif name.endswith(".columns"):
            for part in _children(each):
                files = [part] if not part.endswith("/") else _children(part)
                yield from (
                    (f"{name}/{own.removeprefix(each)}", own)
                    for own in files
                    if not own.endswith("/")
                )
        else:
            yield from _of_split(name, each)


def _of_split(name: str, url: str) -> Iterator[tuple[str, str | bytes]]:
    """Yield what a split's folder has: its shards, and what is beside them."""
    inside = _children(url)
    listed = f"{url}{SHARDS}"
    shards = [each for each in inside if each.endswith(".tar")]
    classes = f"{url}classes.txt"
    if not inside:  # a server that lists nothing
        found = remote.heads([listed, classes], unlisted=True)
        inside = [
            each
            for each, head in zip((listed, classes), found, strict=True)
            if head is not None
        ]
    if listed in inside:
        yield f"{name}/{SHARDS}", listed
    elif shards:
        yield f"{name}/{SHARDS}", "".join(f"{each}\n" for each in shards).encode()
    if classes in inside:
        yield f"{name}/classes.txt", classes


def _children(url: str) -> list[str]:
    """Return what lies below a URL; nothing where the server lists nothing."""
    try:
        return remote.children(url)
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno == errno.EKEYREJECTED or (
            url.startswith("http") and "HTTP 40" in str(error.strerror)
        ):
            return []  # a server that forbids lists may still give what it is asked for by name
        raise


def _last(url: str) -> str:
    return url.rpartition("/")[2]


def write(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing; one that has this content stays as it is, with its date."""
    with suppress(OSError), open_bytes(path) as file:
        if file.read() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def described(
    urls: Sequence[str], cache: Path, *, looks: bool
) -> tuple[Path, list[tuple[remote.Head, int]]]:
    """Return head and look of each URL, and the file below `cache` that shows a change of any.

    A look is what dataset.scan.file_tree.visit has of a file, and 0 without `looks`. Raises UserError.
    """
    names = [remote.plain(url) for url in urls]
    path = cache / "remote" / f"{_digest(json.dumps([names, looks]))}.json"
    return path, _described(tuple(urls), path, looks)


@once
def _described(
    urls: tuple[str, ...], path: Path, looks: bool
) -> list[tuple[remote.Head, int]]:
    for url in {url.partition("://")[0]: url for url in urls}.values():
        remote.load(url)
    try:
        found = remote.apart(_look_at, (urls, looks))
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock")):
            told = [
                [remote.plain(url), head.size, head.tag, look]
                for url, (head, look) in zip(urls, found, strict=True)
            ]
            write(path, json.dumps(told).encode())
    except OSError as error:
        raise storage.end_scan(error, masked(str(error.filename))) from None
    return found


def _look_at(task: tuple[tuple[str, ...], bool]) -> list[tuple[remote.Head, int]]:
    """Return head and look of each URL. Raises UserError for one that is not there, and OSError."""
    urls, looks = task
    found = []
    for url, head in zip(urls, remote.heads(urls), strict=True):
        if head is None:
            raise UserError(
                f"--data: there is no {masked(url)}; put it there, or name another"
            )
        begin = remote.read(url, 0, min(BEGINNING, head.size)) if looks else b""
        found.append((head, zlib.crc32(begin, head.size & 0xFFFFFFFF) if looks else 0))
    return found
