"""A local folder that stands for a --data behind a URL: its columns, and where its shards are.

    s3://bucket/set/train/000.tar      ->  train/shards.txt: s3://bucket/set/train/000.tar ...
    s3://bucket/set/train/classes.txt  ->  train/classes.txt
    s3://bucket/set/train/order.txt    ->  train/order.txt

So whatever reads a data folder reads this one. Must not know what a sample is.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import filelock

from saturate.contracts import UserError
from saturate.dataset.scan import names
from saturate.dataset.scan.manifest import is_url, masked
from saturate.dataset.stores import remote
from saturate.system import storage, urls
from saturate.system.user_files import foreign_parts, open_bytes, read_text

SHARDS = "shards.txt"
"""The list of shards in a split's folder: a URL a line, or a name below the folder that this list lies in."""
UNLISTED = f"train/{SHARDS} says what there is"
CLASSES = "classes.txt"
ORDER = "order.txt"
"""Beside shards: their samples are in the order in which they lie there, and not in that of their names."""
SPLITS = ("train", "val")
BYTES = ("utf-8", "surrogateescape")
"""How a list's bytes are text, and text is its bytes."""


def local(data: str | os.PathLike[str], cache: Path) -> Path:
    """Return the folder that --data names, or the one below `cache` that stands for its URL.

    A URL is asked once a process, by a process of its own. Raises UserError.
    """
    if not is_url(os.fspath(data)):
        return Path(data)
    return _stands_for(urls.ready("--data", str(data)), cache)


@once
def _stands_for(url: str, cache: Path) -> Path:
    remote.load(url)
    url = url.rstrip("/")
    folder = cache / "remote" / _digest(url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # the ranks of a machine come one by one
        with filelock.FileLock(folder.with_suffix(".lock")):
            urls.remember(remote.apart(partial(_copy, url, folder)))
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


def _copy(url: str, folder: Path) -> dict[str, str]:
    """Bring a folder to what lies behind its URL. Return bare -> whole URL of what the lists there name with a
    secret, which the folder does not get. Raises OSError and UserError.
    """
    secret: dict[str, str] = {}
    written: dict[str, bytes] = {}
    copied: dict[str, str] = {}  # name below the folder -> URL
    top = _children(url)
    if not top:  # a server that lists nothing
        top = _existing([f"{url}/{CLASSES}"]) + [f"{url}/{split}/" for split in SPLITS]
    for child in top:
        name = child.removeprefix(f"{url}/")
        if name == CLASSES:
            copied[name] = child
        elif name.endswith("/"):
            about = [f"{child}{file}" for file in (SHARDS, CLASSES, ORDER)]
            inside = _children(child)
            known = (
                [file for file in about if file in inside]
                if inside
                else _existing(about)
            )
            copied |= {file.removeprefix(f"{url}/"): file for file in known}
            if about[0] not in known and (shards := _shards(child, inside)):
                written[f"{name}{SHARDS}"] = "".join(
                    f"{file}\n" for file in shards
                ).encode()
    if not copied and not written:
        # whoever may not read it, or not list it, is told so
        if url.startswith("http"):
            remote.heads([f"{url}/{SPLITS[0]}/{SHARDS}"])
        else:
            with suppress(FileNotFoundError):
                remote.children(url)
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
        # a date alone may be that of other bytes
        is_known = head.number > 0 and before.get(name) == now[name]
        if not is_known or not (folder / name).exists():
            content = remote.whole(source, head.size)
            if name.endswith(SHARDS):
                whole = _absolute(content, source, urls.bare(url))
                secret |= {bare: line for bare, line in whole.items() if bare != line}
                content = "".join(f"{bare}\n" for bare in whole).encode(*BYTES)
                # what has secrets is read anew each time
                now[name] = [] if any(map(secret.get, whole)) else now[name]
            write(folder / name, content)
    written[record.name] = json.dumps(now).encode()
    for name, content in written.items():
        write(folder / name, content)
    for name in before.keys() - now.keys() - written.keys():
        (folder / name).unlink(missing_ok=True)
    return secret


def _shards(folder: str, inside: Sequence[str]) -> list[str]:
    """Return the URLs of the shards among the URLs `inside` a folder. Raises UserError."""
    where = masked(folder).rstrip("/")
    shard_names = names.shards(
        (file.removeprefix(folder) for file in inside), ".tar", where
    )
    nested = [
        file.removeprefix(folder)
        for below in inside
        if shard_names and below.endswith("/")
        for file in _children(below)
    ]
    names.shards(nested, ".tar", where)
    return [folder + name for name in shard_names]


def _existing(urls: Sequence[str]) -> list[str]:
    """Return those that are there, of URLs that the server may not list."""
    heads = remote.heads(urls, unlisted=True)
    return [url for url, head in zip(urls, heads, strict=True) if head is not None]


def _absolute(content: bytes, source: str, root: str) -> dict[str, str]:
    """Return bare -> whole URL of each line of a server's list of shards.

    Raises UserError for one that is not below `root`.
    """
    base = urls.bare(source).rpartition("/")[0]
    absolute = {}
    for number, line in shard_lines(content):
        name = line.decode(*BYTES)
        url = name if is_url(name) else f"{base}/{name}"
        # of a URL elsewhere all is left, and `//` has an empty part
        inside = unquote(urls.bare(url).removeprefix(f"{root}/"))
        try:
            foreign_parts(inside)
        except ValueError as why:
            raise UserError(
                f"--data: {masked(source)} line {number}: '{masked(name)[:100]}' is not below {masked(root)} or {why}; "
                f"a list of your own may name any URL: train/{SHARDS} in a folder of this machine"
            ) from None
        absolute[urls.bare(url)] = url
    return absolute


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
    storage.replace(path, fresh, lambda file: file.write(content))


@once
def heads_of(urls: tuple[str, ...]) -> list[remote.Head]:
    """Return the head of each URL, asked for once. Raises UserError for one that is not there."""
    for url in urls:
        remote.load(url)

    try:
        heads = remote.apart(partial(remote.heads, urls))
    except OSError as error:
        raise storage.end_scan(error, masked(str(error.filename))) from None
    if None in heads:
        lacking = masked(urls[heads.index(None)])
        raise UserError(f"--data: there is no {lacking}; put it there, or name another")
    return [head for head in heads if head]
