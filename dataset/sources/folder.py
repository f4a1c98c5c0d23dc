"""Folders of image files, one folder a class: which files there are, and their bytes; must not know formats, orders or pixels."""

from __future__ import annotations

import os
import time

from contracts import Array, UserError
from dataset.manifest import Manifest, printable

MEND = "put it back and go on with --resume auto, or leave it out with --rescan, which begins a new run"


class Folder:
    """A contracts.Source over the files of a manifest."""

    def __init__(self, manifest: Manifest, read_delay_s: float = 0.0) -> None:
        self.manifest = manifest
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.manifest)

    def path(self, sample: int) -> bytes:
        """Absolute path of the sample's file, in the file system's encoding."""
        return self.manifest.path(sample)

    def paths(self, samples: Array) -> Array:
        """uint8 [B, L], absolute paths, each padded with NUL."""
        return self.manifest.paths(samples)

    def read(self, sample: int) -> bytes:
        """The file's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError when the file is gone or has another size than the manifest, OSError when the storage fails.
        """
        expected = int(self.manifest.size[sample])
        try:
            file = os.open(self.path(sample), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UserError(f"a file of --data is gone: {printable(self.path(sample))}; {MEND}") from None
        try:
            data = os.read(file, expected + 1)  # one byte more: a file that grew shows itself
            while len(data) < expected and (piece := os.read(file, expected + 1 - len(data))):
                data += piece
            if len(data) != expected:
                self.check(sample, os.fstat(file).st_size)
        finally:
            os.close(file)
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        return data

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        expected = int(self.manifest.size[sample])
        if size != expected:
            path = printable(self.path(sample))
            raise UserError(f"a file of --data changed size: {path} has {size} bytes, the manifest says {expected}; {MEND}")
