"""Files that torch.save wrote, read without running any code of theirs."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from saturate.system.user_files import open_bytes

ZIP_HEAD = b"PK\x03\x04"
NAMESPACE = "argparse.Namespace"
"""Class that torchvision's references and timm keep their settings in."""

IDENTITY = ("arch", "classes", "manifest")
"""Keys that every checkpoint of this program has, besides `format`."""
NETWORK = "model"
AVERAGE = "ema"
"""Keys of a checkpoint's weights: of the network, and of their average (--ema)."""
BEST_OF = {"network": NETWORK, "average": AVERAGE}
"""What `best_of` of a best.pt says -> the key of the weights whose figure made it the best."""


class Unreadable(ValueError):
    """A file that cannot be read, or that must not be; the reason in words that stand behind its name."""


def load(path: Path, *, foreign: bool = False) -> Any:
    """Return what a file holds, its tensors on the CPU. Nothing in it is executed.

    `foreign` takes objects of classes that torch does not know, each as an empty `Inert`: numbers of NumPy,
    paths, settings. Without it such a file is refused. Raises Unreadable, and FileNotFoundError.
    """
    try:
        _require_plain(path)
        with _known(_foreign_names(path) if foreign else []), warnings.catch_warnings():
            # torch warns of what the file holds, such as sparse tensors
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    except Unreadable:
        raise
    except Exception as error:  # torch raises whatever the bytes make it stumble over
        raise Unreadable(
            _reason(error) if _is_zip(path) else "damaged, or another kind of file"
        ) from None


def progress(path: Path) -> tuple[int, int] | None:
    """Return the steps and epochs that a checkpoint has taken, None of what is none or cannot be read."""
    try:
        _require_plain(path)
        # mapped: of its tensors nothing is read
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        taken = content["progress"]
        return int(taken["step"]), int(taken["epoch"])
    except Exception:  # torch raises whatever the bytes make it stumble over
        return None


def damaged(path: Path) -> str | None:
    """Return the first part of a file whose bytes are not those of its checksum, at which torch.load does not
    look; None where all are."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip()
    except Exception:  # zipfile raises whatever the bytes make it stumble over
        return "its archive"


def is_ours(content: object) -> bool:
    """Whether this program, in whatever version, has written it as a checkpoint."""
    return isinstance(content, Mapping) and {"format", *IDENTITY} <= content.keys()


def meant(checkpoint: Mapping[str, Any]) -> str:
    """Return the key of the weights that a checkpoint of this program stands for.

    Of a best.pt these are the ones whose figure made it the best; of a last.pt the average, where it has one.
    """
    known = BEST_OF.get(str(checkpoint.get("best_of")), AVERAGE)
    return known if known in checkpoint else NETWORK


def _reason(error: Exception) -> str:
    """Return the sentence of torch's advice that says what it has met."""
    message = str(error)
    met = re.search(r"GLOBAL [\w.]+", message)
    if met:
        return f"it holds an object, {met[0]}"
    # of some damage torch has no word
    return message.partition("\n")[0].partition(". ")[0] or "damaged"


class Inert:
    """Stands for an object of a class that was not imported: it takes everything and does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


@contextmanager
def _known(names: list[str]) -> Iterator[None]:
    """Let torch.load find an Inert under each of these names, whatever else has the name."""
    stand_ins: list[Any] = [(type(name, (Inert,), {}), name) for name in names]
    with torch.serialization.safe_globals(stand_ins):
        yield


def _foreign_names(path: Path) -> list[str]:
    """List the classes in a file that torch does not know; torch lists those of its archives alone."""
    if not _is_zip(path):
        return [NAMESPACE]
    return list(torch.serialization.get_unsafe_globals_in_checkpoint(os.fspath(path)))


def _require_plain(path: Path) -> None:
    """Raise Unreadable for what could be read without an end, or become more in memory than it is on disk."""
    if path.is_dir():
        raise Unreadable("a folder, and not a file")
    if not _is_zip(path):
        return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    claimed = sum(entry.file_size for entry in entries)
    compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if compressed or claimed > path.stat().st_size:  # torch.save compresses nothing
        raise Unreadable(
            f"a compressed archive, of {claimed:,} bytes, which torch.save does not write"
        )


def _is_zip(path: Path) -> bool:
    """Whether torch takes it for one of its archives; it goes by the first bytes alone."""
    with open_bytes(path) as file:
        return file.read(len(ZIP_HEAD)) == ZIP_HEAD
