"""A local folder that stands for a --data behind a URL: its columns, and where its shards are.

    s3://bucket/set/train/000.tar      ->  train/shards.txt: s3://bucket/set/train/000.tar ...
    s3://bucket/set/train/classes.txt  ->  train/classes.txt
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
from dataset.scan import names
from dataset.scan.file_tree import BEGINNING
from dataset.scan.manifest import is_url, masked
from dataset.stores import remote
from system import storage
from system.user_files import open_bytes, read_text

SHARDS = "shards.txt"
"""The list of shards in a split's folder: a URL a line, or a name below the folder that this list lies in."""
UNLISTED = f"train/{SHARDS} says what there is"
CLASSES = "classes.txt"
SPLITS = ("train", "val")


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
        # the ranks of a machine come one by one
        with filelock.FileLock(folder.with_suffix(".lock")):
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


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _copy(task: tuple[str, Path]) -> None:
    """Bring a folder to what lies behind its URL. Raises OSError and UserError."""
    url, folder = task
    written: dict[str, bytes] = {}
    copied: dict[str, str] = {}  # name below the folder -> URL
    top = _children(url)
    if not top:  # a server that lists nothing
        top = _there([f"{url}/{CLASSES}"]) + [f"{url}/{split}/" for split in SPLITS]
    for child in top:
        name = child.removeprefix(f"{url}/")
        if name == CLASSES:
            copied[name] = child
        elif name.endswith(".columns/"):
            copied |= {
                file.removeprefix(f"{url}/"): file
                for part in _children(child)
                for file in (_children(part) if part.endswith("/") else [part])
            }
        elif name.endswith("/"):
            about = [f"{child}{SHARDS}", f"{child}{CLASSES}"]
            inside = _children(child)
            known = (
                [file for file in about if file in inside] if inside else _there(about)
            )
            copied |= {file.removeprefix(f"{url}/"): file for file in known}
            if about[0] not in known and (shards := _shards(child, inside)):
                written[f"{name}{SHARDS}"] = "".join(
                    f"{file}\n" for file in shards
                ).encode()
    if not copied and not written:
        if not url.startswith("http"):
            with suppress(FileNotFoundError):
                remote.children(url)  # whoever may not list it is told so
        raise UserError(
            f"--data {masked(url)}: nothing is there that can be read: tar shards below train/ and val/ (or "
            f"train/{SHARDS}, which names them, where a server lists no folders)"
        )
    record = folder / "copied.json"
    before: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        before = json.loads(read_text(record))
    now: dict[str, Any] = {}
    heads = remote.heads([*copied.values()])
    for (name, source), head in zip(copied.items(), heads, strict=True):
        if head is None:
            continue
        now[name] = [head.size, head.tag]
        if before.get(name) != now[name] or not (folder / name).exists():
            content = remote.whole(source, head.size)
            if name.endswith(SHARDS):
                content = _absolute(content, source)
            write(folder / name, content)
    written[record.name] = json.dumps(now).encode()
    for name, content in written.items():
        write(folder / name, content)
    for name in before.keys() - now.keys() - written.keys():
        (folder / name).unlink(missing_ok=True)


def _shards(folder: str, inside: Sequence[str]) -> list[str]:
    """Return the URLs of the shards among the URLs `inside` a folder. Raises UserError."""
    where = masked(folder).rstrip("/")
    found = names.shards((file.removeprefix(folder) for file in inside), ".tar", where)
    nested = [
        file.removeprefix(folder)
        for below in inside
        if found and below.endswith("/")
        for file in _children(below)
    ]
    names.shards(nested, ".tar", where)
    return [folder + name for name in found]


def _there(urls: Sequence[str]) -> list[str]:
    """Return those that are there, of URLs that the server may not list."""
    heads = remote.heads(urls, unlisted=True)
    return [url for url, head in zip(urls, heads, strict=True) if head is not None]


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


def write(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing; one that has this content stays as it is, with its date."""
    with suppress(OSError), open_bytes(path) as file:
        if file.read() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    os.replace(fresh, path)


@once
def heads_of(
    urls: tuple[str, ...], *, beginnings: bool
) -> list[tuple[remote.Head, int]]:
    """Return head and look of each URL, asked for once. Raises UserError for one that is not there.

    A look is what dataset.scan.file_tree.visit has of a file; without `beginnings` it is 0.
    """
    for url in urls:
        remote.load(url)

    def look(_: None) -> list[tuple[remote.Head, int]]:
        found = []
        for url, head in zip(urls, remote.heads(urls), strict=True):
            if head is None:
                raise UserError(
                    f"--data: there is no {masked(url)}; put it there, or name another"
                )
            begin = min(BEGINNING, head.size) if beginnings else 0
            crc = zlib.crc32(remote.read(url, 0, begin), head.size & 0xFFFFFFFF)
            found.append((head, crc if beginnings else 0))
        return found

    try:
        return remote.apart(look, None)
    except OSError as error:
        raise storage.end_scan(error, masked(str(error.filename))) from None
