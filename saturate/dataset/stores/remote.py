"""Objects behind URLs (s3://, https://, http://, what else fsspec knows): heads, and ranges of their bytes.

fsspec and its libraries know the protocols and the credentials, and are imported when the first URL is read.
They run an event loop in a thread, which no fork may copy: whoever forks later reads URLs `apart`
(system.processes). Must not know what the bytes are.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from saturate.contracts import UserError, counted
from saturate.dataset.scan.manifest import Rejected, is_url, masked
from saturate.system import processes, storage, urls

T = TypeVar("T")
ReadAt = Callable[[int, int], bytes]
"""(place, length) -> so many bytes; dataset.scan.byte_ranges has the same type, and imports this module."""

PACKAGES = {
    "s3": "s3fs",
    "http": "aiohttp",
    "https": "aiohttp",
    "gs": "gcsfs",
    "gcs": "gcsfs",
}
"""Protocol -> the package that fsspec reads it with."""
WRITABLE = (
    "s3",
    "gs",
    "gcs",
    "az",
    "abfs",
    "abfss",
    "hdfs",
    "sftp",
    "ssh",
    "smb",
    "file",
)
"""Protocols that --output may have: a web server takes no files, and of the others nobody knows."""
PAUSES_S = (0.2, 0.8, 3.2)
"""Seconds before a request is tried again; up to twice as long, so that readers do not all come at once."""
CONNECT_S = 10
ANSWER_S = 30
"""Seconds without a byte, after which a request is taken for lost."""
WARN_S = 20.0
"""Seconds in which no byte comes or goes, of which a line is said; less than ANSWER_S, after which others go."""
SILENT_S = 5.0
"""Such seconds after which a run that is ending gives up."""
ACKNOWLEDGED = 120
"""Place of two int64 in Linux's struct tcp_info: bytes that the other side has acknowledged, and that it has sent."""
TRY_LATER = (408, 425, 429)
"""HTTP's errors of a client that pass; the others of 400 to 499 do not."""
TOGETHER = 32
"""Requests at once where many heads are asked for."""
NO_CREDENTIALS = re.compile("Credential|SSO|ProfileNotFound|TokenRetrieval")
"""Part of the names of the errors that libraries raise where they find no credentials."""
TAGS = ("ETag", "etag")
DATES = ("Last-Modified", "LastModified", "updated", "mtime")
"""Names by which libraries tell what a server says of an object; a date is for want of a tag."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a server says of an object."""

    size: int  # bytes
    tag: str  # the ETag, another one for other bytes; else a date
    is_date: bool = False

    @property
    def number(self) -> int:
        """Return the tag as an int64: above 0 for an ETag, below for a date, which other bytes may have too; 0 for
        none."""
        if not self.tag:
            return 0
        digest = hashlib.blake2b(self.tag.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big") >> 1 | 1
        return -number if self.is_date else number


def require_writable(url: str) -> None:
    """Raise UserError where nothing can be written to a URL."""
    protocol = url.partition("://")[0]
    if protocol not in WRITABLE:
        known = ", ".join(f"{name}://" for name in WRITABLE)
        raise UserError(
            f"--output {masked(url)}: {protocol}:// cannot be written to; name a folder, or a URL of {known}"
        )


class _Short(Exception):
    """An answer that has other bytes than were asked for."""


class _System:
    """fsspec's file system, whose methods get URLs with the secrets that are known of them."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._system, name)
        return lambda *places, **how: method(
            *(urls.whole(each) if isinstance(each, str) else each for each in places),
            **how,
        )


# by protocol, and the key and secret of a bucket that a URL has
_systems: dict[tuple[str, Any], _System] = {}
_heads: dict[str, Head] = {}  # of objects that this process has opened
_opening = threading.Lock()


def _renew() -> None:
    """Forget in a child what its parent has opened."""
    global _opening
    _systems.clear()
    _heads.clear()
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def load(url: str) -> None:
    """Import what reads a URL, and start nothing: processes that are forked then need not import it each.

    Raises UserError that names the packages.
    """
    protocol = url.partition("://")[0]
    package = PACKAGES.get(protocol)
    try:
        for name in ("fsspec", *([package] if package else [])):
            import_module(name)
    except ImportError:
        raise UserError(
            f"{protocol}:// needs the packages fsspec and {package or 'that of its file system'}: "
            f"pip install fsspec {package or ''}".rstrip()
        ) from None


def _system(url: str) -> Any:
    """Return fsspec's file system for a URL, one a process. Raises UserError without its package."""
    protocol = url.partition("://")[0]
    account = urls.credentials(url)
    load(url)
    with _opening:
        if (protocol, account) not in _systems:
            fsspec = import_module("fsspec")
            configured = fsspec.config.conf.get(protocol, {})
            options: dict[str, Any] = {
                "use_listings_cache": False,
                "skip_instance_cache": True,
            }
            # servers that do not answer are to be seen; what a user has configured goes before it
            if protocol in ("http", "https"):
                timeout = import_module("aiohttp").ClientTimeout(
                    total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S
                )
                own = {"timeout": timeout, "trust_env": True}
                options["client_kwargs"] = own | configured.get("client_kwargs", {})
            elif protocol == "s3":
                own = {
                    "connect_timeout": CONNECT_S,
                    "read_timeout": ANSWER_S,
                    "retries": {"max_attempts": 1},
                }
                options["config_kwargs"] = own | configured.get("config_kwargs", {})
                options |= dict(zip(("key", "secret"), account or (), strict=False))
            elif protocol == "file":
                options["auto_mkdir"] = True
            try:
                system = _System(fsspec.filesystem(protocol, **options))
            except ValueError as error:
                raise UserError(f"{masked(url)}: {error}") from None
            _systems[protocol, account] = system
        return _systems[protocol, account]


def tried(url: str, action: Callable[[Any], T]) -> T:
    """Return action(file system); what may pass is tried again.

    Raises FileNotFoundError, and OSError with a number that is the storage's, both without credentials; and
    UserError where there is no such bucket, or no credentials are found.
    """
    system = _system(url)
    for pause_s in (*PAUSES_S, None):
        try:
            return action(system)
        except Exception as error:
            # fsspec says too that there is no file where a web server did not answer: the cause tells
            cause: BaseException = error
            if isinstance(error, FileNotFoundError) and error.__cause__:
                cause = error.__cause__
            status, code = _answer(cause)
            # of s3fs's errors botocore's, which is their cause, has them
            answered, word = _answer(error.__cause__)
            code = code or word
            if code == "NoSuchBucket":
                raise UserError(
                    f"{masked(url)}: there is no such bucket; name another"
                ) from None
            absent = isinstance(cause, FileNotFoundError) and status is None
            if absent or status in (404, 410):
                raise FileNotFoundError(
                    errno.ENOENT, "no such object", masked(url)
                ) from None
            answered = status or answered
            reason = f"HTTP {answered}" if answered else type(cause).__name__
            if isinstance(error, _Short):
                reason = str(error)
            if isinstance(cause, PermissionError) or status in (401, 403):
                raise OSError(
                    errno.EKEYREJECTED,
                    f"access is denied ({code or reason})",
                    masked(url),
                ) from None
            passes = status is None or status >= 500 or status in TRY_LATER
            if pause_s is None and NO_CREDENTIALS.search(reason):
                raise UserError(
                    f"{masked(url)}: no credentials are found ({reason}); docs/data.md says where they are "
                    "looked for"
                ) from None
            if pause_s is None or not passes:
                raise OSError(errno.EREMOTEIO, reason, masked(url)) from None
        time.sleep(pause_s * random.SystemRandom().uniform(1, 2))
    raise AssertionError("the last try returns or raises")


def _answer(error: BaseException | None) -> tuple[int | None, str]:
    """Return HTTP's status of an error of aiohttp's, botocore's or gcsfs's, and a bucket's word for it."""
    response = getattr(error, "response", None)  # of botocore
    known = response if isinstance(response, dict) else {}
    status = (
        getattr(error, "status", None)
        or known.get("ResponseMetadata", {}).get("HTTPStatusCode")
        or getattr(error, "code", None)
    )
    code = str(known.get("Error", {}).get("Code", ""))
    return (status if isinstance(status, int) else None), code


def head(url: str) -> Head:
    """Return size and tag of an object. Raises OSError, and UserError where the server says no size."""
    info = tried(url, lambda system: system.info(url))
    if info.get("size") is None:
        raise UserError(
            f"{masked(url)}: the server does not say its size, so no range of it can be read"
        )
    name = next((name for name in (*TAGS, *DATES) if info.get(name)), "")
    tag = str(info.get(name, ""))
    return Head(size=int(info["size"]), tag=tag, is_date=name in DATES)


def read(url: str, begin: int, length: int) -> bytes:
    """Return a range of an object, whole. Raises OSError, and UserError where the server gives no ranges."""
    if length <= 0:
        return b""

    def action(system: Any) -> bytes:
        data: bytes = system.cat_file(url, start=begin, end=begin + length)
        if len(data) < length:
            raise _Short(f"{counted(len(data), 'byte')} came of {length:,}")
        return data

    data = tried(url, action)
    if len(data) > length:
        raise UserError(
            f"{masked(url)}: the server answers a request for {counted(length, 'byte')} with {len(data):,}; samples "
            "are read by ranges: name a server, or a bucket, that knows them"
        )
    return data


def whole(url: str, size: int) -> bytes:
    """Return an object of that size. Raises OSError, also where it has another one."""

    def action(system: Any) -> bytes:
        # one byte more: an object that grew shows itself
        data: bytes = system.cat_file(url, start=0, end=size + 1)
        if len(data) != size:
            raise _Short(
                f"{counted(len(data), 'byte')} came, the manifest says {size:,}"
            )
        return data

    return tried(url, action)


def children(url: str) -> list[str]:
    """Return the URLs directly below one, folders with a slash behind them. Raises OSError.

    Of a web server they are the links of the page, if there is one.
    """
    below = url.rstrip("/") + "/"
    below_urls = set()
    for entry in tried(url, lambda system: system.ls(below, detail=True)):
        name = str(entry["name"])
        name = name if is_url(name) else f"{url.partition('://')[0]}://{name}"
        # fsspec appends names to all of the URL
        name = name.replace(f"{urls.whole(below)}/", below, 1)
        query = "?" in name and "?" not in urls.bare(name)
        name = urls.bare(name)
        is_folder = entry["type"] == "directory" or name.endswith("/")
        inside = name.removeprefix(below).rstrip("/")
        # a page has links upwards, and others that sort it
        if name != inside and inside and "/" not in inside and not query:
            below_urls.add(f"{below}{inside}{'/' * is_folder}")
    return sorted(below_urls)


@contextmanager
def opened(url: str, expected: tuple[int, int]) -> Iterator[ReadAt]:
    """Open an object of this size and number of its tag, whose head is asked for once a process.

    Raises Rejected where it is gone or another one, and OSError.
    """
    try:
        known = _heads.get(url)
        if known is None or expected != (known.size, known.number):
            known = _heads[url] = head(url)
        if expected != (known.size, known.number):
            raise Rejected("it has changed since it was scanned")
        size = known.size
        yield lambda offset, length: read(url, offset, min(length, size - offset))
    except FileNotFoundError:
        raise Rejected("no such object") from None


def heads(urls: Sequence[str], *, unlisted: bool = False) -> list[Head | None]:
    """Return the head of each object, None where there is none; some requests at once.

    Whoever may not list a bucket is told 403 of an object that is not there: with `unlisted` that is None.
    """

    def head_or_none(url: str) -> Head | None:
        try:
            return head(url)
        except OSError as error:
            denied = error.errno == errno.EKEYREJECTED
            if isinstance(error, FileNotFoundError) or (unlisted and denied):
                return None
            raise

    with ThreadPoolExecutor(TOGETHER) as threads:
        return list(threads.map(head_or_none, urls))


def apart(work: Callable[[], T]) -> T:
    """Return processes.apart(work): this process may fork later. Raises OSError also where that process was
    ended, as by `watched`."""
    try:
        return processes.apart(work)
    except BrokenProcessPool:
        raise OSError(errno.ETIMEDOUT, "no answer, and its process was ended") from None


@contextmanager
def watched(url: str, hurry: processes.Stop) -> Iterator[None]:
    """Watch what is done with a URL inside, in a process `apart`: a line says when it is silent, and the process
    ends where it is silent in a `hurry`. Libraries try again for minutes, and none can be told to end."""
    ended = threading.Event()

    def watch() -> None:
        moved, since_s, warned = -1, 0.0, False
        while not ended.wait(processes.LOOK_S):
            before, moved = moved, _moved()
            if moved != before:
                since_s = time.monotonic()
            silent_s = time.monotonic() - since_s
            if silent_s > WARN_S and not warned:
                warned = True
                storage.notify(
                    f"{masked(url)} has not answered for {WARN_S:.0f} s, and is waited for"
                )
            if silent_s > SILENT_S and hurry.is_set:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _moved() -> int:
    """Count the bytes that this process has written, sent to somebody who has acknowledged them, and been sent."""
    written = re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())
    moved = int(written[1]) if written else 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError, struct.error):
            end = socket.socket(fileno=int(name))
            try:
                info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                moved += sum(struct.unpack_from("QQ", info, ACKNOWLEDGED))
            finally:
                end.detach()
    return moved
