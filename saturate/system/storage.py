"""Tells errors of the storage, which are tried again and end the run, from errors of one file.

A scan that took the storage's faults for bad files would keep that, and training would leave samples out.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from saturate.contracts import UserError
from saturate.system.user_files import create, open_bytes

Found = TypeVar("Found")

OF_THE_FILE = frozenset(
    {
        errno.ENOENT,  # gone, or a link to nothing
        errno.EACCES,  # of a file; of a folder it is `lost`
        errno.EPERM,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ENXIO,  # a socket
        errno.ENODEV,  # a device without a driver
        errno.EINVAL,
        errno.EILSEQ,
        errno.EFBIG,
        errno.EOVERFLOW,
        errno.EUCLEAN,  # a damaged inode; a file system that is damaged as a whole fails of its folders too
        errno.EBADMSG,  # a checksum that is not its content's
    }
)
"""Errors that may be of one file alone. Anything else, such as EIO, ESTALE, ETIMEDOUT, ENOTCONN or EMFILE,
is said by the storage, the network or the machine, and would be said of any file."""
PAUSES_S = (1.0, 4.0, 10.0)
"""Seconds before a read that the storage has failed is tried again: three times, within 15 s."""
ENDING_S = (1.0, 4.0)
"""How long the last checkpoint is tried again: a run that is told to end has to write it within seconds."""
GO_ON = "go on with --resume auto once the storage is well"
SCAN_AGAIN = "nothing was kept of this scan: mend that, and start again"
PIECE = 1 << 20
"""Bytes that are read at once where only their being there matters."""


class StorageFault(UserError):
    """The storage has failed, in one line with the name of what was read."""


class Superseded(UserError):
    """Another run writes to --output in this one's place."""


def failed(error: BaseException) -> bool:
    """Whether an error is the storage's; PyAV's have an errno too, without all of them being OSErrors."""
    number = getattr(error, "errno", None)
    # an OSError that a library raises for a damaged file has no number, and FFmpeg's numbers are no system's
    return number in errno.errorcode and number not in OF_THE_FILE


def fault(error: BaseException, name: str, then: str) -> StorageFault:
    """Return the line for an error of `name`, printable; `then` says what it ends, and what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    few = (
        "; ulimit -n bounds open files"
        if getattr(error, "errno", 0) in (errno.EMFILE, errno.ENFILE)
        else ""
    )
    return StorageFault(f"I/O error: {name} cannot be read: {reason}{few}; {then}")


def lost(error: OSError, *, folder: bool) -> bool:
    """Whether an error that a scan meets ends it: the storage's, and of a folder that it may not be read."""
    return failed(error) or (folder and error.errno in (errno.EACCES, errno.EPERM))


def end_scan(error: BaseException, name: str) -> StorageFault:
    """Return the line that ends a scan."""
    return fault(error, f"--data: {name}", SCAN_AGAIN)


def patiently(
    action: Callable[[], Found], name: Callable[[], str], then: str = GO_ON
) -> Found:
    """Return what `action` returns; where the storage fails it is tried again, after each of PAUSES_S.

    Raises StorageFault with the `name` of what is read, and with what to do `then`, when the last one has
    failed; whatever is not the storage's is raised as it is.
    """
    for tries, pause_s in enumerate((*PAUSES_S, None), 1):
        try:
            return action()
        except Exception as error:
            if not failed(error):
                raise
            # no later answer differs
            if pause_s is None or getattr(error, "errno", 0) == errno.EKEYREJECTED:
                tried = (
                    f"tried {tries} times in {sum(PAUSES_S[: tries - 1]):.0f} s; "
                    if tries > 1
                    else ""
                )
                raise fault(error, name(), f"{tried}{then}") from None
            notify_once(
                "reads",
                f"I/O error: {name()}: {error}; tried again for {sum(PAUSES_S):.0f} s",
            )
        time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


def in_scan(action: Callable[[], Found], name: Callable[[], str]) -> Found:
    """Return what `action` reads for a scan, as `patiently` does."""
    return patiently(action, lambda: f"--data: {name()}", SCAN_AGAIN)


def read_through(path: bytes) -> None:
    """Read a file to its end. Raises OSError: a decoder that fails does not say that a read has failed."""
    with open_bytes(path) as file:
        while file.read(PIECE):
            pass


_notified: set[str] = set()


def notify_once(kind: str, line: str) -> None:
    """Say the first line of a kind in this process: each worker would say each of its files."""
    if kind not in _notified:
        _notified.add(kind)
        notify(line)


def notify(line: str) -> None:
    """Say a line after the program's name."""
    print(f"{os.path.basename(sys.argv[0])}: {line}", file=sys.stderr, flush=True)


def is_full(error: OSError) -> bool:
    """Whether a write has failed since the disk, or the user's part of it, has no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def keep_aside(aside: Path, moved: Iterable[Path], copied: Iterable[Path]) -> None:
    """Make a folder and move files into it, of others a copy, as far as these are there. Raises OSError."""
    aside.mkdir()
    for path in copied:
        if path.is_file():
            shutil.copy2(path, aside)
    for path in moved:
        path.rename(aside / path.name)


def replace(path: Path, new: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have `write` make the file `new`, and rename it to `path`, which is whole at any time. Raises OSError, and
    whatever `write` raises; `new` is then gone. What has that name before is removed: it may be a link.
    """
    try:
        new.unlink(missing_ok=True)
        with create(new) as file:
            write(file)
            file.flush()
            # before the rename: else a power cut could leave the name with a part of the content
            os.fsync(file.fileno())
        os.replace(new, path)
        # a rename is on the disk once its folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
