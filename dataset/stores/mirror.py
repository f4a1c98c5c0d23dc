"""A run's folder behind a URL (--output s3://bucket/run): fetched before a run goes on, uploaded as it grows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from contracts import UserError
from dataset.scan.manifest import is_url, masked
from dataset.stores import remote
from system.urls import ready
from system.user_files import below, create, foreign_parts

State = dict[str, tuple[int, int]]
"""Name below the folder -> (date in nanoseconds, bytes) of each file."""


@contextmanager
def mirrored(
    url: str | None, folder: Path | None, *, resuming: bool
) -> Iterator[Callable[[], None] | None]:
    """Yield what uploads a run's `folder`, which is done once more in the end; None where `url` is none.

    First what is there is fetched, unless an earlier part of the run has left newer files in the folder, whose
    upload has failed or was not due. Raises UserError where it is a run that is not `resuming`, and where it cannot
    be read, or written in the end.
    """
    if url is None or folder is None or not is_url(url):
        yield None
        return
    mirror = _Mirror(url=ready("--output", url).rstrip("/"), folder=folder)
    mirror.fetch(resuming=resuming)
    try:
        yield mirror.upload
    except BaseException:
        with suppress(UserError):  # what ends the run is said
            mirror.upload()
        raise
    mirror.upload()


def _is_ours(name: str) -> bool:
    """Whether a name below the URL may be a run's file: no mark of a folder, as consoles of buckets make them, and
    none that is hidden or could lead out of the run's folder."""
    with suppress(ValueError):
        return bool(foreign_parts(name))
    return False


@dataclass(kw_only=True)
class _Mirror:
    url: str
    folder: Path
    same: State = field(default_factory=dict)  # files that are alike on both sides

    def fetch(self, *, resuming: bool) -> None:
        try:
            names = remote.apart(self._fetch, resuming)
            state = self._state()
        except OSError as error:
            raise self._failed("read", error) from None
        if names is None:
            what = f"--output {masked(self.url)}: {self.folder} has newer files"
            warnings.warn(f"{what}, which stay and are uploaded", stacklevel=2)
        self.same = {name: state[name] for name in names or ()}

    def upload(self) -> None:
        """Upload files that are new or have changed, and remove those that have gone. Raises UserError."""
        try:
            # of before the upload: a file may grow meanwhile
            state = self._state()
            if state != self.same:
                remote.apart(self._upload, state)
        except OSError as error:
            raise self._failed("written", error) from None
        self.same = state

    def _failed(self, what: str, error: OSError) -> UserError:
        said = f"--output {masked(self.url)} cannot be {what}: {error.strerror}"
        return UserError(f"{said}; {self.folder} stays as it is")

    def _fetch(self, resuming: bool) -> list[str] | None:
        """Return the names of the files that were fetched; None where those of the folder are newer."""
        try:
            paths = remote.tried(self.url, lambda system: system.find(self.url))
        except FileNotFoundError:
            return []
        # fsspec's paths have no protocol
        start = self.url.partition("://")[2]
        names = [path.partition(f"{start}/")[2] for path in paths]
        names = [name for name in names if _is_ours(name)]
        if names and not resuming:
            remedy = "continue it with --resume auto, or name another"
            raise UserError(f"--output {masked(self.url)} holds a run; {remedy}")
        if not names:
            return []
        dates = [date for date, _ in self._state().values()]
        uploaded_s = self._uploaded_s(names)
        # a storage may leave out the fraction of a second: then these may be as old, and are the same
        if dates and max(dates) / 1e9 > uploaded_s:
            return None
        for name in names:
            path = self._below(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            # a link of that name would be followed
            part.unlink(missing_ok=True)
            create(part).close()
            self._tried(name, "get_file", f"{self.url}/{name}", str(part))
            # no newer than the upload: a fetch that is cut short here begins anew the next time
            os.utime(part, (int(uploaded_s), int(uploaded_s)))
            part.rename(path)
        return names

    def _below(self, name: str) -> Path:
        try:
            return below(self.folder, name)
        except ValueError as why:
            raise UserError(
                f"--output {masked(self.url)}: '{masked(name)}' {why}, {self.folder}; remove that link"
            ) from None

    def _uploaded_s(self, names: Sequence[str]) -> float:
        """Return when the newest of these files was uploaded, by the storage's clock, in seconds since 1970."""
        urls = [f"{self.url}/{name}" for name in names]
        return remote.tried(
            self.url,
            lambda system: max(system.modified(url).timestamp() for url in urls),
        )

    def _upload(self, state: State) -> None:
        for name in state:
            if state[name] != self.same.get(name):
                self._tried(
                    name, "put_file", f"{self.folder}/{name}", f"{self.url}/{name}"
                )
        for name in self.same.keys() - state.keys():
            self._tried(name, "rm_file", f"{self.url}/{name}")

    def _tried(self, name: str, method: str, *places: str) -> None:
        """Call a method of fsspec's file system for a file."""
        remote.tried(
            f"{self.url}/{name}", lambda system: getattr(system, method)(*places)
        )

    def _state(self) -> State:
        paths = [path for path in self.folder.rglob("[!.]*") if path.is_file()]
        # last.pt behind best.pt, whose figure it has
        paths.sort(key=lambda path: path.name == "last.pt")
        stats = [path.stat() for path in paths]
        return {
            str(path.relative_to(self.folder)): (stat.st_mtime_ns, stat.st_size)
            for path, stat in zip(paths, stats, strict=True)
        }
