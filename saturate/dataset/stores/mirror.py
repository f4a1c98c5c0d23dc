"""A run's folder behind a URL (--output s3://bucket/run): fetched before a run goes on, uploaded as it grows."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from saturate.contracts import UserError
from saturate.dataset.scan.manifest import masked
from saturate.dataset.stores import claim, remote
from saturate.system import processes, storage, torch_files
from saturate.system.urls import ready
from saturate.system.user_files import below, create, is_foreign

T = TypeVar("T")

LAST = "last.pt"
State = dict[str, tuple[int, int, int]]
"""Name below the folder -> (inode, when the system saw it change, in nanoseconds, bytes) of each file: what replaces
it has another inode, and no program sets that date."""


@contextmanager
def mirrored(
    url: str | None, folder: Path | None, *, resuming: bool, trains: bool = True
) -> Iterator[Mirror | None]:
    """Yield what uploads a run's `folder`, which is done once more in the end; None where `url` is none.

    First a run that `trains` claims the URL. Then what is there is fetched, unless the folder's last.pt has
    taken as many steps, since an upload had failed or was not due. Raises UserError where it is a run that is
    not `resuming`, and where it cannot be read, or written in the end.
    """
    if url is None or folder is None or "://" not in url:
        yield None
        return
    remote.require_writable(url)
    mirror = Mirror(url=ready("--output", url).rstrip("/"), folder=folder)
    mirror.begin(resuming=resuming, trains=trains)
    try:
        yield mirror
    except BaseException:
        mirror.hurry()
        with suppress(UserError):  # what ends the run is said
            mirror.end()
        raise
    mirror.end()


@dataclass(kw_only=True)
class Mirror:
    """A run's `folder`, and the `url` to which what is new there is uploaded."""

    url: str
    folder: Path
    same: State = field(default_factory=dict)  # files that are alike on both sides
    held: claim.Claim | None = None

    _uploading: threading.Lock = field(default_factory=threading.Lock, init=False)
    _hurry: processes.Stop = field(default_factory=processes.Stop, init=False)
    _renewing: processes.Beside[None] | None = field(default=None, init=False)
    _given_up: storage.StorageFault | None = field(default=None, init=False)

    def begin(self, *, resuming: bool, trains: bool) -> None:
        """Claim the URL for a run that `trains`, and fetch what is there. Raises UserError."""
        try:
            if not resuming:
                self._apart(self._require_empty)
            if trains:
                take = partial(claim.take, self.url, self.folder, resuming=resuming)
                self.held = self._apart(take)
                # at once: a fetch may take minutes
                work = partial(claim.renew, self.url, self.held)
                self._renewing = processes.Beside(work)
            if self._apart(self._fetch) or not trains:
                self.same = self._state()
        except BaseException as error:
            if self._renewing is not None:
                self._renewing.kill()
            if not isinstance(error, OSError):
                raise
            raise self._failed("read", error) from None

    def __call__(self, *, last: bool = False) -> None:
        """Upload files that are new or have changed, and remove those that have gone; behind the `last` one the
        claim ends. Raises StorageFault, Superseded where another run holds the URL now, and UserError.
        """
        with self._uploading:
            if self._given_up is not None:
                raise self._given_up
            try:
                # of before the upload: a file may grow meanwhile
                state = self._state()
                if state != self.same or (last and self.held is not None):
                    self._apart(partial(self._upload, state, last))
            except OSError as error:
                fault = self._failed("written", error)
                if self._hurry.is_set:
                    self._given_up = fault
                raise fault from None
            self.same = state

    def hurry(self) -> None:
        """Have an upload, also one that is under way, given up where the store is silent for SILENT_S."""
        self._hurry.now()

    def end(self) -> None:
        """Upload what is left, and end the claim. Raises UserError, in a hurry not for the storage."""
        if self._renewing is not None:
            self._renewing.kill()
        try:
            self(last=True)
        except storage.StorageFault:
            if not self._hurry.is_set:
                raise

    def _failed(self, what: str, error: OSError) -> storage.StorageFault:
        problem = f"--output {masked(self.url)} cannot be {what}: {error.strerror}"
        return storage.StorageFault(f"{problem}; {self.folder} stays as it is")

    def _apart(self, work: Callable[[], T]) -> T:
        """Return work(), of a process of its own that is watched. Raises what it raises, and OSError."""

        def watched() -> T:
            with remote.watched(self.url, self._hurry):
                return work()

        return remote.apart(watched)

    # -- in that process -------------------------------------------------------

    def _require_empty(self) -> None:
        if self._names():
            remedy = "continue it with --resume auto, or name another"
            raise UserError(f"--output {masked(self.url)} holds a run; {remedy}")

    def _names(self) -> list[str]:
        """Return the names below the URL that may be files of a run: no mark of a folder, as consoles of buckets make
        them, and none that is hidden or could lead out of the run's folder."""
        return [name for name in claim.names(self.url) if not is_foreign(name)]

    def _fetch(self) -> bool:
        """Put the files of the URL in the place of the folder's, which are moved aside; return False where there
        are none, or the folder's last.pt has come as far."""
        names = self._names()
        fetched = self.folder / ".fetched"
        if fetched.is_symlink():  # which would be followed
            fetched.unlink()
        shutil.rmtree(fetched, ignore_errors=True)
        is_current = (self.folder / LAST).exists() and not self._is_behind(
            names, fetched
        )
        if is_current or not names:
            return False
        for name in names:
            if not (fetched / name).exists():
                self._get(name, fetched)
        self._move_aside()
        # last.pt behind what its resume needs
        for path in sorted(fetched.iterdir(), key=lambda path: path.name == LAST):
            path.rename(self.folder / path.name)
        fetched.rmdir()
        return True

    def _is_behind(self, names: Sequence[str], fetched: Path) -> bool:
        """Whether the folder's last.pt has come less far than the URL's, by their own words."""
        if LAST not in names:
            return False
        self._get(LAST, fetched)
        own_progress, remote_progress = (
            _progress(self.folder / LAST),
            _progress(fetched / LAST),
        )
        if remote_progress is not None and (
            own_progress is None or own_progress < remote_progress
        ):
            return True
        shutil.rmtree(fetched)
        if own_progress != remote_progress:
            what = f"--output {masked(self.url)}: {self.folder} has a newer"
            storage.notify(f"{what} {LAST}, which stays and is uploaded")
        return False

    def _get(self, name: str, to: Path) -> None:
        try:
            path = below(to, name)
        except ValueError as why:
            raise UserError(
                f"--output {masked(self.url)}: '{masked(name)}' {why}, {to}; remove that link"
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        create(part).close()
        self._tried(name, "get_file", f"{self.url}/{name}", str(part))
        part.rename(path)

    def _move_aside(self) -> None:
        """Keep what the folder has beside it: it may be what no upload has."""
        paths = [*self.folder.glob("[!.]*")]
        if not paths:
            return
        beside = (f"{self.folder}.before-{n}" for n in count(1))
        aside = next(path for path in map(Path, beside) if not path.exists())
        storage.keep_aside(aside, paths, [])
        storage.notify(
            f"--output {masked(self.url)} is fetched; what {self.folder} had is in {aside}"
        )

    def _upload(self, state: State, last: bool) -> None:
        if self.held is not None:
            claim.require_held(self.url, self.held)
        for name in state:
            path = self.folder / name
            if state[name] == self.same.get(name):
                continue
            try:
                self._put(name, path)
            except FileNotFoundError:
                if path.exists():
                    raise
        for name in self.same.keys() - state.keys():
            with suppress(FileNotFoundError):
                self._tried(name, "rm_file", f"{self.url}/{name}")
        if last and self.held is not None:
            replace(self.held, ended=True).put(self.url)

    def _put(self, name: str, path: Path) -> None:
        # a bucket has an object once it is whole; on a disk a copy that breaks off would be in place of the last one
        target = f"{self.url}/{name}"
        if not self.url.startswith("file:"):
            self._tried(name, "put_file", str(path), target)
            return
        folder, _, last = target.rpartition("/")
        part = f"{folder}/.{last}.part"
        self._tried(name, "put_file", str(path), part)
        self._tried(name, "mv", part, target)

    def _tried(self, name: str, method: str, *places: str) -> None:
        """Call a method of fsspec's file system for a file."""
        remote.tried(
            f"{self.url}/{name}", lambda system: getattr(system, method)(*places)
        )

    def _state(self) -> State:
        names = [
            str(path.relative_to(self.folder)) for path in self.folder.rglob("[!.]*")
        ]
        # last.pt behind best.pt, whose figure it has
        names.sort(key=lambda name: name == LAST)
        state: State = {}
        for name in names:
            path = self.folder / name
            # checkpoints are written and removed meanwhile
            with suppress(FileNotFoundError):
                stat = path.stat()
                if path.is_file() and "/." not in f"/{name}":
                    state[name] = stat.st_ino, stat.st_ctime_ns, stat.st_size
        return state


def _progress(path: Path) -> tuple[int, int] | None:
    """Return the steps and epochs that a checkpoint has taken, None of what is none or is damaged."""
    return None if torch_files.damaged(path) else torch_files.progress(path)
